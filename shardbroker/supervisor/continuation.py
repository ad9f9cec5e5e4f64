"""What the installed program does in an upgrade: it answers what would happen, and continues the broker behind execve."""

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import psutil

from shardbroker import __version__
from shardbroker.config import ConfigError, Loaded
from shardbroker.logs.phrases import log_line, print_line
from shardbroker.supervisor.image import Image, UpgradeError, UselessError, look, read
from shardbroker.supervisor.tree import Supervisor
from shardbroker.supervisor.upgrade import own_program
from shm.counters import Counters
from shm.epochs import Epochs
from shm.requests import DRAINED, MOVED, REFUSED
from shm.ring import Inbox
from shm.roles import load
from shm.view import ViewSegment

__all__ = ["check", "run"]

LAST_DESCRIPTOR = 1 << 20
"""Descriptors up to this number are closed before a start that follows a failure."""


def check(memory: int, load_settings: Callable[[], Loaded]) -> int:
    """Writes what would happen with the broker whose state is in the memfd, as JSON; nothing of it is touched."""
    found = answer(memory, load_settings)
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()
    return 0


def answer(memory: int, load_settings: Callable[[], Loaded]) -> dict[str, Any]:
    """Returns {"way", "reason", "version", "moves_workers", "moves_roles"}: everything that could fail behind execve has been
    tried."""
    found: dict[str, Any] = {"way": MOVED, "reason": "", "version": __version__, "moves_workers": True, "moves_roles": ()}
    try:
        image = look(memory)
        data_dir = load_settings().settings.process.data_dir
        if data_dir.resolve() != image.topology.data_dir:
            raise UselessError(f"the configuration has another data directory: {data_dir}")
        _load(image)
        _attach(image)
        found |= {"moves_workers": image.moves_workers, "moves_roles": image.moves_roles}
    except (UselessError, ConfigError) as error:
        found |= {"way": REFUSED, "reason": str(error)}
    except UpgradeError as error:
        found |= {"way": DRAINED, "reason": str(error)}
    return found


def _load(image: Image) -> None:
    """Loads the code of all processes that run. Raises UselessError."""
    for place in image.topology.places:
        if place.slot in image.kept["children"]:
            try:
                load(place.role.entry)
            except Exception as error:
                raise UselessError(f"{place.title} cannot be loaded: {type(error).__name__}: {error}") from error


def _attach(image: Image) -> None:
    """Attaches to the segments, which compare magic numbers and sizes. Raises UpgradeError."""
    topology = image.topology
    try:
        Counters.attach(topology.counters_name)
        Epochs.attach(topology.epochs_name)
        for number in range(topology.processes):
            Inbox.attach(topology.inbox_name(number)).close()
        if topology.links:
            ViewSegment.attach(topology.view_name)
    except (OSError, ValueError) as error:
        raise UpgradeError(f"shared memory: {error}") from None


def run(memory: int, load_settings: Callable[[], Loaded]) -> int:
    """Continues the broker until it is stopped; returns the exit code. Raises StartError."""
    service_manager = "NOTIFY_SOCKET" in os.environ
    try:
        image = read(memory, load_settings())
        supervisor = Supervisor(image.topology.settings, loaded=image.topology.loaded)
    except Exception as error:
        _give_up(error, service_manager)
    try:
        return supervisor.continue_(image)
    except UpgradeError as error:
        _give_up(error, service_manager)


def _give_up(error: Exception, service_manager: bool) -> NoReturn:
    """Kills all processes, and runs the installed program from its start. Journals and rings are those of a killed broker."""
    print_line("ERROR", "supervisor", log_line("upgrade failed", reason=f"{type(error).__name__}: {error}"))
    if service_manager:
        os._exit(1)  # the processes end with this one, and the service manager starts the broker
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            child.send_signal(signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child.pid, 0)
    os.closerange(3, LAST_DESCRIPTOR)
    program = own_program()
    os.execve(program[0], program, os.environ)
