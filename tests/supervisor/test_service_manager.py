"""The broker and its service manager: readiness, reload, status, and a watchdog that means something."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from shardbroker.supervisor.notify import Notifier, Watchdog
from tests.harness import Broker, Client, Publish, client_id_on
from tests.harness.service_manager import ServiceManager
from tests.harness.waiting import stopped, until

pytestmark = pytest.mark.own_broker


def test_ready_reload_and_stop_are_told(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('[mqtt]\nmax_inflight = 7\n')
    with ServiceManager() as manager:
        with manager.supervise(Broker(2, arguments=("--config", str(config)))) as broker:
            ready = manager.until("READY")
            assert ready["STATUS"] == "all processes ready; 0 connections, 0 sessions"

            config.write_text('[mqtt]\nmax_inflight = 8\n')
            before_us = time.monotonic_ns() // 1000
            os.kill(broker.pid, signal.SIGHUP)
            reloading = manager.until("RELOADING")
            assert before_us <= int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
            assert manager.until("READY")["STATUS"].startswith("all processes ready")

            config.write_text('[mqtt]\nmax_inflight = -8\n')
            os.kill(broker.pid, signal.SIGHUP)
            manager.until("RELOADING")
            assert manager.until("READY")["STATUS"].startswith("configuration not reloaded: ")
        assert int(manager.until("STOPPING")["EXTEND_TIMEOUT_USEC"]) >= 10_000_000


def test_streams_and_rules_are_in_force_when_the_end_of_a_reload_is_told(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("")
    with ServiceManager() as manager, manager.supervise(Broker(2, arguments=("--config", str(config)))) as broker:
        manager.until("READY")
        for number in range(1, 4):
            names = [f"s{one}" for one in range(number)]
            config.write_text(
                "".join(f'[streams.{name}]\ntopic_filter = "{name}/#"\n' for name in names)
                + "".join(
                    f'[rules.{name}]\nsql = "SELECT * FROM \\"{name}/in\\""\n'
                    f'actions = [{{function = "republish", args = {{topic = "{name}/out", qos = 1}}}}]\n'
                    for name in names
                )
            )
            os.kill(broker.pid, signal.SIGHUP)
            manager.until("RELOADING")
            assert manager.until("READY")["STATUS"].startswith("all processes ready")
            with Client(broker.address, 5, client_id_on(number % 2, 2, "reader")) as client:
                assert client.subscribe(f"$stream/{names[-1]}", 1).codes == (1,)
                client.subscribe(f"{names[-1]}/out", 1)
                client.publish(f"{names[-1]}/in", b"{}", 1)
                arrived = {client.expect(Publish).topic, client.expect(Publish).topic}
                assert arrived == {f"{names[-1]}/in", f"{names[-1]}/out"}


def test_no_sign_of_life_while_a_worker_or_an_acceptor_stands_still() -> None:
    with ServiceManager(watchdog_s=4.0) as manager, manager.supervise(Broker(2)) as broker:
        for title in ("worker-1", "acceptor-0"):
            manager.until("WATCHDOG")
            manager.until("WATCHDOG")
            with stopped(broker.child_pids(title)[0]):
                manager.seen("WATCHDOG", 1.2)  # its last turn may be of a moment ago
                assert not manager.seen("WATCHDOG", 2.5)
                until(lambda: any("processes hang" in line and title in line for line in broker.output))  # noqa: B023
            manager.until("WATCHDOG")


def test_signs_of_life_go_on_for_a_worker_that_dies_and_is_started_again() -> None:
    with ServiceManager(watchdog_s=4.0) as manager, manager.supervise(Broker(2)) as broker:
        manager.until("WATCHDOG")
        broker.kill_process(broker.child_pids("worker-0")[0])
        for _ in range(3):
            assert manager.seen("WATCHDOG", 4.0)
        with Client(broker.address, 5) as client:
            client.ping()


def test_signs_of_life_are_asked_of_the_process_that_is_named_only() -> None:
    def notifier(**environment: str) -> Notifier:
        return Notifier(environment)

    assert notifier(WATCHDOG_USEC="3000000").watchdog_s == 3.0
    assert notifier(WATCHDOG_USEC="3000000", WATCHDOG_PID=str(os.getpid())).watchdog_s == 3.0
    assert notifier(WATCHDOG_USEC="3000000", WATCHDOG_PID="1").watchdog_s == 0.0
    assert notifier(WATCHDOG_USEC="soon").watchdog_s == 0.0
    assert not notifier().listened_to


def test_a_service_manager_that_is_not_there_disturbs_nobody() -> None:
    notifier = Notifier({"NOTIFY_SOCKET": "/nonexistent/notify"})
    notifier.ready("fine")
    notifier.close()
    notifier.alive()


def test_an_abstract_notify_socket() -> None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(f"\0shardbroker-test-{os.getpid()}")
        environment = {"NOTIFY_SOCKET": f"@shardbroker-test-{os.getpid()}"}
        notifier = Notifier(environment)
        notifier.status("here")
        assert end.recv(100) == b"STATUS=here"
        assert not environment, "processes that are started later must not speak for the broker"
        notifier.close()


def test_everybody_has_to_turn_between_two_signs_of_life() -> None:
    signs = {"worker-0": 0, "worker-1": 0}
    seen: Mapping[str, int] = signs
    watchdog = Watchdog(8.0, lambda: seen, 0.0)
    assert watchdog.due == 2.0
    signs["worker-0"] += 1
    assert watchdog.look(2.0) == (False, None)
    signs["worker-1"] += 1
    assert watchdog.look(4.0) == (True, None)
    assert watchdog.look(6.0) == (False, None)
    alive, line = watchdog.look(8.0)
    assert not alive
    assert line is not None and "processes=worker-0,worker-1 " in line
    assert watchdog.look(10.0) == (False, None), "one line is enough"
    signs["worker-0"] += 1
    signs["worker-1"] += 1
    assert watchdog.look(12.0) == (True, None)
