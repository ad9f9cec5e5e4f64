"""`shardbroker tune` on machines of many kinds: sensible, explained, and never what `config check` refuses."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbroker.config import load
from shardbroker.config.settings import core_numbers
from shardbroker.deploy.costs import COSTS, Cost, table
from shardbroker.deploy.machine import Cpu, Machine, MachineError, parse_machine, read_machine
from shardbroker.deploy.tuning import Wanted, apply, check, propose
from tests.harness import Broker, Client

DOCS = Path(__file__).parents[2] / "docs"
PROGRAM = Path(sys.executable).with_name("shardbroker")
GB = 1 << 30


def described(
    cores: int, memory_gb: float = 64, threads: int = 1, nodes: int = 1, network: tuple[int, ...] = (), **more: object
) -> Machine:
    """Numbers of hardware threads as Linux gives them: all first threads, then all second ones; nodes in blocks."""
    cpus = [
        Cpu(number=thread * cores + core, core=core, package=core * nodes // cores, node=core * nodes // cores)
        for thread in range(threads)
        for core in range(cores)
    ]
    memory = int(memory_gb * GB)
    values = {"memory": memory, "shared_memory": memory // 2, "descriptors": 1 << 20} | more
    return Machine(cpus=cpus, network_cpus=list(network), **values)  # type: ignore[arg-type]


MACHINES = {
    "one core": described(1, 1),
    "two cores": described(2, 4),
    "four cores": described(4, 8, network=(0,)),
    "four cores with siblings": described(4, 16, threads=2),
    "sixteen cores, two nodes": described(16, 128, nodes=2, network=(0, 1)),
    "32 cores with siblings, two nodes": described(32, 256, threads=2, nodes=2, network=(0, 1, 2, 3)),
    "64 cores": described(64, 512),
    "128 cores with siblings, eight nodes": described(128, 1024, threads=2, nodes=8, network=(0,)),
    "128 cores with little memory": described(128, 4),
    "a container with 64 MB of shared memory": described(8, 8, shared_memory=64 << 20),
    "1,000 descriptors": described(2, 4, descriptors=1000),
}


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Of 1 to 128 cores, with siblings or not, on nodes, some threads not allowed, short of this or that."""
    cores = draw(st.integers(1, 128))
    machine = described(
        cores,
        memory_gb=draw(st.sampled_from((0.25, 1, 16, 1024))),
        threads=draw(st.sampled_from((1, 2))),
        nodes=draw(st.sampled_from([nodes for nodes in (1, 2, 4, 8) if nodes <= cores])),
        shared_memory=draw(st.sampled_from((1 << 20, 64 << 20, 8 << 30))),
        descriptors=draw(st.sampled_from((64, 1024, 1 << 20))),
    )
    allowed = draw(st.lists(st.sampled_from(machine.cpus), min_size=1, unique_by=lambda cpu: cpu.number))
    network = draw(st.lists(st.integers(0, 2 * cores), max_size=4, unique=True))
    kept = draw(st.sampled_from((machine.cpus, sorted(allowed, key=lambda cpu: cpu.number))))
    return machine.model_copy(update={"cpus": kept, "network_cpus": network})


@given(machines())
def test_what_is_proposed_is_accepted_and_fits_any_machine(machine: Machine) -> None:
    with tempfile.TemporaryDirectory() as directory:
        sensible(machine, Path(directory))


@pytest.mark.parametrize("name", MACHINES)
def test_what_is_proposed_is_accepted_and_fits_the_machine(name: str, tmp_path: Path) -> None:
    sensible(MACHINES[name], tmp_path)
    checked = [str(PROGRAM), "config", "check", "--config", str(tmp_path / "tuned.toml")]
    done = subprocess.run(checked, capture_output=True, text=True, check=False)
    elsewhere = [line for line in done.stderr.splitlines() if ": no core " in line]  # cores of that machine, which this one has not
    assert done.stderr.splitlines() == elsewhere
    assert (done.returncode, done.stdout) == ((2, "") if elsewhere else (0, "configuration is valid\n"))


def sensible(machine: Machine, tmp_path: Path) -> None:
    proposals = propose(machine)
    assert all(one.why for one in proposals)
    file = tmp_path / "tuned.toml"
    file.write_text(apply("", proposals))
    settings = load(file).settings
    workers, process = int(str(settings.process.workers)), settings.process
    places = core_numbers(process.worker_cores)
    assert len(places) == workers, "each has a core of its own"
    by_number = {cpu.number: (cpu.package, cpu.core) for cpu in machine.cpus}
    assert len({by_number[number] for number in places}) == workers, "no two are siblings"
    if process.acceptor_cores != "auto":
        assert not set(core_numbers(process.acceptor_cores)) & set(places)
        assert set(core_numbers(process.acceptor_cores)) <= by_number.keys()
    assert int(str(process.ring_size)) * (workers + 1) ** 2 <= max(machine.shared_memory // 8, 4 * 65536)
    assert settings.listeners["default"].max_connections * 7_100 <= machine.memory


@pytest.mark.parametrize(
    ("name", "workers", "acceptors"),
    [
        ("one core", 1, 1),
        ("two cores", 2, 2),
        ("four cores", 3, 2),
        ("four cores with siblings", 3, 2),
        ("sixteen cores, two nodes", 14, 2),
        ("32 cores with siblings, two nodes", 28, 4),
        ("64 cores", 56, 8),
        ("128 cores with siblings, eight nodes", 112, 16),
    ],
)
def test_workers_and_acceptors(name: str, workers: int, acceptors: int) -> None:
    found = {one.key: one.value for one in propose(MACHINES[name])}
    assert (found["process.workers"], found["process.acceptors"]) == (workers, acceptors)


def test_cores_of_interrupts_are_spared_first_and_siblings_are_the_acceptors() -> None:
    found = {one.key: one.value for one in propose(MACHINES["four cores"])}
    assert (found["process.worker_cores"], found["process.acceptor_cores"]) == ("1-3", "0")
    found = {one.key: one.value for one in propose(MACHINES["32 cores with siblings, two nodes"])}
    assert found["process.worker_cores"] == "4-31"
    assert found["process.acceptor_cores"] == "0-3,32-63"


def test_many_small_rings_bound_the_workers() -> None:
    found = {one.key: one for one in propose(MACHINES["128 cores with little memory"])}
    assert int(found["process.workers"].value) < 112
    assert "rings of more than an eighth of /dev/shm" in found["process.workers"].why


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: cost.what)
def test_costs_are_those_of_the_performance_page(cost: Cost) -> None:
    """To a tenth: the page is measured anew now and then, and proposals are rough."""
    row = next(line for line in (DOCS / "performance.md").read_text().splitlines() if line.lstrip("-| ").startswith(cost.row))
    cells = [re.findall(r"\d[\d.]*", cell) for cell in row.strip("-| ").split("|")]
    assert cost.value == pytest.approx(float(cells[cost.place][0]) * cost.factor, rel=0.1), row


