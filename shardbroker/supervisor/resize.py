"""`ctl workers set`: all workers end, and another number of them takes over their connections; docs/design/0016-handover.md.

    Departure    the workers before, as the supervisor sees them: at rest together -> parted -> closed -> given -> ended
    Arrivals     the pairs between each of them and each worker that follows

Steps have short limits: the supervisor waits for them, since no client is served meanwhile.
"""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from shardbroker.config import Settings
from shardbroker.config.errors import complaints
from shardbroker.config.settings import Process
from shardbroker.supervisor.child import Child
from shardbroker.supervisor.layout import StartError, check_room, chosen_weights
from shardbroker.worker.handoff.protocol import discard_successor, send_departure
from shm.counters import Counters
from shm.partitions import Division
from shm.peers import HandoffError, Peer, open_descriptors
from shm.topology import Topology

__all__ = ["Arrivals", "Departure", "ResizeError", "Wanted", "wanted_of"]

REST_S = 3.0
"""Longest time in which all workers finish what they have begun. No client is served meanwhile."""
ANSWER_S = 10.0
"""Longest wait for an answer of a worker: it writes its state, or closes its journal."""
STEP_S = 0.002
"""Between two looks at workers that are not at rest."""
NO_PROGRESS_S = 60.0
"""Longest time without a sign of life of a worker that hands its connections over; it is killed then, and they end."""
SPARE_DESCRIPTORS = 64
"""Descriptors beside those of the pairs, in the supervisor and in each worker."""


class ResizeError(Exception):
    """The number of workers was not changed; they serve as before."""


@dataclass(frozen=True)
class Wanted:
    """The broker after the change."""

    division: Division
    weights: str
    """`process.worker_weights`."""

    def applied_to(self, settings: Settings) -> Settings:
        """Returns the settings with this number of workers and their weights."""
        chosen = {"workers": self.division.workers, "worker_weights": self.weights}
        return settings.model_copy(update={"process": settings.process.model_copy(update=chosen)})


def wanted_of(topology: Topology, settings: Settings, workers: int, weights: str, usable_cores: list[int]) -> Wanted:
    """Returns the broker that is wanted; settings: those in force. Raises ResizeError."""
    if topology.links:
        raise ResizeError(
            "this is a node of a cluster, and other nodes know its partitions by their workers: set process.workers, and restart it"
        )
    values = settings.process.model_dump() | {"workers": workers, "worker_weights": weights}
    try:
        process = Process.model_validate(values)
        division = Division(workers, chosen_weights(process.worker_weights, workers))
    except ValidationError as error:
        raise ResizeError(f"process.{complaints(error, ('process',))}") from None
    except StartError as error:
        raise ResizeError(str(error)) from None
    if division == topology.division:
        raise ResizeError(f"there are {workers} workers with these weights already")
    wanted = Wanted(division, process.worker_weights)
    try:
        check_room(wanted.applied_to(settings), usable_cores)
    except StartError as error:
        raise ResizeError(str(error)) from None
    pairs = topology.workers * workers
    used, limit = open_descriptors()
    if used + 2 * pairs + SPARE_DESCRIPTORS > limit:
        raise ResizeError(f"{pairs} pairs between workers need {2 * pairs} descriptors, and {used} of {limit} are open")
    return wanted


