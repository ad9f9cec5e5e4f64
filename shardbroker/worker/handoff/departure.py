"""A worker that ends with all others of the broker, since another number of workers follows; docs/design/0016-handover.md.

The supervisor decides each step. Until it has the journal closed, this worker can continue as before.
"""

import os
import socket
import time
from contextlib import suppress
from math import inf
from typing import Any

import shardbroker.worker.handoff.state as state
from shardbroker.logs.phrases import log_line, print_line
from shardbroker.worker.handoff.protocol import REASON_MAX, state_in_memory
from shardbroker.worker.one_pass import Worker
from shm.partitions import Division
from shm.peers import HandoffError, Peer, open_descriptors

__all__ = ["depart"]

STEP_S = 0.001
"""Between two passes that finish what was begun."""
BEAT_S = 1.0
"""Between two signs of life while the workers that follow read journals."""
ENDS_S = 10.0
"""Longest wait for the ends that the supervisor has announced."""
SPARE_DESCRIPTORS = 16
"""Descriptors beside a memfd and an end for each worker that follows."""


class _Departure:
    """The state of one departure."""

    def __init__(self, worker: Worker, peer: Peer) -> None:
        self.worker = worker
        self.peer = peer
        self.began = 0.0
        """When this worker took no input any more; 0: it serves."""
        self.shares: list[tuple[int, list[int]]] = []
        """For each worker that follows: memfd with the state, and descriptors."""

    def discard(self) -> None:
        for memory, _ in self.shares:
            os.close(memory)
        self.shares = []

    def look(self) -> dict[str, Any]:
        """Finishes what it can, and returns what is left."""
        if not self.began:
            reason = state.obstacle(self.worker)
            if reason:
                return {"refused": reason}
            self.began = time.monotonic()
        state.departing_pass(self.worker)
        reason, taken = state.rest_of(self.worker)
        return {"reason": reason, "taken": taken}

    def part(self, workers: int, weights: list[int]) -> dict[str, Any]:
        self.discard()
        used, limit = open_descriptors()
        if used + 2 * workers + SPARE_DESCRIPTORS > limit:
            return {"failed": f"{workers} workers that follow need {2 * workers} descriptors, and {used} of {limit} are open"}
        try:
            for given, descriptors in state.part(self.worker, Division(workers, tuple(weights))):
                self.shares.append((state_in_memory(given | {"began": self.began}), descriptors))
        except Exception as error:
            self.discard()
            return {"failed": repr(error)[:REASON_MAX]}
        return {"parted": [len(descriptors) for _, descriptors in self.shares]}

    def give(self, ends: list[int]) -> None:
        """Sends all connections. A worker that has ended gets none: its connections end with this process."""
        peers = [Peer(socket.socket(fileno=end)) for end in ends]
        for peer, (memory, descriptors) in zip(peers, self.shares, strict=True):
            with suppress(HandoffError):
                peer.send({"connections": len(descriptors)}, inf, [memory])
                peer.send_all(descriptors, inf)
            os.close(memory)
        for peer, (_, descriptors) in zip(peers, self.shares, strict=True):
            with suppress(HandoffError):
                while not peer.has_message(BEAT_S):
                    state.beat(self.worker)
                peer.receive(time.monotonic())
            for descriptor in descriptors:
                os.close(descriptor)
            with suppress(HandoffError):
                peer.send({"left": True}, time.monotonic())
            peer.close()


def depart(worker: Worker, channel: int) -> bool:
    """Follows the supervisor at the other end of `channel`. True: this process must end, its connections are with other workers.
    False: this worker continues."""
    departure = _Departure(worker, Peer(socket.socket(fileno=channel)))
    peer = departure.peer
    is_closed = False
    try:
        while True:
            while not peer.has_message(0.0 if not departure.began else STEP_S):
                if not departure.began:
                    worker.one_pass(1)
                elif not departure.shares:
                    state.departing_pass(worker)
            message, _ = peer.receive(time.monotonic())
            if "look" in message:
                peer.send(departure.look(), time.monotonic() + ENDS_S)
            elif "part" in message:
                peer.send(departure.part(*message["part"]), time.monotonic() + ENDS_S)
            elif "close" in message:
                is_closed = True
                state.close_journal(worker)
                peer.send({"closed": True}, time.monotonic() + ENDS_S)
            elif "ends" in message:
                departure.give(peer.receive_all(message["ends"], time.monotonic() + ENDS_S))
                return True
            else:
                break
    except HandoffError as error:
        if is_closed:  # the supervisor has ended, or given up: sockets close with this process
            print_line("error", f"worker-{worker.number}", log_line("connections not handed over", reason=error))
            return True
    peer.close()
    departure.discard()
    if departure.began:
        state.go_on(worker, b"", int((time.monotonic() - departure.began) * 1000))
    return False
