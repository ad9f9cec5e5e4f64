"""One of another number of workers: it takes the connections of its sessions from those before; docs/design/0016-handover.md."""

import os
import socket
import time
from contextlib import suppress
from math import inf
from typing import Any

import shardbroker.worker.handoff.state as state
from shardbroker.logs.phrases import log_line, print_line
from shardbroker.worker.handoff.protocol import state_from_memory
from shardbroker.worker.one_pass import Worker
from shardbroker.worker.recovery.replay import Replay
from shm.counters import Counters
from shm.peers import HandoffError, Peer

__all__ = ["Arrival"]

BEAT_S = 1.0
"""Between two signs of life while a worker before is not done with others."""
SENT_S = 10.0
"""Longest wait for the rest of what such a worker has begun to send."""


class Arrival:
    """All connections of one worker, in place of a Succession. They end with this process: a later one has the sessions alone."""

    def __init__(self, ends: tuple[tuple[int, ...], ...], number: int, counters: Counters) -> None:
        """ends: for each worker that follows, that of each worker before. All but its own are closed."""
        for other, several in enumerate(ends):
            for end in several if other != number else ():
                os.close(end)  # or the end of that worker would not show
        self._peers = [Peer(socket.socket(fileno=end)) for end in ends[number]]
        self._number, self._counters = number, counters
        self._states: list[dict[str, Any]] = []
        self._taken: list[tuple[float, list[Any]]] = []
        """When the worker before read them last, and the connections from there."""

    def adopt(self, replay: Replay) -> None:
        """Takes over sessions and connections; the journals have been read. Raises ValueError, TypeError, KeyError, OSError."""
        for before, peer in enumerate(self._peers):
            try:
                found, descriptors = self._receive(peer)
            except HandoffError as error:
                # Killed, for example: its sessions are those of the journal, and its sockets are closed.
                print_line("error", f"worker-{self._number}", log_line("connections not taken over", before=before, reason=error))
                continue
            connections = state.adopt_part(replay, before, found, descriptors)
            self._states.append(found)
            self._taken.append((found["began"], connections))

    def _receive(self, peer: Peer) -> tuple[dict[str, Any], list[int]]:
        self._await(peer)
        message, (memory,) = peer.receive(time.monotonic(), 1)
        try:
            descriptors = peer.receive_all(message["connections"], time.monotonic() + SENT_S)
        except HandoffError:
            os.close(memory)
            raise
        found = state_from_memory(memory)
        with suppress(HandoffError):  # it has ended: all that it had is here
            peer.send({"adopted": len(descriptors)}, inf)
        return found, descriptors

    def _await(self, peer: Peer) -> None:
        while not peer.has_message(BEAT_S):
            self._counters.beat(self._number, time.monotonic_ns() // 1_000_000)

    def commit(self) -> None:
        """Returns once no process before has one of these sockets."""
        for peer in self._peers:
            try:
                self._await(peer)
                peer.receive(time.monotonic())
            except HandoffError:
                pass  # it has ended
            peer.close()

    def finish(self, worker: Worker) -> None:
        """What a recovery does not know."""
        state.finish_parts(worker, self._states)

    def serves(self, worker: Worker) -> None:
        """The first pass follows."""
        now = time.monotonic()
        for began, connections in self._taken:
            state.shift_silence_of(connections, int((now - began) * 1000))
        count = sum(len(connections) for _, connections in self._taken)
        pause_ms = int((now - min((began for began, _ in self._taken), default=now)) * 1000)
        worker.router.log("info", log_line("connections taken over", connections=count, pause=f"{pause_ms}ms"))
        self._states, self._taken = [], []
