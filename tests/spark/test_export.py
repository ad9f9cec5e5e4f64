"""From clients of a real broker to Parquet by a real Spark: every message once, whatever is killed."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pyspark_shardbroker.errors import OptionError
from pyspark_shardbroker.export import Export, compact, run
from shardbroker.control import Control
from shardbroker.journal.exports import exports, note_export
from tests.harness.broker import Broker, client_id_on
from tests.harness.client import Client

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(400)]

WORKERS = 3
Sent = dict[str, list[tuple[str, bytes, int, tuple[tuple[str, str], ...]]]]
"""Client id -> topic, payload, QoS, user properties, in the order in which they were published."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(WORKERS, {"journal.capture": "#"}, data_dir=tmp_path / "data") as own:
        yield own


def publish(broker: Broker, sent: Sent, count: int, tag: str) -> None:
    """A client on each worker publishes `count` messages; returns when the broker has acknowledged them all."""
    chance = random.Random(tag)
    clients = [client_id_on(worker, WORKERS, f"export-{tag}") for worker in range(WORKERS)]
    for name in clients:
        with Client(broker.address, 5, name) as client:
            for number in range(count):
                topic = f"{chance.choice('abc')}/{name}/{number % 7}"
                payload = f"{tag} {number} ".encode() + chance.randbytes(chance.choice((0, 5, 300)))
                users = (("n", str(number)), ("n", tag)) if number % 3 == 0 else ()
                qos = 1 + number % 2
                client.publish(topic, payload, qos, properties={"user_property": list(users)} if users else None)
                sent.setdefault(name, []).append((topic, payload, qos, users))


def exported(spark: SparkSession, to: Path) -> Sent:
    """What the files hold, by client in the order of the journals."""
    found: dict[str, list[Any]] = defaultdict(list)
    rows = spark.read.parquet(str(to)).where("type = 'message' and captured").collect()
    for row in sorted(rows, key=lambda row: (row.worker, row.sequence)):
        users = tuple((one.name, one.value) for one in row.user_properties or ())
        found[row.client_id].append((row.topic, bytes(row.payload), row.qos, users))
    return dict(found)


def export_of(broker: Broker, to: Path, **options: Any) -> Export:
    return Export(str(broker.data_dir), str(to), **options)


def test_every_message_is_exported_once_with_what_belongs_to_it(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    sent: Sent = {}
    to = tmp_path / "out"
    export = export_of(broker, to, partition_by=("date", "topic_root"), payload="n INT")
    publish(broker, sent, 40, "one")
    assert run(spark, export) > 0
    assert exported(spark, to) == sent
    # Again: only what is new. The broker is killed in between, and goes on.
    publish(broker, sent, 20, "two")
    broker.kill()
    broker.start()
    publish(broker, sent, 20, "three")
    assert run(spark, export) > 0
    assert run(spark, export) == 0
    assert exported(spark, to) == sent
    assert {path.name.split("=")[0] for path in to.iterdir() if "=" in path.name} == {"date"}
    before, after = compact(spark, str(to))
    assert before > after > 0
    assert exported(spark, to) == sent
    with pytest.raises(OptionError, match="begun with topics"):
        run(spark, export_of(broker, to, partition_by=("date", "topic_root"), payload="n INT", topics="a/#"))


def command(broker: Broker, to: Path, *options: str) -> list[str]:
    program = Path(sys.executable).with_name("shardbroker")
    return [str(program), "export", f"--data-dir={broker.data_dir}", f"--to={to}", "--conf=spark.ui.enabled=false", *options]


def test_an_export_that_is_killed_is_finished_by_the_next_one(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    sent: Sent = {}
    to = tmp_path / "out"
    publish(broker, sent, 300, "one")
    stop = threading.Event()

    def go_on() -> None:
        turn = 0
        while not stop.is_set():
            publish(broker, sent, 5, f"more{turn}")
            turn += 1

    traffic = threading.Thread(target=go_on)
    traffic.start()
    process = subprocess.Popen(
        command(broker, to, "--batch-bytes=2000", "--master=local[1]"), start_new_session=True, stderr=subprocess.DEVNULL
    )
    try:
        while process.poll() is None and not any(to.glob("part-00000003-*")):
            time.sleep(0.02)
        assert process.poll() is None, "the export had ended before it could be killed"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        stop.set()
        traffic.join()
    run(spark, export_of(broker, to))
    assert exported(spark, to) == sent
    note_export(broker.data_dir, str(to), "parquet", 1, 0)  # as `shardbroker export` does behind it
    with Control(broker.data_dir) as control:
        ends = {str(row["worker"]): row["durable"] for row in control.call("journal status")["data"]}
        (row,) = (row for row in control.call("journal exports")["data"] if row["to"] == str(to))
    assert (row["positions"], row["current"], row["result"]) == (ends, True, "done")


def test_wrong_options_are_refused_before_spark_starts(broker: Broker, tmp_path: Path) -> None:
    done = subprocess.run(command(broker, tmp_path / "out", "--partition-by=month"), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--partition-by month: allowed are date, hour" in done.stderr
    (note,) = (note for note in exports(broker.data_dir) if note["to"] == str(tmp_path / "out"))
    assert (note["code"], note["format"]) == (2, "parquet")
