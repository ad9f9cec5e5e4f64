"""A real broker with one more kind of process: its row and its entry point stand here. Run as a program, with a real supervisor.

    python -m tests.supervisor.one_more '{"data_dir": ..., "set": [...]}'

Each echo notes in `events` of the data directory what comes into its inbox; every worker and the manager send it their titles when
they start. All note when they end.
"""

import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from shm.counters import Counters, ProcessState
from shm.ring import Inbox
from shm.roles import ROLES, Role, load
from shm.topology import Topology
from tests.supervisor.dummy import main, note

ECHOES = 2
WAIT_S = 0.5


def echo(topology: Topology, number: int) -> None:
    """The entry point: notes records until SIGTERM, and those that have come by then."""
    place = topology.places_of("echo")[number]
    inbox, bell = Inbox.attach(topology.inbox_name(place.slot)), topology.doorbells[place.slot]
    counters = Counters.attach(topology.counters_name)
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopping.append(number))
    note(topology.data_dir, place.title, "start", os.getpid())
    counters.set_state(place.slot, ProcessState.READY)
    while not stopping:
        take(topology, place.title, inbox)
        if inbox.go_to_sleep():
            select.select([bell], [], [], WAIT_S)
    take(topology, place.title, inbox)
    note(topology.data_dir, place.title, "stop")
    counters.set_state(place.slot, ProcessState.DOWN)


def take(topology: Topology, title: str, inbox: Inbox) -> None:
    for producer, lane in enumerate(inbox.lanes):
        while (record := lane.take()) is not None:
            note(topology.data_dir, title, "got", record.decode(), "in", "lane", producer)
        lane.give_back()


def sending(role: Role, topology: Topology, number: int = 0) -> None:
    """The broker's own process, which first sends its title to every echo."""
    own = topology.places_of(role.name)[number]
    for place in topology.places_of("echo"):
        inbox = Inbox.attach(topology.inbox_name(place.slot))
        assert inbox.lanes[own.slot].put(own.title.encode())
        if inbox.take_bell():
            os.eventfd_write(topology.doorbells[place.slot], 1)
    note(topology.data_dir, own.title, "start", os.getpid())
    load(role.entry)(topology, *own.arguments)
    note(topology.data_dir, own.title, "stop")


def roles() -> list[Role]:
    entries: dict[str, Callable[..., Any]] = {role.name: partial(sending, role) for role in ROLES if role.inbox}
    one_more = Role("echo", echo, drain_order=15, inbox=True, count=lambda settings, cores: ECHOES)
    return [*(replace(role, entry=entries.get(role.name, role.entry)) for role in ROLES), one_more]


if __name__ == "__main__":
    sys.exit(main(roles()))
