"""Each live key of `mqtt` arrives in a running worker by the road of all settings: file, generation, pass, acknowledgement."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config import Settings, load
from shardbroker.config.c_fields import c_fields
from shardbroker.config.live import reach_of, replaced
from shardbroker.config.settings import Mqtt
from shardbroker.management.rollout import Rollout
from shardbroker.stores.registry import Registry
from shardbroker.stores.retained import RetainedStore
from shardbroker.supervisor.layout import lay_out, tear_down
from shardbroker.worker.assembly import assemble
from shardbroker.worker.memory import MemoryWatch
from shm.counters import Counters, ProcessState
from shm.epochs import Epochs
from shm.in_force import InForce
from shm.ring import Inbox
from shm.routes import RouteTable

KEYS = [key for key, _, _ in c_fields(Mqtt)]
OTHERS: dict[str, Any] = {
    "server_keepalive": 30.0, "retry_interval": 7.0, "mqueue_default_priority": "highest", "mqueue_overflow": "push_back",
    "push_back_topics": ["orders/#"],
}  # fmt: skip
"""Values where the default does not give another one."""


def another(key: str) -> Any:
    """A value of this key that is not its default."""
    default = Mqtt.model_fields[key].default
    if key in OTHERS:
        return OTHERS[key]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return default - 1
    if isinstance(default, float):
        return 3.0
    return {"a": 3} if isinstance(default, dict) else "text"


class Running:
    """One worker whose passes the test calls, and the manager's end of the road."""

    def __init__(self, data_dir: Path) -> None:
        options = [f"process.data_dir={data_dir}", "process.workers=1", "process.acceptors=1", "durability.level=none"]
        self.topology = lay_out(load(None, {}, [*options, "listeners.default.bind=127.0.0.1:0"]).settings, [0])
        self.counters = Counters.attach(self.topology.counters_name)
        self.complaints: list[str] = []
        self.rollout = Rollout(self.topology, self.counters, self._supervisor, self.complaints.append)
        self.routes = RouteTable(self.topology.routes_dir)
        self.worker = assemble(
            self.topology, 0, self.counters, self.routes, RetainedStore(self.topology.retained_dir),
            Epochs.attach(self.topology.epochs_name), Registry(self.topology.registry_dir(0), create=True),
            Inbox.attach(self.topology.inbox_name(0)), MemoryWatch(self.counters, 0, 1, 0),
        )  # fmt: skip
        self.worker.in_force = InForce(self.topology, self.counters, 0)
        self.counters.set_state(0, ProcessState.READY)
        self.worker.serve()
        self.worker.one_pass(0)

    async def _supervisor(self) -> None:
        raise AssertionError("the supervisor is not reached by keys of mqtt")

    def change(self, key: str, value: Any) -> None:
        settings: Settings = replaced(self.rollout.settings, ["mqtt", key], value)
        self.rollout.publish(settings, reach_of(f"mqtt.{key}"))

    def close(self) -> None:
        self.routes.close()
        tear_down(self.topology)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    one = Running(tmp_path_factory.mktemp("data"))
    yield one
    one.close()


@pytest.mark.parametrize("key", KEYS)
def test_a_live_key_arrives_in_a_running_worker(running: Running, key: str) -> None:
    name, _, convert = next(mirror for known, _, mirror in c_fields(Mqtt) if known == key)
    before = getattr(running.worker.router, name)
    assert before == convert(getattr(running.rollout.settings.mqtt, key))
    running.change(key, another(key))
    assert getattr(running.worker.router, name) == before
    assert running.counters.settings_applied(0) < running.counters.settings_wanted(0)
    running.worker.one_pass(0)
    assert getattr(running.worker.router, name) == convert(another(key)) != before
    assert running.counters.settings_applied(0) == running.counters.settings_wanted(0)


def test_a_worker_that_has_not_passed_is_behind(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbroker.management.rollout.TIMEOUT_S", 0.05)
    running.change("max_inflight", 3)
    assert asyncio.run(running.rollout.behind()) == ["worker-0"]
    running.worker.one_pass(0)
    assert asyncio.run(running.rollout.behind()) == []


def test_settings_that_cannot_be_applied_are_logged_and_not_acknowledged(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardbroker.management.rollout.TIMEOUT_S", 0.05)
    loads = []

    def fails() -> None:
        loads.append(True)
        raise OSError("no memory")

    in_force = running.worker.in_force
    running.worker.in_force = type("Failing", (), {"is_due": True, "load": staticmethod(fails)})()
    running.change("max_inflight", 4)
    for _ in range(3):
        running.worker.one_pass(0)
    assert len(loads) == 1, "it is not tried again in each pass"
    assert asyncio.run(running.rollout.behind()) == ["worker-0"]
    running.worker.in_force = in_force
    running.change("max_inflight", 5)
    running.worker.one_pass(0)
    assert running.worker.router.max_inflight == 5 and asyncio.run(running.rollout.behind()) == []
