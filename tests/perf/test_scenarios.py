"""Every scenario and verb against a real broker: all messages come, and what is counted is what was done."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from perf import engine as engine_module
from perf import measure as measure_module
from perf.engine import LoadError
from perf.fleet import check_room
from perf.measure import FAULTS, Result, compare_slices, run_plan, sound
from perf.plan import Plan, PlanError
from perf.report import table
from tests.harness.broker import AnyBroker, Broker
from tests.harness.client import Client
from tests.harness.waiting import stopped
from tests.harness.wire import Publish
from tests.perf.stub import Stub

pytestmark = pytest.mark.own_broker
PROGRAM = str(Path(sys.executable).with_name("shardbroker"))
PATIENCE_S = 60.0
"""Without a delivery, before a run has stalled: a machine with other work may not run a worker for seconds, and loses nothing."""


@pytest.fixture(autouse=True)
def _late_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "STALL_S", PATIENCE_S)


def run(broker: AnyBroker, **values: Any) -> Result:
    pid = broker.process.pid if isinstance(broker, Broker) and broker.process else None
    return run_plan(Plan(**values), *broker.address, pid)


def test_fanin_says_what_a_full_queue_may_have_dropped(broker_with: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 messages may wait for the subscriber, and the broker keeps 10."""
    monkeypatch.undo()  # what is lost ends a run by a stall
    own = broker_with(mqtt__max_mqueue_len=10, mqtt__max_inflight=1)
    load = {"scenario": "fanin", "publishers": 20, "subscribers": 1, "messages": 3000, "qos": 1}
    result = run(own, **load, window=100)
    assert result["lost"] and not sound(result)
    assert "2,000 messages wait for a subscriber" in table(result) and "mqtt.max_mqueue_len" in table(result)
    sound_one = run(own, **load | {"publishers": 2, "messages": 200}, window=4)
    assert sound(sound_one) and "mqtt.max_mqueue_len" not in table(sound_one)


def test_fanin_is_sound_while_a_member_is_slow(broker: AnyBroker) -> None:
    """A member of the group gets its messages long after the others, and the publishers go on meanwhile: nothing is lost."""
    assert isinstance(broker, Broker)
    for _ in range(3):
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run, broker, scenario="fanin", publishers=4, subscribers=6, messages=200_000, window=64)
            time.sleep(1.0)
            for pid in broker.child_pids("sb-worker")[:2]:
                with stopped(pid):
                    time.sleep(0.05)
            result = running.result()
        assert sound(result), {name: result[name] for name in ("lost", "duplicates", "disordered", "stalls")}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize(
    ("values", "delivered"),
    [
        ({"messages": 500}, 500),
        ({"messages": 500, "qos": 1}, 500),
        ({"messages": 300, "qos": 2, "window": 20}, 300),
        ({"scenario": "fanout", "publishers": 1, "subscribers": 20, "messages": 100, "window": 20}, 2000),
        ({"scenario": "fanin", "publishers": 20, "subscribers": 3, "messages": 600, "window": 10, "qos": 1}, 600),
        ({"scenario": "wildcard", "publishers": 2, "subscribers": 6, "others": 30, "messages": 500}, 1500),
        ({"scenario": "churn", "others": 8, "messages": 2000, "rate": 4000.0}, 2000),
        ({"scenario": "retained", "publishers": 1, "subscribers": 8, "topics": 50, "window": 3}, 400),
    ],
    ids=lambda value: value.get("scenario", "p2p") + str(value.get("qos", 0)) if isinstance(value, dict) else "",
)
def test_messages(broker: AnyBroker, values: dict[str, Any], delivered: int, version: int, processes: int) -> None:
    result = run(broker, **values, version=version, processes=processes)
    assert sound(result), {name: result[name] for name in FAULTS if result.get(name)}
    assert result["delivered"] == result["expected"] == delivered
    assert result["opened"] == Plan(**values).clients
    assert result["latency"]["count"] == (values["subscribers"] if values.get("scenario") == "retained" else delivered)
    assert result["broker_pss_after"] > 0 and result["own_cpu_s"] > 0
    if values.get("scenario") == "churn":
        assert result["changes"] > 0 and result["changing"]["count"] == result["changes"]


