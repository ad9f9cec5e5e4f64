"""A broker of processes that do nothing but behave: run as a program, with a real supervisor.

    python -m tests.supervisor.dummy '{"data_dir": ..., "set": [...], "behaviour": {"worker-0": "stubborn"}}'

Each process appends lines to `events` in the data directory. Behaviours: "obedient" (default) becomes ready and ends on SIGTERM;
"stubborn" does not end; "stillborn" exits with code 3 before it is ready; "lame" is ready and exits with code 4 at once, and
"deserter" with code 0.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from shardbroker.config import load
from shardbroker.supervisor import StartError, Supervisor
from shm.counters import Counters, ProcessState
from shm.roles import ROLES, Role
from shm.topology import Topology


class Dummies:
    """The entry points of all roles."""

    def __init__(self, behaviour: dict[str, str]) -> None:
        self._behaviour = behaviour

    def roles(self) -> list[Role]:
        return [replace(role, entry=partial(self._live, role.name), loads_late=False) for role in ROLES]

    def _live(self, name: str, topology: Topology, number: int = 0) -> None:
        place = topology.places_of(name)[number]
        title, slot = place.title, place.slot
        behaviour = self._behaviour.get(title, "obedient")
        note(topology.data_dir, title, "start", os.getpid(), *sorted(os.sched_getaffinity(0)))
        if behaviour == "stillborn":
            sys.exit(3)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else signal.default_int_handler)
        try:
            counters = Counters.attach(topology.counters_name)
            counters.set_state(slot, ProcessState.READY)
            if behaviour in ("lame", "deserter"):
                sys.exit(4 if behaviour == "lame" else 0)
            while True:
                time.sleep(60)
        except KeyboardInterrupt:
            note(topology.data_dir, title, "stop")
            counters.set_state(slot, ProcessState.DOWN)


def note(data_dir: Path, *words: object) -> None:
    """Appends a line; lines of several processes do not mix."""
    descriptor = os.open(data_dir / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    os.close(descriptor)


def main(roles: Sequence[Role] = ()) -> int:
    """Runs a broker of these roles, or of dummies."""
    given = json.loads(sys.argv[1])
    settings = load(None, None, ["api.bind=disabled", *given["set"]], {"process.data_dir": given["data_dir"]}).settings
    before = set(os.listdir("/proc/self/fd"))
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        code = Supervisor(settings, roles=roles or Dummies(given["behaviour"]).roles()).run()
    except StartError as error:
        print(f"cannot start: {error}", file=sys.stderr)
        code = 1
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    left = {number: _target(number) for number in set(os.listdir("/proc/self/fd")) - before}
    print("descriptors left:", {number: target for number, target in left.items() if target}, flush=True)
    return code


def _target(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        return ""  # the one by which the directory was read


if __name__ == "__main__":
    sys.exit(main())
