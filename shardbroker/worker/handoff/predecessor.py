"""The worker that is replaced: it hands over its state and ends, or continues as before; docs/design/0016-handover.md."""

import os
import socket
import time
from contextlib import suppress

import shardbroker.worker.handoff.state as state
from shardbroker.logs.phrases import log_line
from shardbroker.worker.handoff.protocol import FORMAT, FORMAT_OF_NODE, state_in_memory
from shardbroker.worker.one_pass import Worker
from shm.peers import ENDED, HandoffError, Peer, kill, open_descriptors

__all__ = ["hand_over"]

HELLO_S = 10.0
"""Longest wait for the successor to start; this worker serves meanwhile."""
QUIET_S = 2.0
"""Longest time in which what was begun is finished. No client is read meanwhile."""
NODES_S = 1.0
"""Longest time in which other nodes are still read: a claim to a session takes some ms, unless a node is not reachable. A client
that waits longer for one has to connect again."""
ADOPTED_S = 10.0
"""Longest time in which the successor reads the journal and takes the state. No client is read meanwhile."""
KILLED_S = 5.0
"""Longest wait for the end of a successor that was killed."""
STEP_S = 0.001
SPARE_DESCRIPTORS = 16
"""Descriptors of one replacement at each of its ends (the pair, the memfd and its copies, pidfds), and some in reserve."""


class _Refused(Exception):
    """The state cannot be handed over now."""


def hand_over(worker: Worker, channel: int) -> bool:
    """Hands everything to the process at the other end of `channel`. True: it serves, and this process must end. False: this worker
    continues, and the successor has ended."""
    peer = Peer(socket.socket(fileno=channel))
    successor = -1
    try:
        successor, pid = _await_hello(worker, peer)
        _check(state.obstacle(worker) or _no_descriptors())
        began = time.monotonic()
        counters = b""
        try:
            _be_quiet(worker, began)
            counters = state.saved_counters(worker)
            _give(worker, peer, pid, began)
        except BaseException as error:
            _refuse(peer, str(error))
            _end(successor)
            state.note_owner(worker, os.getpid())
            state.go_on(worker, counters, int((time.monotonic() - began) * 1000))
            raise
    except Exception as error:  # also a fault of ours: it costs the replacement, not the worker
        _refuse(peer, str(error))
        peer.close()
        known = isinstance(error, _Refused | HandoffError | OSError)
        worker.router.log("error", log_line("worker not replaced", reason=error if known else repr(error)))
        return False
    finally:
        if successor >= 0:
            os.close(successor)
    state.leave(worker)
    with suppress(HandoffError):  # it has died since: the supervisor starts another one
        peer.send({"left": True}, time.monotonic())
    return True


def _check(reason: str) -> None:
    if reason:
        raise _Refused(reason)


def _no_descriptors() -> str:
    """Returns whether too few descriptors are left, for this process or for the successor, which needs a few more than this one."""
    used, limit = open_descriptors()
    return f"{used} of {limit} descriptors are open" if used + SPARE_DESCRIPTORS > limit else ""


def _await_hello(worker: Worker, peer: Peer) -> tuple[int, int]:
    """Serves until the successor has started; returns a pidfd of it, and its pid. Raises HandoffError, _Refused."""
    deadline = time.monotonic() + HELLO_S
    while not peer.has_message(0.0):
        if time.monotonic() > deadline:
            raise HandoffError("the successor did not start in time")
        worker.one_pass(1)
    hello, _ = peer.receive(deadline)
    if hello.get("hello") != FORMAT:
        raise _Refused(f"the successor reads format {hello.get('hello')} of the state, this worker writes {FORMAT}")
    if worker.topology.links and hello.get("node") != FORMAT_OF_NODE:
        text = f"the successor reads format {hello.get('node')} of the state of a node, this worker writes {FORMAT_OF_NODE}"
        raise _Refused(text)
    process = peer.process(hello["pid"])
    if process == ENDED:
        raise HandoffError("the successor has ended")
    return process, hello["pid"]


def _be_quiet(worker: Worker, began: float) -> None:
    """Finishes what was begun. Raises _Refused."""
    while True:
        state.quiet_pass(worker)
        reason = state.reason_to_wait(worker)
        waited_s = time.monotonic() - began
        if (not reason or waited_s > NODES_S) and state.leave_nodes(worker):
            continue
        if not reason:
            return
        if waited_s > QUIET_S:
            raise _Refused(f"not finished within {QUIET_S:g} s: {reason}")
        time.sleep(STEP_S)


def _give(worker: Worker, peer: Peer, pid: int, began: float) -> None:
    """Sends everything, up to the step that cannot be undone. Raises HandoffError, OSError; the worker can continue then, once the
    successor has ended."""
    deadline = time.monotonic() + ADOPTED_S
    given, descriptors = state.collect(worker)
    given["began"] = began
    memory = state_in_memory(given)
    try:
        peer.send({"connections": len(descriptors), "pid": os.getpid()}, deadline, [memory])
    finally:
        os.close(memory)
    peer.send_all(descriptors, deadline)
    adopted, _ = peer.receive(deadline)
    if adopted.get("adopted") != len(descriptors):
        raise HandoffError("the successor has not adopted every connection")
    state.note_owner(worker, pid)
    peer.send({"yours": True}, deadline)


def _end(successor: int) -> None:
    """Kills the successor, and waits until it has ended: then nothing of this worker is in use by two processes."""
    if not kill(successor, KILLED_S):
        # It hangs in the kernel, and might go on: the state is in the journal, and a restart of this worker is the safe way.
        raise SystemExit("the successor could not be killed")


def _refuse(peer: Peer, reason: str) -> None:
    try:
        peer.send({"refused": reason}, time.monotonic())
    except HandoffError:
        pass  # it has ended
