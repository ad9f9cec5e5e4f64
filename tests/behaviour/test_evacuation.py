"""Evacuation of a broker alone: its connections end, its sessions stay."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.harness import Client, client_id_on
from tests.harness.broker import Broker
from tests.harness.waiting import until

KEPT = {"session_expiry_interval": 300}
AT_ONCE = {"wait": "0s", "wait_takeover": "0s"}
RATE = 10


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(2) as found:
        yield found


def call(broker: Broker, verb: str, **params: Any) -> Any:
    with Control(broker.data_dir) as control:
        return control.call(verb, **params)


def status(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = call(broker, "node evacuate status")
    return found


def await_empty(broker: Broker) -> None:
    until(lambda: status(broker).get("may_be_stopped"), lambda: str(status(broker)))


def test_clients_are_turned_away_and_disconnected_at_a_rate(broker: Broker) -> None:
    clients = [
        Client(broker.address, 5 - number % 2, client_id_on(number % 2, 2, f"c{number}-"), timeout=20) for number in range(2 * RATE)
    ]
    began = time.monotonic()
    call(broker, "node evacuate start", conn_rate=RATE, redirect_to="other:1883", **AT_ONCE)
    until(lambda: status(broker)["state"] == "evicting_conns")
    with Client(broker.address, 5, "new", connect=False) as new:
        assert new.connect(expect_code=0x9C).properties["server_reference"] == "other:1883"
    with Client(broker.address, 4, "new", connect=False) as new:
        new.connect(expect_code=3)
    for client in clients:
        packet = client.expect_close(20)
        if client.version == 5:
            assert packet is not None and packet.code == 0x9C
            assert packet.properties["server_reference"] == "other:1883"
    lasted = time.monotonic() - began
    assert lasted > 2 * RATE / RATE - 1.0, f"{2 * RATE} clients in {lasted:.1f} s"
    await_empty(broker)
    found = status(broker)
    stats = {"initial_connected": 2 * RATE, "current_connected": 0, "initial_sessions": 2 * RATE, "current_sessions": 0}
    assert found["stats"] == stats
    assert found["session_recipients"] == []


def test_sessions_stay_and_are_there_when_clients_are_accepted_again(tmp_path: Path) -> None:
    broker = Broker(2, data_dir=tmp_path / "data")
    with broker:
        the_sessions_stay(broker)


def the_sessions_stay(broker: Broker) -> None:
    with Client(broker.address, 5, "c", clean=False, properties=KEPT) as client:
        client.subscribe("t", 1)
    call(broker, "node evacuate start", **AT_ONCE)
    await_empty(broker)
    assert "sessions do not move (cluster.registry), its 1 stay on its disk" in status(broker)["message"]
    broker.stop()
    broker.start()
    with Client(broker.address, 5, "c", connect=False) as client:
        client.connect(expect_code=0x9C)  # a restart does not end it
    assert status(broker)["status"] == "enabled"
    assert call(broker, "node evacuate stop") == {"status": "disabled"}
    with Client(broker.address, 5, "c", clean=False, properties=KEPT) as client:
        assert client.connack is not None and client.connack.session_present
    with pytest.raises(ControlError, match="this node is not being evacuated"):
        call(broker, "node evacuate stop")


def test_clients_are_accepted_while_load_balancers_are_told(broker: Broker) -> None:
    started = call(broker, "node evacuate start", wait="1h")
    assert (started["status"], started["state"]) == ("enabled", "waiting_health_check")
    with Client(broker.address, 5, "c"), pytest.raises(ControlError, match="is being evacuated already"):
        call(broker, "node evacuate start")
    for process in ("manager", "worker-0"):
        (pid,) = broker.child_pids(process)
        broker.kill_process(pid)
        until(lambda: broker.child_pids(process) not in ([], [pid]))  # noqa: B023
    until(lambda: state_of(broker) == "waiting_health_check")
    with Client(broker.address, 5, client_id_on(0, 2), timeout=20):
        pass


def state_of(broker: Broker) -> str:
    try:
        return str(status(broker).get("state"))
    except (ControlError, OSError):
        return ""


def test_a_worker_that_is_started_again_turns_clients_away(broker: Broker) -> None:
    call(broker, "node evacuate start", **AT_ONCE)
    await_empty(broker)
    (manager,), (pid,) = broker.child_pids("manager"), broker.child_pids("worker-1")
    broker.kill_process(manager)
    broker.kill_process(pid)
    until(lambda: broker.child_pids("worker-1") not in ([], [pid]))
    with Client(broker.address, 5, client_id_on(1, 2), timeout=20, connect=False) as client:
        client.connect(expect_code=0x9C)
    until(lambda: state_of(broker) == "prohibiting")


def test_nodes_for_sessions_need_a_cluster(broker: Broker) -> None:
    with pytest.raises(ControlError, match="migrate_to: must be left out, sessions of this node do not move"):
        call(broker, "node evacuate start", migrate_to=["n2"])
