"""The process tree: start, watch, restart, drain."""

import json
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

from multiprocess.connection import wait

from shardbroker import __version__
from shardbroker.config import Loaded, Settings
from shardbroker.config.exposed import exposures
from shardbroker.config.gateways import handoff_path, outer_listeners, state_file
from shardbroker.logs.phrases import Line, log_line, print_line
from shardbroker.supervisor.child import Child
from shardbroker.supervisor.enrolment import enrolled
from shardbroker.supervisor.greeting import greeting
from shardbroker.supervisor.held import KEPT_PREFIX, HeldSockets, SocketStore, hand_over
from shardbroker.supervisor.image import Image, UpgradeError, save, undo_save, written
from shardbroker.supervisor.layout import (
    StartError,
    clear,
    lay_out,
    lay_out_again,
    lock_data_dir,
    set_written_by,
    tear_down,
    usable_cores,
)  # fmt: skip
from shardbroker.supervisor.listeners import Listeners
from shardbroker.supervisor.notify import LEAST_WATCHDOG_S, STATUS_S, Notifier, Watchdog
from shardbroker.supervisor.resize import Arrivals, Departure, ResizeError, Wanted, wanted_of
from shardbroker.supervisor.signals import StopSignals
from shardbroker.supervisor.upgrade import CONTINUES, PASS_S, Trial, Upgrade, own_program, parts_of
from shardbroker.worker.handoff.protocol import discard_successor, send_successor
from shm.cleanup import forget_left_over
from shm.counters import Counters, ProcessState
from shm.in_force import read_in_force
from shm.requests import DRAINED, MOVED, answer, end_requests, take_request
from shm.roles import MANAGER, ROLES, WORKER, Role, load
from shm.runtime import distrusted
from shm.topology import LeftOver, Topology

__all__ = ["Supervisor"]

STOP_MARGIN_S = 5.0
"""Longest time of a stop besides waiting for processes: files and segments are removed."""
NO_PROGRESS_S = 60.0
"""Longest time without progress of a process that starts; a recovery makes progress with each block, and may take any time."""
START_ATTEMPTS = 5
"""Processes in a row that die before they were ready, after which a broker that never was ready gives up."""
LEFT_OVER_S = 5.0
"""Seconds that the rings of a killed broker are kept after all processes are ready: a worker that dies then needs them."""
FILES_S = 1.0
"""Seconds between two checks of the listeners' TLS files; without files there is no check."""
RELOAD_S = 30.0
"""Longest wait for the manager to reload the configuration, before the service manager is notified of the end."""
DISTRUSTED_LINES = 10
"""Most names in shared memory of other users that are logged."""
REPLACE_S = 25.0
"""Longest time in which a worker is replaced; its successor is killed then. Each step has a shorter limit of its own, and ctl waits
for 30 s."""
HANDED_OVER_S = 3.0
"""Longest wait for the end of a worker that has handed over everything, when the broker stops: it closes sockets and journal."""
CHECKED_S = 60.0
"""How long the answer of an installed program holds."""
FIRST = (WORKER, MANAGER)
"""Roles that clients wait for after `ctl workers set`: the manager writes files that workers read when they serve."""
READY_POLL_S = 0.02
"""Processes publish their state in shared memory, which cannot be waited on."""


