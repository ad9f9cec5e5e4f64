"""The worker that replaces another one: it takes over the whole state, or ends without a trace; docs/design/0016-handover.md."""

import os
import socket
import time
from typing import TYPE_CHECKING, Any

import shardbroker.worker.handoff.state as state
from shardbroker.logs.phrases import log_line, print_line
from shardbroker.worker.handoff.protocol import FORMAT, FORMAT_OF_NODE, state_from_memory
from shardbroker.worker.one_pass import Worker
from shardbroker.worker.recovery.replay import Replay
from shm.counters import Counters
from shm.peers import ENDED, HandoffError, Peer, await_end

if TYPE_CHECKING:
    from shardbroker.worker.cluster_sessions import ClusterSessions

__all__ = ["Succession"]

STATE_S = 25.0
"""Longest wait for the state: the predecessor finishes what it has begun, and sends it."""
YOURS_S = 25.0
"""Longest wait for the predecessor to end. It alone decides whether it continues, and kills this process then."""


ENDED_S = 1.0
"""Longest time in which a predecessor that was killed ends."""


class Succession:
    """One replacement, as its successor sees it. Nothing that is shared is written before `commit`."""

    def __init__(self, ends: tuple[int, int], number: int) -> None:
        own, other = ends
        os.close(other)  # or the end of the predecessor would not show
        self._peer = Peer(socket.socket(fileno=own))
        self._number = number
        self._predecessor = ENDED
        """A pidfd."""
        self._state: dict[str, Any] = {}
        self._descriptors: list[int] = []

    def receive(self, worker: Worker, counters: Counters) -> None:
        """Waits until the predecessor stands still, and takes its state. Ends the process without one."""
        try:
            deadline = time.monotonic() + STATE_S
            self._peer.send({"hello": FORMAT, "node": FORMAT_OF_NODE, "pid": os.getpid()}, deadline)
            message, descriptors = self._peer.receive(deadline, 1)
            if "refused" in message:
                os._exit(1)  # the predecessor has logged the reason
            (memory,) = descriptors
            self._predecessor = self._peer.process(message["pid"])
            self._descriptors = self._peer.receive_all(message["connections"], deadline)
            self._state = state_from_memory(memory)
        except (HandoffError, OSError, ValueError) as error:
            self._give_up(str(error))
        counters.reset_gauges(self._number, False)
        state.take_clock(worker, self._state)

    def adopt(self, replay: Replay) -> None:
        """Takes over sessions and connections; the journal has been read."""
        try:
            state.adopt(replay, self._state, self._descriptors)
        except Exception as error:
            self._give_up(repr(error))

    def commit(self) -> None:
        """Returns once the place is this worker's, and the predecessor has closed everything. Ends the process if it is not."""
        deadline = time.monotonic() + YOURS_S
        try:
            self._peer.send({"adopted": len(self._descriptors)}, deadline)
            message, _ = self._peer.receive(deadline)
            if "yours" not in message:
                self._give_up("the predecessor continues")
            self._peer.receive(deadline)  # "left"
        except HandoffError as error:
            # Killed, the predecessor has not gone on, since it kills this process before it does: everything it had is here.
            if not await_end(self._predecessor, ENDED_S):
                self._give_up(str(error))
        if self._predecessor != ENDED:
            os.close(self._predecessor)
        self._peer.close()

    def finish(self, worker: Worker) -> None:
        """What a recovery does not know."""
        state.finish(worker, self._state)

    def restore(self, sessions: "ClusterSessions") -> None:
        """Continues with the claims, the registrar and the sessions on their way, where the predecessor was."""
        sessions.restore(self._state["cluster"])

    def serves(self, worker: Worker) -> None:
        """The first pass follows."""
        paused_ms = int((time.monotonic() - self._state["began"]) * 1000)
        state.shift_silence(worker, paused_ms)
        counts = {"connections": len(self._descriptors), "sessions": len(worker.router.sessions)}
        worker.router.log("info", log_line("worker replaced", **counts, pause=f"{paused_ms}ms"))
        self._state, self._descriptors = {}, []

    def _give_up(self, reason: str) -> None:
        print_line("error", f"worker-{self._number}", log_line("successor ends", reason=reason))
        os._exit(1)  # without a last word in anything shared
