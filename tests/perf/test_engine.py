"""The tool says of a faulty broker what its faults are, and of a good one that there are none."""

from collections.abc import Iterator

import pytest

from perf import engine as engine_module
from perf.engine import LoadError
from perf.launch import LaunchError, Running, launched
from perf.measure import Result, run_plan, sound
from perf.plan import Plan
from perf.report import comparison, json_line, table
from tests.harness.needed import needed
from tests.perf.stub import Fault, Stub

FAULTS = ("lost", "duplicates", "disordered", "misrouted", "refused", "disconnected", "stalls")


@pytest.fixture(autouse=True)
def _short_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "STALL_S", 0.5)


def faults(result: Result) -> dict[str, int]:
    return {name: result[name] for name in FAULTS if result[name]}


def run(plan: Plan, fault: Fault | None = None) -> Result:
    with Stub(fault) if fault else Stub() as stub:
        return run_plan(plan, "127.0.0.1", stub.port)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_good_broker(qos: int) -> None:
    result = run(Plan(publishers=2, subscribers=2, messages=400, window=50, inflight=10, qos=qos))
    assert faults(result) == {}
    assert result["published"] == result["delivered"] == result["latency"]["count"] == 400


def test_loss() -> None:
    result = run(Plan(publishers=1, subscribers=1, messages=100), lambda n, packet: [] if n % 10 == 5 else [packet])
    assert faults(result) == {"lost": 10, "stalls": 1}
    assert not sound(result)


def test_loss_that_fills_the_window_ends_the_run() -> None:
    result = run(Plan(publishers=1, subscribers=1, messages=100, window=5), lambda n, packet: [])
    assert result["stalls"] == 3 and result["lost"] == result["published"] == 15


def test_duplicates() -> None:
    result = run(Plan(publishers=1, subscribers=1, messages=100), lambda n, packet: [packet] * (2 if n % 20 == 0 else 1))
    assert faults(result) == {"duplicates": 5}


def test_disorder() -> None:
    kept: list[bytes] = []

    def swap(number: int, packet: bytes) -> list[bytes]:
        if number == 10:
            kept.append(packet)
            return []
        return [packet, kept.pop()] if number == 11 else [packet]

    assert faults(run(Plan(publishers=1, subscribers=1, messages=100), swap)) == {"disordered": 1}


def test_misrouting() -> None:
    def forge(number: int, packet: bytes) -> list[bytes]:
        head = len(packet) - 64
        other = packet[: head + 16] + (1 - packet[head + 16]).to_bytes(1) + packet[head + 17 :]
        return [packet, other] if number == 3 else [packet]

    assert faults(run(Plan(publishers=2, subscribers=2, messages=20), forge)) == {"misrouted": 1}


def test_window_bounds_what_is_under_way() -> None:
    held: list[bytes] = []
    most = 0

    def hold(number: int, packet: bytes) -> list[bytes]:
        nonlocal most
        held.append(packet)
        most = max(most, len(held))
        if len(held) < 7:
            return []
        out, held[:] = held[:], []
        return out

    result = run(Plan(publishers=1, subscribers=1, messages=70, window=7), hold)
    assert faults(result) == {} and most == 7


def test_rate() -> None:
    result = run(Plan(publishers=3, subscribers=3, messages=150, rate=300))
    assert faults(result) == {} and 0.45 < result["seconds"] < 1.5


def test_time_limit() -> None:
    result = run(Plan(publishers=1, subscribers=1, messages=1_000_000, rate=100, seconds=0.5))
    assert faults(result) == {} and 20 < result["published"] <= 60


@pytest.mark.parametrize("connack", [b"\x20\x02\x00\x05", b"\x20\x02\x00\x03"])
def test_refused_connection(connack: bytes) -> None:
    with Stub(connack=connack) as stub, pytest.raises(LoadError, match="CONNACK"):
        run_plan(Plan(), "127.0.0.1", stub.port)


@pytest.fixture(scope="module")
def mosquitto() -> Iterator[Running]:
    needed("mosquitto")
    with launched("mosquitto -c {conf}", None) as broker:
        yield broker


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(
    "plan",
    [
        {"messages": 1000},
        {"messages": 1000, "qos": 1},
        {"messages": 1000, "qos": 2},
        {"messages": 20, "payload": 300_000, "window": 4},
        {"messages": 200, "rate": 1000.0},
        {"scenario": "fanout", "publishers": 1, "subscribers": 20, "messages": 100, "window": 20},
        {"scenario": "wildcard", "publishers": 2, "subscribers": 6, "messages": 500},
        {"scenario": "reconnect", "publishers": 0, "subscribers": 0, "others": 10, "messages": 100},
    ],
    ids=lambda plan: "-".join(map(str, plan.values())),
)
def test_against_mosquitto(mosquitto: Running, plan: dict[str, int], version: int) -> None:
    result = run_plan(Plan(**plan, version=version), "127.0.0.1", mosquitto.port, mosquitto.pid)  # type: ignore[arg-type]
    assert sound(result), result
    done = result["connections"] if "connections" in result else result["delivered"] / max(1, Plan(**plan).receivers)  # type: ignore[arg-type]
    assert done == plan["messages"]
    assert result["broker_pss_after"] > 0
    assert table(result).splitlines()[0].startswith(result["scenario"])
    assert json_line(result).count("\n") == 0


def test_comparison_shows_ratios_and_faults(mosquitto: Running) -> None:
    good = run_plan(Plan(messages=100), "127.0.0.1", mosquitto.port)
    good["broker_cpu_s_per_million"] = 1.0
    text = comparison(("ours", "theirs"), [("ours", good | {"lost": 1}), ("theirs", good | {"broker_cpu_s_per_million": 4.0})])
    assert "0.250" in text and "ours: faults in 1 of 1" in text


def test_launch_leaves_nothing_behind() -> None:
    with pytest.raises(LaunchError, match="did not open port"), launched("python3 -c 'print(\"no {port}\")'", None):
        pass
    with pytest.raises(LaunchError, match="no such program"), launched("no-such-broker {port}", None):
        pass
    with pytest.raises(LaunchError, match="port"), launched("mosquitto", None):
        pass