class Supervisor:
    """Runs a broker until SIGTERM or SIGINT. Each object runs once, in the main thread."""

    def __init__(self, settings: Settings, loaded: Loaded | None = None, roles: Sequence[Role] = ROLES) -> None:
        self._settings = settings
        self._loaded = loaded
        self._roles = roles
        for role in roles:
            if not role.loads_late:
                load(role.entry)  # not earlier: commands that start nothing do not load the data plane
        self._ready = False
        self._exposures: list[str] = []
        self._left_over: tuple[LeftOver, ...] = ()
        self._forget_at = 0.0
        self._files_due = 0.0
        self._notifier = Notifier()
        self._store = SocketStore(self._notifier)
        self._watchdog: Watchdog | None = None
        self._status_due = 0.0
        self._reload_until = inf
        self._children: list[Child] = []
        self._lock = -1
        self._program = own_program()
        self._trial: Trial | None = None
        self._found: dict[str, Any] = {}
        """Answer of the installed program, with the parts of the broker."""
        self._found_at = -inf
        self._upgrade: Upgrade | None = None
        self._starts_afresh = False
        """The installed program starts instead of this one once all processes have ended."""
        self._handed: list[tuple[str, int]] = []
        self._wanted: Wanted | None = None
        """Another number of workers, to be set now."""
        self._departure: Departure | None = None
        """The workers before, until they have ended."""
        self._arrivals: tuple[tuple[int, ...], ...] = ()
        self._has_served = False
        self._resize: dict[str, Any] = {"phase": "none"}

    def run(self) -> int:
        """Starts, watches and drains the processes; returns the exit code. Raises StartError."""
        with StopSignals() as self._signals:
            self._lock = lock_data_dir(self._settings.process.data_dir)
            try:
                _raise_descriptor_limit()
                node = enrolled(self._settings, self._signals)
                if node is None:
                    return 0
                held = HeldSockets.handed_over()
                self._store.begin(held.stored)
                topology = lay_out(self._settings, usable_cores(), self._loaded, held, self._roles, node)
                for path, problem in distrusted(topology.instance)[:DISTRUSTED_LINES]:
                    used = topology.runtime_dir
                    _log(log_line("shared memory name not trusted", path=path, reason=problem, used=used), "WARNING")
                self._hold(topology, None)
            finally:
                os.close(self._lock)
                self._notifier.close()
        return self._start_afresh() if self._starts_afresh else 0

    def continue_(self, image: Image) -> int:
        """Continues the broker of the program that was in this process before; returns the exit code as run().

        Raises UpgradeError as long as this program has not everything: nothing was removed, and the next start finds journals and
        rings as those of a killed broker. Raises StartError.
        """
        with StopSignals() as self._signals:
            self._lock = image.lock
            self._hold(image.topology, image)
            os.close(self._lock)
            self._notifier.close()
        return self._start_afresh() if self._starts_afresh else 0

    def _hold(self, topology: Topology, image: Image | None) -> None:
        try:
            self._counters = Counters.attach(topology.counters_name)
            self._listeners = Listeners(topology, self._counters, self._running_acceptors)
            if image is not None:
                self._adopt(image)
        except Exception as error:
            if image is None:
                raise
            raise UpgradeError(f"{type(error).__name__}: {error}") from error
        try:
            self._serve(topology, image is None)
        finally:
            self._starts_afresh = self._starts_afresh and not self._signals.count
            if self._starts_afresh:
                self._handed = [
                    (one.name if one.activated else f"{KEPT_PREFIX}{one.name}", os.dup(descriptor))
                    for one in self._listeners.public
                    for descriptor in dict.fromkeys(one.descriptors)
                ]
            keep_paths = self._notifier.listened_to or self._starts_afresh
            tear_down(self._listeners.topology, keep_paths=keep_paths)
            del self._listeners  # it refers to this object: counters stay mapped while both refer to each other

    def _serve(self, topology: Topology, starts: bool) -> None:
        self._beats: dict[int, tuple[int, float]] = {}
        if starts:
            self._children = self._children_to_start(topology)
        try:
            for child in self._children if starts else ():
                self._start(child)
            while not self._signals.count and not self._starts_afresh:
                self._watch(None if self._ready else READY_POLL_S)
                if not self._ready and not self._signals.count:
                    self._check_ready(self._listeners.topology)
                if self._wanted is not None and not self._signals.count:
                    self._set_workers(self._wanted)
                    self._wanted = None
        finally:
            stopped_at = time.monotonic()
            self._inform(log_line("broker stops", pid=os.getpid(), longest=f"{self._longest_drain_s():g}s"))
            self._notifier.stopping("disconnecting clients", self._longest_drain_s())
            if self._trial is not None:
                self._trial.end()
            self._drain()
            forget_left_over(self._left_over)  # there are some only if every process was ready: their records are in the journals
            self._inform(log_line("broker stopped", duration=f"{time.monotonic() - stopped_at:.1f}s"))

    def _children_to_start(self, topology: Topology) -> list[Child]:
        settings = topology.settings
        for section in (settings.exhook, settings.gateways.exproto, settings.api):
            if section.missing is not None:
                raise StartError(section.missing)
        if settings.api.bind == "auto" and settings.api.lacking is not None:
            _log(log_line("dashboard left out", reason=settings.api.lacking), "WARNING")
        listeners = [one.settings for one in topology.listeners]
        return [Child(place) for place in topology.places if place.role.is_needed(settings, listeners)]

    def _start_what_is_needed(self, needed: Sequence[str] = ()) -> None:
        """Starts processes that listeners or settings now need, and those of the roles `needed`; they stay from then on."""
        _, settings = read_in_force(self._listeners.topology)
        self._listeners.follow_gateways(settings)
        topology = self._listeners.topology
        listeners = [one.settings for one in topology.listeners]
        there = {child.slot for child in self._children}
        for place in topology.places:
            if place.slot not in there and (place.role.name in needed or place.role.is_needed(settings, listeners)):
                child = Child(place)
                self._children.append(child)
                self._start(child)

    # --- watching -----------------------------------------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        self._counters.set_state(child.slot, ProcessState.STARTING)
        if child.place.role.accepts:
            self._listeners.acceptor_starts(child.place.number)
        topology = self._listeners.topology
        if self._arrivals and child.place.role.name == WORKER:
            topology = replace(topology, arrivals=self._arrivals)
        try:
            child.start(self._signals, topology)
            self._counters.note_start(child.slot, child.process.pid, time.time_ns() // 1_000_000)
        except OSError as error:
            self._counters.set_state(child.slot, ProcessState.DOWN)
            child.failed_starts += 1
            restart = f"{child.plan_restart(0.0):g}s"
            _log(log_line("process not started", process=child.title, reason=error.strerror, restart_in=restart))
            self._give_up_on(child)

    def _running_acceptors(self) -> list[int]:
        return [
            child.place.number
            for child in self._children
            if child.place.role.accepts and child.process is not None and self._counters.state(child.slot) == ProcessState.READY
        ]

    def _answer_request(self, channel: int) -> None:
        """Answers a request of the manager with the problem, or with the current listeners."""
        request = take_request(channel)
        if request is None:
            return
        if request["verb"] == "reloaded":
            answer(channel, {"problem": "", "listeners": []})
            self._on_reloaded(request["problem"])
            return
        if request["verb"] in ("workers replace", "workers replacing"):
            answer(channel, self._replace(int(request["worker"]), request["verb"] == "workers replace"))
            return
        if request["verb"] in ("workers set", "workers setting"):
            problem, is_wrong = self._why_not_set(request) if request["verb"] == "workers set" else ("", False)
            answer(channel, {"problem": problem, "is_wrong": is_wrong, "state": self._resize})
            return
        if request["verb"].startswith("upgrade "):
            self._answer_upgrade(channel, request)
            return
        if request["verb"] in ("restart", "restart check"):
            self._answer_restart(channel, request)
            return
        try:
            self._listeners.carry_out(request)
            self._start_what_is_needed(request.get("needed", ()))
            self._warn_of_exposures()
            problem = ""
        except StartError as error:
            problem = str(error)
        self._files_due = 0.0
        self._store.follow(self._listeners.public)
        answer(channel, {"problem": problem, "listeners": self._listeners.rows()})

    # --- replacing a worker ---------------------------------------------------------------------------------------------------

    def _replace(self, worker: int, begin: bool) -> dict[str, Any]:
        """Starts a process that replaces a worker while its clients stay, or tells whether one is still about to."""
        child = next(one for one in self._children if one.slot == worker)
        problem = self._begin_replacement(child) if begin else ""
        successor = child.successor
        return {"problem": problem and f"worker {worker} {problem}", "successor": 0 if successor is None else successor.pid}

    def _begin_replacement(self, child: Child) -> str:
        """Returns why a worker or a gateway is not replaced now, or an empty text."""
        if child.successor is not None:
            return "is being replaced already"
        if not self._ready:
            return "starts: not every process of the broker is ready"
        if child.process is None or self._counters.state(child.slot) != ProcessState.READY:
            return "does not serve"
        try:
            self._start_successor(child)
        except OSError as error:
            return f"cannot be replaced: {error.strerror or error}"
        return ""

    def _start_successor(self, child: Child) -> None:
        topology = self._listeners.topology
        if child.place.role.name != WORKER:
            kind = child.place.role.name.removeprefix("gateway-")
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as end:
                end.connect(str(handoff_path(topology.runtime_dir, kind, child.place.number)))
                child.start_successor(self._signals, replace(topology, predecessor=(end.fileno(), -1)), REPLACE_S)
            return
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            (channel,) = topology.receiving_ends("successions", child.place.number)
            discard_successor(channel)  # sent to a process that has died since
            send_successor(topology.sending_ends("successions")[child.place.number], ends[0].fileno())
            child.start_successor(self._signals, replace(topology, predecessor=(ends[1].fileno(), ends[0].fileno())), REPLACE_S)
        finally:
            for end in ends:
                end.close()

    def _promote(self, child: Child) -> None:
        """The process of a worker has ended, and its successor is there: it has everything, or ends as soon as it notices."""
        if child.place.role.name == WORKER:
            (channel,) = self._listeners.topology.receiving_ends("successions", child.place.number)
            discard_successor(channel)
        level, text = child.promote()
        _log(text, level)
        self._counters.note_start(child.slot, child.process.pid, time.time_ns() // 1_000_000)

    def _has_handed_over(self, child: Child) -> bool:
        """Whether the place is that of the successor, though the process has not ended."""
        return bool(self._counters.life(child.slot)[0] == child.successor.pid)

    def _on_end(self, child: Child, sentinel: int) -> None:
        if child.successor is not None and sentinel == child.successor.sentinel:
            pid = child.successor.pid
            _log(log_line("successor ended", process=child.title, pid=pid, cause=child.end_successor()))
        elif child.successor is not None:
            self._promote(child)
        else:
            self._bury(child)

    # --- another number of workers --------------------------------------------------------------------------------------------

    def _why_not_set(self, request: dict[str, Any]) -> tuple[str, bool]:
        """Returns why the number of workers is not changed, or an empty text: it is about to be; and whether the request is wrong,
        or comes at the wrong moment."""
        if busy := self._why_no_upgrade():
            return busy, False
        topology = self._listeners.topology
        try:
            _, settings = read_in_force(topology)
            wanted = wanted_of(topology, settings, request["workers"], request["weights"], usable_cores())
        except ResizeError as error:
            return str(error), True
        if pumping := next(((child, reason) for child in self._children if (reason := self._why_left(child))), None):
            return f"{pumping[0].title}: {pumping[1]}", False
        configured = self._settings.process
        self._wanted = wanted
        self._resize = {
            "phase": "moving", "problem": "", "workers": wanted.division.workers,
            "weights": wanted.weights, "before": topology.workers, "connections": 0,
            "configured": str(configured.workers), "configured_weights": configured.worker_weights,
        }  # fmt: skip
        return "", False

    def _set_workers(self, wanted: Wanted) -> None:
        """Replaces all processes; the connections stay. Raises StartError if shared memory cannot be laid out again."""
        topology = self._listeners.topology
        numbers = {"before": topology.workers, "workers": wanted.division.workers}
        self._inform(log_line("workers change", **numbers, weights=wanted.weights))
        workers = [child for child in self._children if child.place.role.name == WORKER]
        clients = [child for child in self._children if child.place.role.accepts or child.place.role.name.startswith("gateway-")]
        departure = Departure(workers, topology, self._counters, self._notifier.alive)
        try:
            if any(child.process is None or self._counters.state(child.slot) != ProcessState.READY for child in workers):
                raise ResizeError("a worker does not serve")
            for child in clients:
                if child.process is not None and child.place.role.accepts:
                    child.terminate()
            self._end_in_order([child for child in clients if child.process is not None])
            departure.rest(lambda: self._signals.count > 0)
            self._resize["connections"] = departure.part(wanted.division)
        except ResizeError as error:
            departure.go_on()
            self._resize |= {"phase": "failed", "problem": str(error)}
            _log(log_line("workers not changed", **numbers, reason=error))
            for child in clients if not self._signals.count else ():
                if child.process is None:
                    self._start(child)
            return
        departure.close()
        self._departure = departure
        (requests,) = topology.receiving_ends("requests")
        end_requests(requests)  # or the manager would wait for an answer and not end in time
        others = [child for child in self._children if child not in workers and child.process is not None]
        self._end_in_order(others)
        self._follow(topology, wanted)

    def _follow(self, before: Topology, wanted: Wanted) -> None:
        """Starts the processes that follow; those before have ended, but for the workers, which wait with their connections.

        Raises StartError."""
        assert self._departure is not None
        _, in_force = read_in_force(before)  # with what was set until the manager ended
        settings = wanted.applied_to(in_force)
        roles, stopped = {child.place.role.name for child in self._children}, self._listeners.kept()
        left_over = clear(before)
        # All that is left, should the next step fail.
        self._listeners.topology = replace(before, channels={"requests": ()}, doorbells=())
        try:
            topology = lay_out_again(before, settings, left_over, usable_cores())
        except StartError as error:
            _log(log_line("workers not changed", before=before.workers, workers=settings.process.workers, reason=error))
            self._resize |= {"phase": "failed", "problem": str(error)}
            topology = lay_out_again(before, in_force, left_over, usable_cores())
            self._departure.part_again(topology.division)
        self._counters = Counters.attach(topology.counters_name)
        self._listeners = Listeners(topology, self._counters, self._running_acceptors)
        self._listeners.restore(stopped)
        self._ready, self._beats, self._upgrade, self._found_at = False, {}, None, -inf
        listeners = [one.settings for one in topology.listeners]
        self._children = [
            Child(place)
            for place in topology.places
            if place.role.name in roles or place.role.is_needed(topology.settings, listeners)
        ]
        try:
            arrivals = Arrivals(before.workers, topology.workers)
        except OSError as error:
            raise StartError(f"no pairs between the workers before and those that follow: {error.strerror}") from None
        self._departure.give(arrivals)
        arrivals.close_before()
        self._arrivals = arrivals.for_topology()
        workers = [child for child in self._children if child.place.role.name == WORKER]
        for child in workers:
            self._start(child)
        self._arrivals = ()
        arrivals.close()
        for child in self._children:
            if child not in workers:
                self._start(child)

    def _end_change(self) -> None:
        """Notes that the number of workers has changed once all processes serve and the workers before have ended: the next change,
        or an upgrade, may follow."""
        if self._ready and self._departure is None and self._resize["phase"] == "moving":
            self._resize["phase"] = "done"
            numbers = {"before": self._resize["before"], "workers": self._resize["workers"]}
            self._inform(log_line("workers changed", **numbers, connections=self._resize["connections"]))

    # --- upgrade --------------------------------------------------------------------------------------------------------------

    def _answer_upgrade(self, channel: int, request: dict[str, Any]) -> None:
        """Answers with the problem and the state of an upgrade, and carries the request out."""
        problem, verb = "", request["verb"]
        if verb != "upgrade state":
            problem = self._why_no_upgrade()
        if verb == "upgrade check" and not problem:
            problem = self._try_installed()
        begins = verb == "upgrade begin" and not problem
        if begins and (time.monotonic() > self._found_at + CHECKED_S or self._found["way"] not in (MOVED, DRAINED)):
            problem, begins = "the installed program was not checked", False
        answer(channel, {"problem": problem, "state": self._upgrade_state()})
        if begins and self._found["way"] == DRAINED:
            self._inform(log_line("upgrade drains the broker", version=self._found["version"], reason=self._found["reason"]))
            self._starts_afresh = True
        elif begins:
            self._found_at = -inf
            problem = self._replace_program(request["parts"])
            parts = [{**part, "state": "waits"} for part in request["parts"]]
            self._upgrade = Upgrade(__version__, parts, {}, problem, ended=True)  # here only if there was no execve
            _log(log_line("upgrade not begun", reason=problem))

    def _answer_restart(self, channel: int, request: dict[str, Any]) -> None:
        """Drains the broker and starts it again with all sources of its settings; `restart check`: answers whether it would."""
        problem = self._why_no_upgrade()
        answer(channel, {"problem": problem})
        if not problem and request["verb"] == "restart":
            self._inform(log_line("broker starts again", reason=request["reason"]))
            self._starts_afresh = True

    def _why_no_upgrade(self) -> str:
        if not self._ready:
            return "not every process of the broker is ready"
        if self._trial is not None or (self._upgrade is not None and not self._upgrade.ended):
            return "an upgrade, or a check for one, is under way"
        if self._wanted is not None:
            return "the number of workers is being changed"
        if self._departure is not None:
            return "workers that were replaced have not ended yet"
        if self._left_over:
            return "rings of a killed broker are still being read; try again in a few seconds"
        if self._reload_until < inf or self._signals.reload:
            return "the configuration is being reloaded"
        if busy := [child.title for child in self._children if child.successor is not None]:
            return f"{busy[0]} is being replaced"
        return ""

    def _upgrade_state(self) -> dict[str, Any]:
        if self._trial is not None:
            return {"phase": "checking"}
        if self._found_at > -inf:
            return {"phase": "checked", "before": __version__, **self._found}
        return {"phase": "none"} if self._upgrade is None else self._upgrade.state()

    def _why_left(self, child: Child) -> str:
        if not child.place.role.accepts or child.process is None or self._counters.state(child.slot) != ProcessState.READY:
            return ""
        count = self._listeners.pumped(child.place.number)
        return f"{count} TLS connections stay in it, and would end" if count else ""

    def _stays_behind(self, child: Child) -> str:
        """Returns which clients of a gateway are disconnected though its process is moved."""
        topology, kind = self._listeners.topology, child.place.role.name.removeprefix("gateway-")
        _, settings = read_in_force(topology)
        secure = {id for own, _, id, one in outer_listeners(settings) if own == kind and one.secure}
        count = 0
        with suppress(OSError, ValueError, LookupError, TypeError):  # not recorded yet, or by another version
            rows = json.loads(state_file(topology.runtime_dir, kind, child.place.number).read_bytes())["listeners"]
            count = sum(int(row["current_connections"]) for row in rows if row["id"] in secure)
        return f"{count} clients over DTLS are disconnected: OpenSSL gives the keys of none of them away" if count else ""

    def _kept(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Returns what a program that continues this one needs besides the topology."""
        return {
            "children": {child.slot: child.kept() for child in self._children},
            "stopped": self._listeners.kept(),
            "parts": list(parts),
        }

    def _try_installed(self) -> str:
        """Starts the installed program as a child that answers what would happen; returns the problem or an empty text."""
        self._found_at = -inf
        try:
            memory = written(self._listeners.topology, self._kept(()), self._lock)
            try:
                self._trial = Trial(self._program, memory, os.environ)
            finally:
                os.close(memory)
        except OSError as error:
            return f"the installed program cannot be run: {error.strerror}"
        return ""

    def _look_at_upgrade(self) -> None:
        if self._trial is not None and (found := self._trial.answer()) is not None:
            self._trial = None
            parts = parts_of(
                self._children, bool(found.get("moves_workers")), found.get("moves_roles", ()), self._why_left, self._stays_behind
            )  # fmt: skip
            self._found = {**found, "parts": parts}
            self._found_at = time.monotonic()
        if self._upgrade is not None and not self._upgrade.ended:
            process = self._settings.process
            longest_drain_s = process.drain_time + process.drain_timeout
            self._upgrade.look(self._children, self._counters, self._begin_replacement, self._why_left, longest_drain_s)
        if self._upgrade is not None:
            for level, line in self._upgrade.take_lines():
                if level != "INFO":
                    _log(line, level)
                else:
                    self._inform(line)

    def _replace_program(self, parts: Sequence[dict[str, Any]]) -> str:
        """Runs the installed program in this process; returns only with a problem, and nothing has changed then."""
        topology = self._listeners.topology
        self._inform(log_line("upgrade begins", before=__version__, version=self._found["version"]))
        with self._signals.held():
            if self._signals.count or self._signals.reload:
                return "the broker stops, or reloads its configuration"
            try:
                memory = save(topology, self._kept(parts), self._lock)
            except OSError as error:
                return f"state of the supervisor: {error.strerror}"
            try:
                sys.stdout.flush()
                environment = {**os.environ, **self._notifier.variables, CONTINUES: f"run:{memory}"}
                os.execve(self._program[0], self._program, environment)
            except OSError as error:
                undo_save(topology, self._lock, memory)
                return f"{self._program[0]}: {error.strerror}"

    def _adopt(self, image: Image) -> None:
        """Takes over processes and listeners of the earlier program."""
        kept = image.kept
        places = {place.slot: place for place in image.topology.places}
        self._children = [Child.adopted(places[slot], own) for slot, own in kept["children"].items()]
        self._listeners.restore(kept["stopped"])
        pids = {child.slot: child.process.pid for child in self._children if child.process is not None}
        self._upgrade = Upgrade(image.version, kept["parts"], pids)
        self._ready = self._has_served = True
        self._inform(log_line("upgrade continues", before=image.version, version=__version__, processes=len(pids)))
        self._warn_of_exposures()
        self._tell_ready()
        self._store.follow(self._listeners.public)

    def _start_afresh(self) -> int:
        """Runs the installed program with the listening sockets. A service manager does so, if there is one, for the exit code."""
        if self._notifier.variables.get("NOTIFY_SOCKET"):
            return 1
        environment = {**os.environ, **hand_over(self._handed)}
        os.execve(self._program[0], self._program, environment)

    def _look_at_files(self) -> None:
        for level, line in self._listeners.look_at_files():
            _log(line, level)
        self._files_due = time.monotonic() + FILES_S if self._listeners.with_files else inf

    def _watch(self, timeout_s: float | None) -> None:
        """Waits for a death, a signal, the next restart or the timeout, and acts on it."""
        due = [child.restart_at for child in self._children if child.restart_at is not None]
        due += [child.replaced_until for child in self._children if child.successor is not None and child.replaced_until < inf]
        if self._left_over:
            due.append(self._forget_at)
        if self._trial is not None or (self._upgrade is not None and not self._upgrade.ended):
            due.append(time.monotonic() + PASS_S)
        if self._ready:
            due += [at for at in (self._files_due, self._status_due, self._reload_until) if at < inf]
            if self._watchdog is not None:
                due.append(self._watchdog.due)
        if due:
            until_due = max(0.0, min(due) - time.monotonic())
            timeout_s = until_due if timeout_s is None else min(timeout_s, until_due)
        sentinels = {child.process.sentinel: child for child in self._children if child.process is not None}
        successors = {child.successor.sentinel: child for child in self._children if child.successor is not None}
        (requests,) = self._listeners.topology.receiving_ends("requests")
        departed = [] if self._departure is None else self._departure.sentinels
        ended = wait([*sentinels, *successors, *departed, self._signals, requests], timeout_s)
        if self._departure is not None:
            self._departure.look()
            if not self._departure.workers:
                self._departure = None
                self._end_change()
        if not self._ready and self._has_served:
            self._notifier.alive()
        if self._signals.count:
            return  # children may have got the signal as well: those ends are not deaths
        if self._signals.reload:
            self._signals.clear()
            self._signals.reload = False
            self._tell_manager_to_reload()
        for ready in sorted(ended, key=lambda one: one not in sentinels):  # a successor is promoted before its own end is seen
            if ready in sentinels or ready in successors:
                self._on_end(sentinels.get(ready) or successors[ready], ready)
        if requests in ended:
            self._answer_request(requests)
        now = time.monotonic()
        if self._left_over and self._forget_at <= now:
            forget_left_over(self._left_over)
            self._left_over = ()
        if self._ready:
            self._look_around(now)
        for child in self._children:
            if child.restart_at is not None and child.restart_at <= now:
                self._start(child)
            if child.successor is not None and child.replaced_until <= now:
                child.replaced_until = inf
                if not self._has_handed_over(child):
                    child.successor.kill()

    def _look_around(self, now: float) -> None:
        """Runs the periodic checks while the broker serves."""
        if self._files_due <= now:
            self._look_at_files()
        if self._reload_until <= now:
            self._on_reloaded("the manager did not respond")
        self._look_at_upgrade()
        if self._status_due <= now:
            self._notifier.status(self._status())
            self._plan_status()
        if self._watchdog is not None and self._watchdog.due <= now:
            alive, line = self._watchdog.look(now)
            if alive:
                self._notifier.alive()
            elif line:
                _log(line)

    def _signs_of_life(self) -> dict[str, int]:
        """Returns for each process that clients depend on a number that changes with a pass of its loop or progress of its
        recovery."""
        return {
            child.title: self._counters.recorded(child.slot, "pass_us") + self._counters.heartbeat(child.slot)
            for child in self._children
            if child.place.role.watched
        }

    def _status(self) -> str:
        down = [child.title for child in self._children if self._counters.state(child.slot) != ProcessState.READY]
        totals = self._counters.totals()
        counts = f"{totals['connections.count']} connections, {totals['sessions.count']} sessions"
        return f"{'not ready: ' + ', '.join(down) if down else 'all processes ready'}; {counts}"

    def _tell_manager_to_reload(self) -> None:
        """Starts a reload in the manager, which knows what may change while the broker runs, and logs what has changed."""
        manager = next(child for child in self._children if child.slot == self._listeners.topology.manager)
        self._notifier.reloading()
        self._reload_until = time.monotonic() + RELOAD_S
        if manager.process is None or self._counters.state(manager.slot) != ProcessState.READY:
            _log(log_line("configuration not reloaded", reason="the manager is down"))
            self._on_reloaded("the manager is down")
        else:
            os.kill(manager.process.pid, signal.SIGHUP)

    def _on_reloaded(self, problem: str) -> None:
        if self._reload_until < inf:
            self._reload_until = inf
            self._notifier.ready(f"configuration not reloaded: {problem}" if problem else self._status())
            self._plan_status()

    def _bury(self, child: Child) -> None:
        state = self._counters.state(child.slot)
        # First of all, since acceptors hold new connections of a worker that is down.
        self._counters.set_state(child.slot, ProcessState.DOWN)
        # Its connections are lost with it, and must not block clients that reconnect.
        self._counters.reset_gauges(child.slot)
        # A process that was sent SIGTERM sets DOWN itself, as its last action.
        level, text = child.bury(state == ProcessState.READY, state == ProcessState.DOWN)
        _log(text, level)
        self._give_up_on(child)

    def _give_up_on(self, child: Child) -> None:
        """Ends a start that fails repeatedly. Once the broker has served, a process that cannot start is retried for ever, while
        the others continue."""
        if not self._has_served and child.failed_starts >= START_ATTEMPTS:
            raise StartError(f"{child.title} failed {child.failed_starts} times before it was ready; see the log lines above")

    def _check_ready(self, topology: Topology) -> None:
        waiting = [child for child in self._children if self._counters.state(child.slot) != ProcessState.READY]
        if not waiting or (self._has_served and not any(child.place.role.name in FIRST for child in waiting)):
            self._let_workers_serve(topology)
        if not waiting:
            self._ready = True
            self._left_over, self._forget_at = topology.left_over, time.monotonic() + LEFT_OVER_S
            self._warn_of_exposures()
            addresses = ", ".join(listener.address for listener in self._listeners.public)
            processes = f"workers {topology.workers}, acceptors {topology.acceptors}"
            print(f"shardbroker {__version__} ready: {addresses}, {processes}, pid {os.getpid()}", flush=True)
            self._end_change()
            if not self._has_served:
                for line in greeting(self._settings, [(one.name, one.address, one.settings) for one in self._listeners.public]):
                    self._inform(line)
            self._has_served = True
            self._tell_ready()
            self._store.follow(self._listeners.public)
        for child in waiting:
            self._look_for_progress(child)

    def _let_workers_serve(self, topology: Topology) -> None:
        if self._counters.serving:
            return
        if self._settings.durability.level != "none":
            self._note_workers(topology)
        self._counters.serve()
        for doorbell in topology.doorbells:
            os.eventfd_write(doorbell, 1)

    def _warn_of_exposures(self) -> None:
        """Logs each exposure once, until it is removed."""
        topology = self._listeners.topology
        _, settings = read_in_force(topology)
        found = [*exposures(settings, ((one.name, one.settings) for one in topology.listeners))]
        for text in found:
            if text not in self._exposures:
                _log(log_line("configuration not secure", detail=text), "WARNING")
        self._exposures = found

    def _inform(self, line: Line) -> None:
        if self._settings.log.level in ("debug", "info"):
            _log(line, "INFO")

    def _tell_ready(self) -> None:
        self._notifier.ready(self._status())
        self._plan_status()
        wanted_s = self._notifier.watchdog_s
        if not wanted_s:
            return
        if wanted_s < LEAST_WATCHDOG_S:
            _log(log_line("watchdog interval too short", WatchdogSec=f"{wanted_s:g}s", minimum=f"{LEAST_WATCHDOG_S:g}s"))
        self._watchdog = Watchdog(wanted_s, self._signs_of_life, time.monotonic())

    def _plan_status(self) -> None:
        self._status_due = time.monotonic() + STATUS_S if self._notifier.listened_to else inf

    def _look_for_progress(self, child: Child) -> None:
        """Gives up on a process that hangs."""
        beat, now = self._counters.heartbeat(child.slot), time.monotonic()
        before, since = self._beats.setdefault(child.slot, (beat, now))
        if beat != before or child.process is None:
            self._beats[child.slot] = beat, now
            if beat != before and now >= self._status_due:
                self._notifier.starting("recovering sessions", NO_PROGRESS_S)
                self._plan_status()
        elif now - since > NO_PROGRESS_S and self._has_served:
            child.kill()
        elif now - since > NO_PROGRESS_S:
            raise StartError(f"{child.title} made no progress for {NO_PROGRESS_S:g} s before it was ready")

    def _note_workers(self, topology: Topology) -> None:
        try:
            set_written_by(topology.data_dir, topology.division)
        except OSError as error:
            # Sessions have moved to the journals of these workers: without this record, the next start would not find them.
            if topology.written_by != topology.division.number:
                raise StartError(f"{topology.data_dir}/journal: {error.strerror}: number of workers not written") from None

    # --- draining -----------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Stops accepting clients, then ends the roles in their order."""
        self._end_replacements()
        if self._departure is not None:
            self._departure.end()
        for requests in self._listeners.topology.receiving_ends("requests"):
            end_requests(requests)  # or the manager would wait for an answer and not end in time
        accepting = [child for child in self._children if child.place.role.accepts and child.process is not None]
        for child in accepting:
            child.terminate()
        self._await_no_more_clients(accepting)
        self._end_in_order([child for child in self._children if child.process is not None])

    def _end_in_order(self, children: Sequence[Child]) -> None:
        """Ends processes, the roles in their order; those that accept are ending already."""
        process = self._settings.process
        for order in sorted({role.drain_order for role in self._roles}):
            group = [child for child in children if child.place.role.drain_order == order]
            for child in group:
                if not child.place.role.accepts:
                    child.terminate()
            drain_time_s = process.drain_time if any(child.place.role.sends_away for child in group) else 0.0
            for child in self._await_end(group, time.monotonic() + process.drain_timeout + drain_time_s):
                _log(log_line("process killed after drain timeout", process=child.title, pid=child.process.pid))
                child.kill()
            for child in group:
                child.reap()

    def _end_replacements(self) -> None:
        """Leaves one process in each place, to be drained: a worker continues when its successor is killed."""
        for child in self._children:
            if child.successor is None:
                continue
            if self._has_handed_over(child):
                if not wait([child.process.sentinel], HANDED_OVER_S):
                    child.kill()
                self._promote(child)
            else:
                child.successor.kill()
                child.end_successor()

    def _longest_drain_s(self) -> float:
        """Returns the longest duration of a drain: acceptors stop accepting, then each group ends in turn, and late processes are
        killed."""
        process = self._settings.process
        steps = 1 + len({role.drain_order for role in self._roles})
        return process.drain_time + process.drain_timeout * steps + STOP_MARGIN_S

    def _await_no_more_clients(self, accepting: list[Child]) -> None:
        """Waits until every acceptor has stopped accepting or has ended, or time is up."""
        deadline = time.monotonic() + self._settings.process.drain_timeout
        while time.monotonic() < deadline and self._signals.count < 2:
            if not any(child.process.is_alive() and self._counters.state(child.slot) == ProcessState.READY for child in accepting):
                return
            time.sleep(READY_POLL_S)

    def _await_end(self, group: list[Child], deadline: float) -> list[Child]:
        """Waits until all have ended, time is up, or a second signal arrives; returns those that have not ended."""
        alive = {child.process.sentinel: child for child in group}
        while alive and self._signals.count < 2:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self._signals.clear()
            if self._signals.count < 2:  # a signal between the first check and clear() must not be slept over
                for ended in wait([*alive, self._signals], left_s):
                    if ended in alive:
                        self._counters.set_state(alive.pop(ended).slot, ProcessState.DOWN)  # others wait for its last records
        return list(alive.values())


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log(line: Line, level: str = "ERROR") -> None:
    print_line(level, "supervisor", line)
