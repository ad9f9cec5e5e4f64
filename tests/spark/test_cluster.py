"""The same job, unchanged, on one machine and on a standalone cluster: a master and two workers from the package of PyPI."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest
from pyarrow.dataset import dataset

from tests.harness import free_port
from tests.spark.samples import write_journal

pytestmark = pytest.mark.timeout(400)

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
WORKERS = 2
ENVIRONMENT = {
    **os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable,
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
}  # fmt: skip


@dataclass
class Cluster:
    """url: for --master. log: of the master."""

    url: str
    log: Path

    def wait_for(self, pattern: str, count: int) -> None:
        """Until the master has said so that often."""
        while len(re.findall(pattern, self.log.read_text())) < count:
            time.sleep(0.1)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    port = free_port()  # the master starts for seconds, in which a connection may get one of the kernel's
    url = f"spark://127.0.0.1:{port}"
    log = tmp_path / "master.log"
    master = ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = ["worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
    processes = []
    try:
        for arguments in (master, *([*worker, "--work-dir", str(tmp_path / str(number)), url] for number in range(WORKERS))):
            command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
            with log.open("ab") if arguments is master else open(os.devnull, "wb") as output:
                processes.append(subprocess.Popen(command, env=ENVIRONMENT, stdout=output, stderr=output))
        found = Cluster(url, log)
        found.wait_for("Registering worker", WORKERS)
        yield found
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def job(data: Path, master: str) -> str:
    """What a job prints."""
    command = [sys.executable, "-m", "pyspark_shardbroker.jobs", "top-talkers", str(data), "--master", master]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_job_gives_on_a_cluster_what_it_gives_on_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    for worker in range(2):
        write_journal(tmp_path / "data" / "journal" / str(worker), seed=worker, segment_bytes=20_000, worker=worker, workers=2)
    printed = job(tmp_path / "data", cluster.url)
    cluster.wait_for("Launching executor", WORKERS)
    assert printed == job(tmp_path / "data", "local[*]")
    assert printed.count("\n|") > 1, printed


def test_an_export_on_a_cluster_writes_what_one_machine_writes(cluster: Cluster, tmp_path: Path) -> None:
    for worker in range(2):
        write_journal(tmp_path / "data" / "journal" / str(worker), seed=worker, segment_bytes=20_000, worker=worker, workers=2)
    tables = []
    for name, master in (("there", cluster.url), ("here", "local[*]")):
        program, to = Path(sys.executable).with_name("shardbroker"), str(tmp_path / name)
        command = [program, "export", str(tmp_path / "data"), "--to", to, "--master", master]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        table = dataset(tmp_path / name, format="parquet", partitioning="hive", exclude_invalid_files=True).to_table()
        tables.append(table.sort_by([("worker", "ascending"), ("sequence", "ascending")]))
    cluster.wait_for("Launching executor", WORKERS)
    assert tables[0].num_rows > 0
    assert tables[0].equals(tables[1])
