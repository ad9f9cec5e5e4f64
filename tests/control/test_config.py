"""Configuration of a running broker: by `ctl config` and by SIGHUP, kept over restarts, and told when it has no effect."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.harness import Broker, Client, Publish, client_id_on, until
from tests.harness.waiting import stopped

pytestmark = pytest.mark.own_broker


def window_of(broker: Broker, client_id: str, topic: str) -> int:
    """How many unacknowledged messages a new client of this id gets."""
    with Client(broker.address, 5, client_id, auto_ack=False) as client, Client(broker.address, 5, "publisher") as publisher:
        client.subscribe(topic, 1)
        for _ in range(6):
            publisher.publish(topic, b"x", qos=1)
        count = 0
        while isinstance(client.recv(0.3), Publish):
            count += 1
        return count


def row(control: Control, key: str) -> dict[str, Any]:
    (found,) = control.call("config get", key=key)["data"]
    return dict(found)


def test_a_live_key_changes_in_every_worker_and_is_kept(tmp_path: Path) -> None:
    with Broker(3, {"log.level": "warning"}, tmp_path / "data") as broker, Control(broker.data_dir) as control:
        done = control.call("config set", key="mqtt.max_inflight", value="2")
        assert done == {"key": "mqtt.max_inflight", "value": "2", "applied": ["mqtt.max_inflight"], "needs_restart": []}
        for worker in range(3):
            assert window_of(broker, client_id_on(worker, 3, "live"), f"live/{worker}") == 2
        # A worker that is started again has it too.
        before = control.call("workers list")["data"][0]
        broker.kill_process(before["pid"])
        until(lambda: control.call("workers list")["data"][0]["starts"] > before["starts"])
        until(lambda: control.call("workers list")["data"][0]["state"] == "ready")
        assert window_of(broker, client_id_on(0, 3, "live"), "live/0") == 2
    with Broker(3, {"log.level": "warning"}, tmp_path / "data") as broker, Control(broker.data_dir) as control:
        found = row(control, "mqtt.max_inflight")
        assert found["value"] == "2" and found["source"] == f"file {tmp_path / 'data' / 'runtime.toml'}"
        assert control.call("config reset", key="mqtt.max_inflight")["value"] == "32"
        assert row(control, "mqtt.max_inflight")["source"] == "default"
        assert window_of(broker, "again", "again") == 6


def test_the_answer_comes_when_every_worker_has_the_value(tmp_path: Path) -> None:
    pool = ThreadPoolExecutor(1)
    with Broker(3, {"log.level": "warning"}, tmp_path / "data") as broker, pool, Control(broker.data_dir) as control:
        slow = control.call("workers list")["data"][2]["pid"]
        verbs = {"config set": {"key": "mqtt.max_inflight", "value": "2"}, "config reset": {"key": "mqtt.max_inflight"},
                 "topic-metrics add": {"topic": "a"}, "trace start": {"name": "t", "type": "topic", "value": "a"}}  # fmt: skip
        for verb, params in verbs.items():
            with stopped(slow):
                asked = pool.submit(control.call, verb, **params)
                with pytest.raises(TimeoutError):
                    asked.result(0.5)
            asked.result()


def test_workers_that_do_not_come_to_it_are_named(tmp_path: Path) -> None:
    with Broker(3, {"log.level": "warning"}, tmp_path / "data") as broker, Control(broker.data_dir) as control:
        with stopped(control.call("workers list")["data"][2]["pid"]):
            assert control.call("config set", key="mqtt.max_inflight", value="2")["workers_behind"] == [2]
        assert window_of(broker, client_id_on(2, 3, "late"), "late") == 2


def test_a_change_reaches_acceptors_and_names_those_that_are_behind(tmp_path: Path) -> None:
    """`mqtt.idle_timeout` starts in an acceptor, before any worker has the connection."""
    settings = {"log.level": "warning", "process.acceptors": 1}
    with Broker(1, settings, tmp_path / "data") as broker, Control(broker.data_dir) as control:
        with stopped(broker.child_pids("acceptor")[0]):
            assert control.call("config set", key="mqtt.idle_timeout", value="1h")["processes_behind"] == ["acceptor-0"]
        assert control.call("config set", key="mqtt.idle_timeout", value="300ms").keys() == {
            "key", "value", "applied", "needs_restart",
        }  # fmt: skip
        with socket.create_connection(broker.address, timeout=14.0) as silent:
            assert silent.recv(1) == b"", "closed long before the 15 s that it was at the start"
        (acceptor,) = broker.child_pids("acceptor")
        broker.kill_process(acceptor)
        until(lambda: broker.child_pids("acceptor") not in ([], [acceptor]))
        with socket.create_connection(broker.address, timeout=14.0) as silent:
            assert silent.recv(1) == b"", "an acceptor that is started again has it too"


def test_a_worker_whose_ring_was_full_gets_the_last_value(tmp_path: Path) -> None:
    settings = {"log.level": "warning", "process.ring_size": "64KB"}
    with Broker(3, settings, tmp_path / "data") as broker, Control(broker.data_dir) as control, ExitStack() as stack:
        many = 40  # more than a ring takes: each has the whole configuration with it
        pool = stack.enter_context(ThreadPoolExecutor(many))
        controls = [stack.enter_context(Control(broker.data_dir)) for _ in range(many)]
        with stopped(control.call("workers list")["data"][2]["pid"]):
            fill = [
                pool.submit(one.call, "config set", key="mqtt.max_inflight", value=str(10 + number))
                for number, one in enumerate(controls)
            ]
            assert [one.result()["workers_behind"] for one in fill] == [[2]] * many
            assert control.call("config set", key="mqtt.max_inflight", value="2")["workers_behind"] == [2]
        attempts = (f"late{number}" for number in range(100))
        until(lambda: window_of(broker, client_id_on(2, 3, name := next(attempts)), name) == 2)


def test_what_needs_a_restart_is_kept_and_says_so(tmp_path: Path) -> None:
    with Broker(1, {}, tmp_path / "data") as broker, Control(broker.data_dir) as control:
        done = control.call("config set", key="mqtt.shared_subscription_strategy", value="sticky")
        assert done["needs_restart"] == ["mqtt.shared_subscription_strategy"] and done["applied"] == []
        found = row(control, "mqtt.shared_subscription_strategy")
        assert (found["value"], found["after_restart"]) == ('"round_robin"', '"sticky"')
    with Broker(1, {}, tmp_path / "data") as broker, Control(broker.data_dir) as control:
        assert row(control, "mqtt.shared_subscription_strategy")["value"] == '"sticky"'


def test_a_value_that_stands_under_another_says_by_what_it_is_shadowed(tmp_path: Path) -> None:
    with Broker(1, {"mqtt.max_inflight": 5}, tmp_path / "data") as broker, Control(broker.data_dir) as control:
        done = control.call("config set", key="mqtt.max_inflight", value="2")
        assert done["shadowed_by"] == "--set" and done["value"] == "5" and done["applied"] == []
        assert window_of(broker, "shadowed", "shadowed") == 5


def test_sighup_reads_the_file_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[mqtt]\nmax_inflight = 3\n[log]\nlevel = 'info'\n")
    with Broker(2, {}, tmp_path / "data", arguments=(f"--config={file}",)) as broker, Control(broker.data_dir) as control:
        file.write_text("[mqtt]\nmax_inflight = 4\n[log]\nlevel = 'info'\n[process]\nring_size = '128KB'\n")
        os.kill(broker.pid, signal.SIGHUP)
        line = until(lambda: next((one for one in broker.output if "reloaded" in one), None))
        assert "applied=mqtt.max_inflight needs_restart=process.ring_size" in line
        assert window_of(broker, client_id_on(1, 2, "hup"), "hup") == 4
        file.write_text("[mqtt]\nmax_inflight = 'many'\n")
        os.kill(broker.pid, signal.SIGHUP)
        until(lambda: any("not reloaded" in one and "max_inflight" in one for one in broker.output))
        assert row(control, "mqtt.max_inflight")["value"] == "4"
        file.write_text("[mqtt]\nmax_inflight = 6\n")
        assert control.call("config reload")["applied"] == ["mqtt.max_inflight"]


def audited(broker: Broker) -> list[str]:
    return [line for line in broker.output if " audit " in line]


def test_every_change_is_in_the_audit_log_without_secrets(tmp_path: Path) -> None:
    with Broker(1, {}, tmp_path / "data") as broker, Control(broker.data_dir, by="somebody") as control:
        control.call("config set", key="mqtt.max_inflight", value="2")
        control.call("publish", topic="a", payload=b"hidden")
        with pytest.raises(ControlError):
            control.call("clients kick", clientids=["nobody"])
        until(lambda: len(audited(broker)) == 3)
        text = "".join(audited(broker))
        assert 'by=somebody verb="config set" code=OK' in text and "code=CLIENTID_NOT_FOUND" in text
        assert "verb=publish" in text and "hidden" not in text
