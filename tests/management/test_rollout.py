"""The manager's end of the road of settings: announcements, processes that are behind, changes that were not announced."""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardbroker.config import Settings
from shardbroker.control import ControlError
from shardbroker.management.rollout import Rollout
from shm.channels import SUPERVISOR
from shm.counters import Counters, ProcessState
from shm.in_force import InForce
from shm.roles import ACCEPTOR, INTEGRATIONS, MANAGER, ROLES, WORKER, Cores, lay_places
from shm.topology import Topology


@pytest.fixture
def topology() -> Iterator[Topology]:
    settings = Settings.model_validate({"process": {"workers": 2, "acceptors": 1}})
    places = lay_places(ROLES, settings, Cores((0, 1), (0, 1)))
    bells = tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for place in places if place.role.inbox)
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as directory:
        one = Topology(
            instance="test", runtime_dir=Path(directory), data_dir=Path("/nonexistent"), places=places, ring_bytes=1 << 16,
            doorbells=bells, channels={}, listeners=(), settings=settings, parse_settings=Settings.model_validate,
        )  # fmt: skip
        yield one
    for bell in bells:
        os.close(bell)


@pytest.fixture
def counters(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counters]:
    monkeypatch.setattr("shardbroker.management.rollout.TIMEOUT_S", 0.05)
    made = Counters.create(topology.counters_name, len(topology.places))
    for place in topology.places:
        made.set_state(place.slot, ProcessState.READY)
    yield made
    made.unlink()


class Manager:
    """`problem`: the supervisor's answer, None for none at all."""

    def __init__(self, topology: Topology, counters: Counters, problem: str | None = "") -> None:
        self.told, self.complaints, self.problem = 0, list[str](), problem
        self.rollout = Rollout(topology, counters, self._tell, self.complaints.append)

    async def _tell(self) -> None:
        self.told += 1
        if self.problem is None:
            await asyncio.sleep(60)
        if self.problem:
            raise ControlError("NOT_AVAILABLE", self.problem)

    def change(self, topology: Topology, level: str, *reached: str) -> list[str]:
        async def publish() -> list[str]:
            settings = topology.settings.model_copy(update={"log": topology.settings.log.model_copy(update={"level": level})})
            self.rollout.publish(settings, frozenset(reached))
            return await self.rollout.behind()

        return asyncio.run(publish())


def rung(topology: Topology) -> list[int]:
    found = []
    for number, bell in enumerate(topology.doorbells):
        try:
            os.eventfd_read(bell)
            found.append(number)
        except BlockingIOError:
            pass
    return found


def test_only_processes_that_a_change_reaches_are_told(topology: Topology, counters: Counters) -> None:
    manager = Manager(topology, counters)
    assert manager.change(topology, "error", MANAGER, ACCEPTOR) == ["acceptor-0"]
    assert rung(topology) == [] and manager.told == 0
    assert manager.change(topology, "debug", WORKER) == ["worker-0", "worker-1", "acceptor-0"]
    assert rung(topology) == [0, 1]
    process = InForce(topology, counters, topology.slot_of(ACCEPTOR))
    assert process.settings.log.level == "debug" and not process.is_due, "a process that starts has the newest settings"
    counters.set_state(0, ProcessState.DOWN)
    assert asyncio.run(manager.rollout.behind()) == ["worker-1"], "one that is down is not waited for"


def test_a_process_loads_the_newest_of_several_changes(topology: Topology, counters: Counters) -> None:
    manager, slot = Manager(topology, counters), topology.slot_of(INTEGRATIONS)
    process = InForce(topology, counters, slot)
    assert process.settings is topology.settings and not process.is_due
    for level in ("error", "debug", "warning"):
        manager.change(topology, level, INTEGRATIONS)
    assert process.is_due and process.load().log.level == "warning" and not process.is_due
    assert asyncio.run(manager.rollout.behind()) == ["integrations"]
    process.applied()
    assert asyncio.run(manager.rollout.behind()) == []


def test_the_supervisor_acknowledges_by_its_answer(topology: Topology, counters: Counters) -> None:
    assert Manager(topology, counters).change(topology, "error", SUPERVISOR) == []
    silent = Manager(topology, counters, None)
    assert silent.change(topology, "debug", SUPERVISOR) == [SUPERVISOR]
    refusing = Manager(topology, counters, "no")
    assert refusing.change(topology, "error", SUPERVISOR) == [SUPERVISOR] and "no" in refusing.complaints[0]


def test_a_change_that_was_not_announced_is_announced_by_the_next_manager(topology: Topology, counters: Counters) -> None:
    process = InForce(topology, counters, 0)
    Manager(topology, counters).change(topology, "error", WORKER)
    wanted = counters.settings_wanted(topology.manager)
    for place in topology.places:
        counters.want_settings(place.slot, 0)  # as if it had been killed before the first word
    assert not process.is_due

    async def start() -> Manager:
        manager = Manager(topology, counters)
        manager.rollout.resume()
        await asyncio.sleep(0)
        return manager

    manager = asyncio.run(start())
    assert process.is_due and process.load().log.level == "error" and manager.told == 1
    assert counters.settings_wanted(topology.manager) == wanted
    again = asyncio.run(start())
    assert again.told == 0, "once is enough"
