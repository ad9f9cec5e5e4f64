"""A worker ends without losing a message: clients are sent away, then rings are emptied."""

from libc.stdint cimport uint64_t

from shardbroker.worker.connection cimport LINGER_MS, Connection
from shardbroker.worker.one_pass cimport Worker
from shm.ring cimport Inbox

from shm.counters import ProcessState

__all__ = ["drain"]

cdef enum:
    STEP_MS = 10                           # longest wait between two looks at which client is sent away next

REST_SHARE = 0.5
"""Of `process.drain_timeout`, for what other workers still send when the clients here are gone."""


def drain(Worker worker not None) -> None:
    """DISCONNECT 0x8B or 0x9C to every client, spread over `process.drain_time`, and time for them to take it.

    Clients not drained yet are served as before; one that arrives in the meantime was on the way before the acceptors stopped,
    and is sent away with the last.
    """
    cdef Connection connection
    cdef Py_ssize_t told = 0, due
    worker.router.read_clock()
    process = worker.topology.settings.process
    reference = process.drain_server_reference.encode()
    leaving = [one for one in worker.turn.by_fd if one is not None]
    cdef uint64_t began = worker.router.now_ms, spread_ms = <uint64_t>(process.drain_time * 1000)
    while told < len(leaving):
        due = len(leaving)
        if worker.router.now_ms < began + spread_ms:
            due = min(due, <Py_ssize_t>(<uint64_t>len(leaving) * (worker.router.now_ms - began) // spread_ms) + 1)
        for connection in leaving[told:due]:
            send_away(connection, reference)
        told = due
        worker.one_pass(STEP_MS)
    worker.one_pass(0)                   # takes what acceptors have handed over last
    deadline = worker.router.now_ms + LINGER_MS
    while worker.router.now_ms < deadline and any(one is not None for one in worker.turn.by_fd):
        for one in worker.turn.by_fd:
            if one is not None:
                send_away(<Connection>one, reference)
        worker.one_pass(STEP_MS)
    take_the_rest(worker, began + spread_ms + <uint64_t>(process.drain_timeout * 1000 * REST_SHARE))
    while worker.reporter.changes:
        worker.reporter.flush_registry()
    worker.durability.close(LINGER_MS / 1000)


cdef int send_away(Connection connection, bytes reference) except -1:
    try:
        if connection.fd >= 0:
            connection.shut_down(reference)
    except Exception as error:
        connection.broken(error)
    return 0


cdef int take_the_rest(Worker worker, uint64_t deadline_ms) except -1:
    """What was acknowledged by workers that still have clients is for sessions here, too: it is in the journal before this one ends.

    It ends when all say that they have nothing more of their own, and nothing moves in any ring between them: what one takes it may
    pass on, to a member of a group or as a will. Twice the same rings, empty, have been empty at one moment.
    Rings that cannot be emptied in time are kept for the next start (supervisor.layout.tear_down).
    """
    cdef list inboxes = [Inbox.attach(worker.topology.inbox_name(number)) for number in range(worker.topology.workers)]
    before = None
    while worker.router.now_ms < deadline_ms:
        worker.one_pass(STEP_MS)
        if worker.router.retries.waiting or worker.router.retries.unresolved_count or not worker.durability.is_settled():
            continue
        worker.router.counters_segment.set_state(worker.number, ProcessState.DRAINED)
        now = rings_at_rest(worker, inboxes)
        if now is not None and now == before:
            break
        before = now
    return 0


cdef list rings_at_rest(Worker worker, list inboxes):
    """Returns the positions of the rings between running workers; None if one has a record, or a worker is not drained."""
    cdef list positions = []
    synced = worker.durability.gate is not None
    for number, inbox in enumerate(inboxes):
        state = worker.router.counters_segment.state(number)
        if state == ProcessState.DOWN:
            continue
        if state != ProcessState.DRAINED:
            return None
        for lane in inbox.lanes[:len(inboxes)]:
            position = lane.rest_at(synced)
            if position < 0:
                return None
            positions.append(position)
    return positions
