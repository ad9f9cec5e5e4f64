"""Everything that a worker hands to its successor: connections, and what its journal does not have of sessions.

    quiet_pass() until reason_to_wait() is None -> collect()      the predecessor, which neither reads nor serves meanwhile
    Replay.read(journal) -> adopt() -> finish()                   the successor

A session that is in the journal is read from there, by the code of a recovery. The others arrive as records, as do the few facts about
a session that records do not hold (`facts_of`).
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from shardbroker.journal.buffer cimport RecordBuffer
from shardbroker.journal.images cimport StateRecorder
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.image cimport save
from shardbroker.session.session cimport Session
from shardbroker.worker.connection cimport Connection
from shardbroker.worker.handoff.connections cimport from_values, reason_to_wait as connection_waits, stays_behind, to_values
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.recovery.replay cimport Replay
from shardbroker.worker.router cimport Router
from shm.counters cimport COUNTER_MAX
from shm.posix cimport close

import threading

from shardbroker.journal.schema import Kind, decode_items
from shardbroker.worker.durability import RETENTION_THREAD

__all__ = [
    "adopt", "collect", "finish", "go_on", "leave", "note_owner", "obstacle", "quiet_pass", "reason_to_wait", "saved_counters",
    "shift_silence", "take_clock",
]

cdef enum:
    SLOT_MS = 64                           # of the timer wheel

cdef uint32_t OUT_OF_JOURNAL = 0           # `logged` of messages that arrive as records


# --- the predecessor ----------------------------------------------------------------------------------------------------------------


def obstacle(Worker worker not None) -> str:
    """Returns why the state of this worker cannot be handed over; empty: it can. It may be different later."""
    cdef Router router = worker.router
    cdef Session session
    if worker.cluster is not None or worker.topology.links:
        return "the broker is a node of a cluster"
    if worker.durability.recorder is None and (router.retries.all() or router.retries.delays.waiting):
        return "deferred messages are in memory only, without a journal"
    needed = worker.memory.measure()
    if worker.memory.mark and worker.memory.taken() + needed > worker.memory.mark:
        return f"{needed >> 20} MB for a second process are not left of overload.memory_high_water"
    if worker.durability.disk.stage:
        return "the disk does not take the journal"
    if router.journal_replays.active or router.lookups.active:
        return "messages of a journal or a database are being replayed"
    for session in router.sessions.values():
        if session.replaying and not session.logged:
            return "a session that ends with its connection replays a journal"
    return ""


def quiet_pass(Worker worker not None) -> None:
    """A pass without input: what was begun is finished, and nothing is begun."""
    cdef Router router = worker.router
    worker.turn.start_us = worker.rings.pass_us = router.read_clock()
    worker.turn.share_out(0)
    if worker.access_checks.fd >= 0:
        worker.access_checks.take_results()
        worker.access_checks.look()
    if router.resolver.waiting:
        router.resolver.go_on()
    if worker.turn.parked:
        worker.backpressure.resume_parked()
    if worker.turn.busy:
        worker.backpressure.resume_busy()
    if router.retries.unresolved_count:
        router.deliver_unresolved()
    if router.retries.waiting:
        router.run_retries()
    if router.subscriptions.leaving:
        router.subscriptions.go_on()
    router.commit(True)
    worker.settle_and_send()
    worker.inlets.release_lanes()
    worker.flush_sockets()
    if worker.inlets.commands:
        worker.command_queue.run()
    router.commit(True)
    worker.settle_and_send()
    if worker.command_queue.answers:
        worker.command_queue.send_answers()


def reason_to_wait(Worker worker not None) -> str:
    """Returns what has to be finished before the state can be handed over; empty: nothing."""
    cdef Router router = worker.router
    cdef Connection connection
    if worker.durability.behind or router.retaining.changes:
        return "the disk"
    if worker.durability.gate is not None and not worker.durability.gate.is_at_rest():
        return "the disk, or that of another worker"
    if worker.inlets.commands or worker.command_queue.answers:
        return "a command"
    if router.subscriptions.leaving or router.route_changes.changes or router.exclusive.releasing or worker.durability.streams.changed:
        return "routes of sessions that have ended"
    if router.retries.unresolved_count or router.retries.waiting:
        return "room in the ring of another worker"
    if worker.access_checks.rechecking:
        return "a check of rules that have changed"
    if any([thread.name == RETENTION_THREAD for thread in threading.enumerate()]):
        return "the removal of old segments"
    for connection in worker.turn.by_fd:
        if connection is not None:
            reason = connection_waits(connection)
            if reason is not None:
                return reason
    return ""


def saved_counters(Worker worker not None) -> bytes:
    """Returns the counters and gauges, which the successor writes to before it is sure of its place."""
    return (<char*>worker.router.counters)[:<int>COUNTER_MAX * sizeof(uint64_t)]


def collect(Worker worker not None) -> tuple[dict, list[int]]:
    """Returns the state as plain values, and the descriptors of its connections, in their order."""
    cdef Router router = worker.router
    cdef StateRecorder recorder = StateRecorder.__new__(StateRecorder)
    cdef Session session
    cdef Connection connection
    cdef list facts = [], connections = [], fds = []
    while worker.reporter.changes:
        worker.reporter.flush_registry()
    worker.reporter.outlet().wake()
    worker.reporter.events = 0
    recorder.buffer = RecordBuffer()
    for session in router.sessions.values():
        if not session.logged:
            save(session, recorder, True)
        if session.link is not None or not session.logged:
            facts.append(facts_of(session))
    for connection in worker.turn.by_fd:
        if connection is not None and not stays_behind(connection):
            connections.append(to_values(connection))
            fds.append(connection.fd)
    return {
        "clock_offset_ns": router.clock_offset_ns, "access_seen": worker.access_checks.seen, "next_key": router.next_key,
        "records": bytes(recorder.buffer), "record_count": len(recorder.buffer), "facts": facts, "connections": connections,
    }, fds


cdef list facts_of(Session session):
    """Returns what records do not hold of a session."""
    cdef list held = [], replays
    cdef Delivery* slot
    cdef uint32_t i
    if session.held:
        for i in range(session.window.count):
            slot = session.window.at(i)
            if slot.held:
                held.append(slot.packet_id)
    replays = [] if not session.replays else [[subscription.wire_filter, cursor] for subscription, cursor in session.replays]
    return [
        session.key, session.known, session.logged, session.first_id if session.window is None or not session.window.count else 0,
        session.created_ms, held, replays, None if session.share_memory is None else [*session.share_memory.items()],
    ]


def note_owner(Worker worker not None, int pid) -> None:
    """Records the process that has the place, before it is told so: the supervisor must not end the one that serves."""
    worker.router.counters_segment.note_pid(worker.number, pid)


def leave(Worker worker not None) -> None:
    """The successor serves: closes all sockets that it has, and those that stay behind."""
    cdef Connection connection
    for connection in worker.turn.by_fd:
        if connection is None:
            continue
        if stays_behind(connection):
            connection.finish()
        else:
            close(connection.fd)
            connection.fd = -1
    worker.durability.close(0.0)


def go_on(Worker worker not None, bytes counters not None, uint64_t paused_ms) -> None:
    """The successor has ended: takes back what it has counted, if `counters` were saved before."""
    memcpy(worker.router.counters, PyBytes_AS_STRING(counters), <size_t>len(counters))
    worker.router.read_clock()
    shift_silence(worker, paused_ms)


def shift_silence(Worker worker not None, uint64_t paused_ms) -> None:
    """The time in which no client was read does not count as silence of clients."""
    cdef Connection connection
    for connection in worker.turn.by_fd:
        if connection is not None and connection.last_packet_ms:
            connection.last_packet_ms += paused_ms


# --- the successor ------------------------------------------------------------------------------------------------------------------


def take_clock(Worker worker not None, dict state not None) -> None:
    """Continues the clock of the predecessor: all times in its state are those of this clock."""
    cdef Router router = worker.router
    router.clock_offset_ns = <int64_t>state["clock_offset_ns"]
    router.read_clock()
    router.timers.tick = router.now_ms // SLOT_MS
    router.next_key = max(router.next_key, <uint64_t>state["next_key"])


def adopt(Replay replay not None, dict state not None, list fds not None) -> None:
    """Enters sessions and connections into the tables of the worker, whose journal has been read. Raises ValueError, TypeError, KeyError."""
    cdef Worker worker = replay.worker
    cdef Router router = worker.router
    cdef Session session
    handlers = {int(kind): getattr(replay, "on_" + kind.name.lower(), None) for kind in Kind}
    replay.time_ms = router.now_ms
    replay.logged = OUT_OF_JOURNAL
    for item in decode_items(state["records"], state["record_count"]):
        handler = handlers.get(item[0])
        if handler is not None:
            handler(item)
    if len(fds) != len(state["connections"]):
        raise ValueError(f"{len(state['connections'])} connections, {len(fds)} descriptors")
    for values, fd in zip(state["connections"], fds):
        key = values.get("session")
        session = None if key is None else router.by_key[key]
        from_values(worker, values, fd, session)
    for facts in state["facts"]:
        take_facts(router, facts)


cdef int take_facts(Router router, list facts) except -1:
    cdef Session session
    cdef Delivery* slot
    key, _, _, first_id, created_ms, held, replays, share_memory = facts
    session = router.by_key[key]
    session.created_ms = created_ms
    if first_id:
        session.first_id = first_id
    for packet_id in held:
        slot = session.in_window(packet_id)
        if slot == NULL:
            raise ValueError(f"packet id {packet_id} is not in the window")
        slot.held = True
        session.held += 1
    if replays:
        session.replays = [(session.find_subscription(wire_filter), None if cursor is None else tuple(cursor)) for wire_filter, cursor in replays]
        router.replays.sessions.append(session)
    if share_memory is not None:
        session.share_memory = {tuple(place): tuple(turn) if isinstance(turn, list) else turn for place, turn in share_memory}
    return 0


cdef int count_sockets(Worker worker) except -1:
    """Sets the counts of open sockets to what is here: those that stayed behind are closed, also by the end of the predecessor."""
    cdef Connection connection
    cdef dict here = {}
    for connection in worker.turn.by_fd:
        if connection is not None:
            here[connection.listener_number] = here.get(connection.listener_number, 0) + 1
    for listener in range(worker.router.counters_segment.listeners):
        worker.turn.sockets[<int>listener].balance -= worker.turn.sockets[<int>listener].here - <int64_t>here.get(listener, 0)
        worker.turn.sockets[<int>listener].here = here.get(listener, 0)
    return 0


def finish(Worker worker not None, dict state not None) -> None:
    """The place is this worker's: what only one worker may do, behind the steps of a recovery."""
    cdef Router router = worker.router
    cdef Session session
    cdef Connection connection
    if worker.durability.gate is not None:
        for connection in worker.turn.by_fd:
            if connection is not None:
                connection.guard = worker.durability.gate.fence(connection)
    for session in router.sessions.values():
        session.registered = True
        if session.link is not None:
            session.set_deadline()
    for facts in state["facts"]:
        session = router.by_key[facts[0]]
        session.known, session.logged = facts[1], facts[2]
    if router.recorder is None:
        router.route_changes.replace_all()  # else record_sessions() has done so
    count_sockets(worker)
    worker.access_checks.seen = min(worker.access_checks.seen, <uint64_t>state["access_seen"])