class Departure:
    """The workers before. Each step but those after close() can be undone by go_on()."""

    def __init__(self, workers: Sequence[Child], topology: Topology, counters: Counters, alive: Callable[[], None]) -> None:
        """alive: called while this waits."""
        self.workers = [*workers]
        self._topology, self._counters, self._alive = topology, counters, alive
        self._peers: dict[int, Peer] = {}
        """By number of the worker; none of one that has ended."""
        self._beats: dict[int, tuple[int, float]] = {}

    # --- as long as it can be undone ------------------------------------------------------------------------------------------

    def rest(self, stops: Callable[[], bool]) -> None:
        """Returns once all workers are at rest at one moment. stops: whether the broker is being stopped. Raises ResizeError."""
        for child in self.workers:
            self._call(child)
        deadline = time.monotonic() + REST_S
        before: list[Any] = []
        while True:
            found = self._ask({"look": True}, REST_S)
            for child, one in zip(self.workers, found, strict=True):
                if "refused" in one:
                    raise ResizeError(f"{child.title}: {one['refused']}")
            if found == before and not any(one["reason"] for one in found):
                return
            before = found
            if stops():
                raise ResizeError("the broker stops")
            if time.monotonic() > deadline:
                late = next(((child, one) for child, one in zip(self.workers, found, strict=True) if one["reason"]), None)
                what = "messages between workers" if late is None else f"{late[0].title}: {late[1]['reason']}"
                raise ResizeError(f"not finished within {REST_S:g} s: {what}")
            time.sleep(STEP_S)

    def part(self, division: Division) -> int:
        """Has each worker write the state for those that follow; returns the number of connections. Raises ResizeError."""
        found = self._ask({"part": [division.workers, list(division.weights)]})
        for child, one in zip(self.workers, found, strict=True):
            if "failed" in one:
                raise ResizeError(f"{child.title}: {one['failed']}")
        # Each worker that follows is forked with the descriptors of this process, and has those of its pairs until it is done.
        most = max(map(sum, zip(*(one["parted"] for one in found), strict=True)))
        used, limit = open_descriptors()
        needed = used + 2 * division.workers * len(self.workers) + SPARE_DESCRIPTORS
        if needed + most > limit:
            raise ResizeError(f"one worker would have {most} connections, and {needed} other descriptors of at most {limit}")
        return sum(sum(one["parted"]) for one in found)

    def go_on(self) -> None:
        """The workers serve as before."""
        for child in self.workers:
            (channel,) = self._topology.receiving_ends("successions", child.place.number)
            discard_successor(channel)  # of one that has died, or has not begun
        for peer in self._peers.values():
            with suppress(HandoffError):
                peer.send({"continue": True}, time.monotonic() + 1.0)
            peer.close()
        self._peers = {}

    def _call(self, child: Child) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = child.place.number
        try:
            (channel,) = self._topology.receiving_ends("successions", number)
            discard_successor(channel)
            send_departure(self._topology.sending_ends("successions")[number], ends[0].fileno())
        except OSError as error:
            ends[1].close()
            raise ResizeError(f"{child.title} not reached: {error.strerror}") from None
        finally:
            ends[0].close()
        self._peers[number] = Peer(ends[1])

    def _ask(self, message: dict[str, Any], longest_s: float = ANSWER_S) -> list[dict[str, Any]]:
        """Returns an answer of each worker. Raises ResizeError."""
        found = []
        deadline = time.monotonic() + longest_s
        try:
            for child in self.workers:
                self._peers[child.place.number].send(message, deadline)
            for child in self.workers:
                found.append(self._peers[child.place.number].receive(deadline)[0])
                self._alive()
        except HandoffError as error:
            raise ResizeError(f"{child.title}: {error}") from None
        return found

    # --- behind the step that cannot be undone --------------------------------------------------------------------------------

    def close(self) -> None:
        """Has each worker close its journal. One that does not is killed: its connections end, its sessions stay."""
        for peer in self._peers.values():
            with suppress(HandoffError):
                peer.send({"close": True}, time.monotonic() + ANSWER_S)
        for child in self.workers:
            try:
                self._peers[child.place.number].receive(time.monotonic() + ANSWER_S)
            except HandoffError:
                child.kill()
                child.process.join()
                self._peers.pop(child.place.number).close()
            self._alive()

    def part_again(self, division: Division) -> None:
        """The broker stays as it was: each worker writes the state for the workers of this division."""
        for child in self.workers:
            peer = self._peers.get(child.place.number)
            try:
                if peer is not None:
                    peer.send({"part": [division.workers, list(division.weights)]}, time.monotonic() + ANSWER_S)
                    if "failed" in peer.receive(time.monotonic() + ANSWER_S)[0]:
                        raise HandoffError
            except HandoffError:
                child.kill()
                self._peers.pop(child.place.number).close()

    def give(self, arrivals: "Arrivals") -> None:
        """Sends each worker its ends of the pairs to those that follow."""
        for number, peer in self._peers.items():
            ends = arrivals.of_worker_before(number)
            with suppress(HandoffError):
                peer.send({"ends": len(ends)}, time.monotonic() + ANSWER_S)
                peer.send_all(ends, time.monotonic() + ANSWER_S)
            peer.close()
        self._peers = {}
        now = time.monotonic()
        self._beats = {child.slot: (self._counters.heartbeat(child.slot), now) for child in self.workers}

    @property
    def sentinels(self) -> list[int]:
        return [child.process.sentinel for child in self.workers]

    def look(self) -> None:
        """Buries workers that have ended, and kills one that hangs."""
        for child in [*self.workers]:
            if not child.process.is_alive():
                child.reap()
                self.workers.remove(child)
                continue
            beat, now = self._counters.heartbeat(child.slot), time.monotonic()
            before, since = self._beats.get(child.slot, (beat, now))
            if beat != before:
                self._beats[child.slot] = beat, now
            elif now - since > NO_PROGRESS_S:
                child.kill()

    def end(self) -> None:
        """Kills those that are left: their connections end."""
        for child in self.workers:
            child.kill()
            child.reap()
        self.workers = []


class Arrivals:
    """Pairs of each worker before with each that follows. The supervisor keeps no end once both have theirs."""

    def __init__(self, before: int, workers: int) -> None:
        """Raises OSError."""
        self._before: list[list[socket.socket]] = [[] for _ in range(before)]
        self._after: list[list[socket.socket]] = []
        try:
            for _ in range(workers):
                self._after.append([])
                for ends in self._before:
                    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    ends.append(near)
                    self._after[-1].append(far)
        except OSError:
            self.close()
            raise

    def of_worker_before(self, number: int) -> list[int]:
        return [end.fileno() for end in self._before[number]]

    def for_topology(self) -> tuple[tuple[int, ...], ...]:
        """Returns Topology.arrivals."""
        return tuple(tuple(end.fileno() for end in ends) for ends in self._after)

    def close_before(self) -> None:
        """The workers before have their ends."""
        for ends in self._before:
            for end in ends:
                end.close()

    def close(self) -> None:
        self.close_before()
        for ends in self._after:
            for end in ends:
                end.close()