def test_the_page_shows_what_is_reckoned_with() -> None:
    assert table() in (DOCS / "operation-tune.md").read_text()


def test_weights_that_no_longer_fit_the_workers_are_not_written(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('[process]\nworkers = 900\nworker_weights = "' + ",".join(["2"] * 899 + ["1"]) + '"\n')
    before = file.read_text()
    done = subprocess.run([str(PROGRAM), "tune", "--apply", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nothing was written" in done.stderr and "process.worker_weights" in done.stderr
    assert file.read_text() == before


def test_check_names_what_is_in_the_way() -> None:
    machine = described(8, 4, descriptors=100_000, sysctls={"net.core.somaxconn": [4096], "fs.nr_open": [100_000]})
    found = {one.text.partition(":")[0]: one for one in check(machine, Wanted(1_000_000, 10_000, 1_000))}
    assert not found["memory"].enough
    assert not found["descriptors"].enough
    assert "LimitNOFILE=262144" in found["descriptors"].remedy
    assert found["net.core.somaxconn"].remedy == "sysctl net.core.somaxconn=65536"
    assert found["10,000 messages a second"].enough
    assert all(one.enough for one in check(described(8, 64), Wanted(100_000, 100_000, 1_000)))
    tls = check(described(8, 16), Wanted(1_000_000, tls=True))
    assert any(one.text.startswith("memory") and not one.enough for one in tls)


def test_this_machine(tmp_path: Path) -> None:
    machine = read_machine()
    assert [cpu.number for cpu in machine.cpus] == sorted(psutil.Process().cpu_affinity() or [])
    assert parse_machine(machine.model_dump_json()) == machine
    file = tmp_path / "broker.toml"
    file.write_text('# mine\n[process]\n# a comment\nworkers = 7\ndata_dir = "d"\n\n[mqtt]\nmax_inflight = 5\n')
    file.chmod(0o640)
    done = subprocess.run([str(PROGRAM), "tune", "--apply", str(file)], capture_output=True, text=True, check=True)
    assert f"written to {file}" in done.stdout
    text = file.read_text()
    assert "# a comment" in text
    assert "workers = 7" not in text
    assert load(file).settings.mqtt.max_inflight == 5
    assert file.stat().st_mode & 0o777 == 0o640
    again = subprocess.run([str(PROGRAM), "tune", "--apply", str(file)], capture_output=True, text=True, check=True)
    assert again.returncode == 0
    assert file.read_text() == text
    with Broker(len(machine.cpus), arguments=("--config", str(file))) as broker, Client(broker.address, 5) as client:
        client.ping()


def test_a_wrong_file_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[mqtt]\nmax_inflight = -1\n")
    done = subprocess.run([str(PROGRAM), "tune", "--apply", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "nothing was written" in done.stderr
    assert file.read_text() == "[mqtt]\nmax_inflight = -1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["broker.toml"]


def test_another_machine_by_its_description(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(MACHINES["64 cores"].model_dump_json())
    done = subprocess.run([str(PROGRAM), "tune", "--machine", str(file)], capture_output=True, text=True, check=True)
    assert "process.workers = 56" in done.stdout
    file.write_text(json.dumps({"cpus": []}))
    done = subprocess.run([str(PROGRAM), "tune", "--machine", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cpus: " in done.stderr
    with pytest.raises(MachineError, match="twice"):
        parse_machine(described(1).model_copy(update={"cpus": [Cpu(number=0, core=0)] * 2}).model_dump_json())


def test_workers_and_acceptors_are_kept_to_the_cores_they_are_given() -> None:
    last = (psutil.Process().cpu_affinity() or [0])[-1]
    settings = {"process.worker_cores": str(last), "process.acceptor_cores": str(last)}
    with Broker(2, settings) as broker:
        for title in ("worker", "acceptor"):
            for pid in broker.child_pids(title):
                assert psutil.Process(pid).cpu_affinity() == [last]


def test_a_core_that_is_not_there_is_named() -> None:
    with pytest.raises(AssertionError, match=r"process.worker_cores: must be cores of this broker .*, got 4000: no core 4000"):
        Broker(1, {"process.worker_cores": "4000"}).start()


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,1", "1-", "-1", "0-9999", "true"])
def test_what_is_no_list_of_cores(text: str) -> None:
    assert core_numbers(text) == []