def test_changes_pause_in_every_other_slice(broker: AnyBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the machine lets a slice last: both kinds alternate, no delivery is in two, and changes are due in one kind."""
    slices: list[tuple[bool, int, int]] = []

    def compare(found: list[tuple[bool, int, int]]) -> Result:
        slices.extend(found)
        return compare_slices(found)

    monkeypatch.setattr(measure_module, "compare_slices", compare)
    result = run(broker, scenario="churn", others=8, rate=4000.0, messages=12_000, change_rate=200.0, change_slice=50)
    assert sound(result) and result["change_ratios"] > 5
    assert [pausing for pausing, _, _ in slices] == [bool(number % 2) for number in range(len(slices))]
    assert all(ns >= 50e6 for _, ns, _ in slices)
    assert 0 < sum(count for _, _, count in slices) <= result["delivered"]
    paused_s = sum(ns for pausing, ns, _ in slices if pausing) / 1e9
    assert 0 < result["changes"] <= 200 * (result["seconds"] - paused_s) + 1, "nothing changes in half of the time"


def test_slices_are_compared_with_their_neighbours() -> None:
    """The machine gets slower, and a slice with changes takes 0.9 of what it would without."""
    steady = [(bool(number % 2), 1_000_000_000, 1000 - 10 * number) for number in range(40)]
    slices = [(pausing, ns, count if pausing else round(count * 0.9)) for pausing, ns, count in steady]
    result = compare_slices(slices)
    assert result["change_ratio"] == pytest.approx(0.9, abs=0.001) and result["change_ratios"] == 17
    assert compare_slices(slices[:5]) == {}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    "values",
    [
        {"scenario": "reconnect"},
        {"scenario": "reconnect", "version": 3},
        {"scenario": "takeover"},
        {"scenario": "takeover", "version": 5, "session_expiry": 60},
    ],
)
def test_clients_that_come_and_go(broker: AnyBroker, values: dict[str, Any], processes: int) -> None:
    result = run(broker, publishers=0, subscribers=0, others=6, messages=100, processes=processes, **values)
    assert sound(result) and result["connections"] == result["latency"]["count"] == 100


@pytest.mark.parametrize("processes", [1, 2])
def test_clients_that_stay(broker: AnyBroker, processes: int) -> None:
    result = run(
        broker, scenario="conn", publishers=0, subscribers=0, others=300, topic=("idle/%i",), seconds=0.1, processes=processes
    )
    assert sound(result) and result["opened"] == result["opening"]["count"] == 300
    assert result["broker_pss_per_connection"] >= 0 and result["broker_connect_cpu_s_per_million"] >= 0


def test_retained_messages_are_removed_again(broker: AnyBroker, new_id: Any) -> None:
    run(broker, scenario="retained", publishers=1, subscribers=2, topics=20, qos=1, run="cleared")
    with Client(broker.address, 4, new_id()) as client:
        client.subscribe("perf/cleared/#")
        assert client.recv(0.3) is None


def test_names_are_filled_in(broker: AnyBroker, new_id: Any) -> None:
    with Client(broker.address, 4, new_id()) as client:
        client.subscribe("names/#")
        run(
            broker, scenario="pub", publishers=2, subscribers=0, messages=2, topic=("names/%i/%c",), client_id="device-%i",
            start_number=7, message=b"%c says %i",
        )  # fmt: skip
        got = {(packet.topic, bytes(packet.payload)) for packet in (client.recv(), client.recv()) if isinstance(packet, Publish)}
    assert got == {("names/7/device-7", b"device-7 says 7"), ("names/8/device-8", b"device-8 says 8")}


@pytest.mark.parametrize("processes", ["1", "2"])
def test_pub_and_sub(broker: AnyBroker, processes: str) -> None:
    """Two programs that know nothing of each other but the topic; sub ends at Ctrl-C."""
    host, port = broker.address
    where = ["-h", host, "-p", str(port), "--json", "--processes", processes]
    command = [PROGRAM, "perf", "sub", *where, "-c", "3", "-t", f"both/{processes}/#", "-q", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as sub:
        assert sub.stderr and sub.stdout
        while "3 clients" not in sub.stderr.readline():
            pass
        pub = [PROGRAM, "perf", "pub", *where, "-c", "4", "-t", f"both/{processes}/%i", "-q", "1", "-I", "0", "-L", "400"]
        published = json.loads(subprocess.run(pub, stdout=subprocess.PIPE, check=True).stdout)
        while "1,200" not in sub.stderr.readline():
            pass
        sub.send_signal(signal.SIGINT)
        received = json.loads(sub.stdout.read())
        sub.stderr.read()
    assert sub.returncode == 0 and received["interrupted"]
    assert published["published"] == published["acknowledged"] == 400
    assert received["delivered"] == received["latency"]["count"] == 1200
    assert received["lost"] == received["duplicates"] == received["disordered"] == 0


def test_connect_rate(broker: AnyBroker) -> None:
    result = run(broker, scenario="conn", publishers=0, subscribers=0, others=11, connect_rate=50.0, seconds=0.01)
    assert result["connect_s"] >= 0.2


def test_own_addresses_take_turns() -> None:
    with Stub() as stub:
        run_plan(Plan(ifaddr=("127.0.0.2", "127.0.0.3"), messages=10), "127.0.0.1", stub.port)
        assert sorted(stub.peers) == ["127.0.0.2"] * 5 + ["127.0.0.3"] * 5
        with pytest.raises(LoadError, match=r"192\.0\.2\.77: not of this machine"):
            run_plan(Plan(ifaddr=("192.0.2.77",)), "127.0.0.1", stub.port)


def test_connect_packet() -> None:
    with Stub() as stub:
        plan = Plan(
            scenario="conn", publishers=0, subscribers=0, others=1, seconds=0.01, client_id="c%i", username="u%i", password="p"
        )
        run_plan(plan, "127.0.0.1", stub.port)
        assert stub.greetings == [b"\x10\x15\0\x04MQTT\x04\xc2\0\0\0\x02c0\0\x02u0\0\x01p"]


def test_keepalive_is_kept(broker: AnyBroker) -> None:
    result = run(broker, scenario="conn", publishers=0, subscribers=0, others=3, keepalive=1, seconds=2.5)
    assert sound(result) and result["opened"] == 3


@pytest.mark.parametrize("processes", [1, 2])
def test_nobody_there(processes: int) -> None:
    with pytest.raises(LoadError, match=r"127\.0\.0\.1:1: .*refused"):
        run_plan(Plan(processes=processes), "127.0.0.1", 1)


def test_too_many_clients() -> None:
    with pytest.raises(PlanError, match=r"processes = 1: 400,000 clients .* at least --processes"):
        check_room(Plan(publishers=200_000, subscribers=200_000))
    with pytest.raises(PlanError, match=r"ifaddr = one address: .* own addresses"):
        check_room(Plan(publishers=200_000, subscribers=200_000, processes=64))


def test_rules_are_measured_through_a_broker_of_their_own() -> None:
    """`shardbroker perf rules`: every figure is there; whether demands are met depends on the machine."""
    command = [PROGRAM, "perf", "rules", "--messages", "10000", "--seconds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["unit"] for one in figures] == [
        "KB", "\u00b5s of CPU a message", "messages/s", "times one rule", "evaluations/s", "ms", "ms", "messages/s",
    ]  # fmt: skip
    assert all(one["measured"] > 0 for one in figures)
    refused = subprocess.run([PROGRAM, "perf", "rules", "--messages", "1"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "allowed is a whole number from 10,000" in refused.stderr


def test_sinks_are_measured_alone_and_through_a_broker() -> None:
    """`shardbroker perf sinks`: every figure is there, and what is wrong is said."""
    command = [PROGRAM, "perf", "sinks", "--type", "file", "--rows", "2000", "--json", "--connector"]
    done = subprocess.run([*command, '{"filepath": "rows"}'], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["unit"] for one in figures] == ["\u00b5s of CPU a row", "rows/s", "\u00b5s of CPU of flows a row", "rows/s"]
    assert all(one["measured"] > 0 for one in figures)
    for connector, said in (('{"filepath": "../rows"}', "without .."), ('{"path": "rows"}', "path"), ("[]", "object of JSON")):
        refused = subprocess.run([*command, connector], capture_output=True, text=True, check=False)
        assert refused.returncode in (1, 2) and said in refused.stderr
