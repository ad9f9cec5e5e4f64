"""Everything that a worker hands to its successor: connections, and what its journal does not have of sessions.

    quiet_pass() until reason_to_wait() is None -> collect()      the predecessor, which neither reads nor serves meanwhile
    Replay.read(journal) -> adopt() -> finish()                   the successor

    departing_pass() until all workers are at rest -> part()      a worker that ends with all others: another number of workers follows
    Replay.read(journals) -> adopt_part() -> finish_parts()       one of the workers that follow

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
from shm.ring cimport Ring

import select
import threading
import time

from shardbroker.journal.schema import Kind, decode_items
from shardbroker.worker.durability import RETENTION_THREAD

__all__ = [
    "adopt", "adopt_part", "beat", "close_journal", "collect", "departing_pass", "finish", "finish_parts", "go_on", "leave",
    "note_owner", "obstacle", "part", "quiet_pass", "reason_to_wait", "rest_of", "saved_counters", "shift_silence", "shift_silence_of", "take_clock",
]

cdef enum:
    SLOT_MS = 64                           # of the timer wheel

cdef uint32_t OUT_OF_JOURNAL = 0           # `logged` of messages that arrive as records


# --- the predecessor ----------------------------------------------------------------------------------------------------------------


def obstacle(Worker worker not None) -> str:
    """Returns why the state of this worker cannot be handed over; empty: it can. It may be different later."""
    cdef Router router = worker.router
    cdef Session session
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
    worker.push_back.release_all()         # those messages are in their queues, and what a queue is waited for does not move
    if worker.access_checks.fd >= 0:
        worker.access_checks.take_results()
        worker.access_checks.look()
    if router.subacks.link >= 0:
        router.subacks.take_answers()
        router.subacks.give_up()
    if worker.cluster is not None:
        worker.cluster.settle()
    if worker.durability.streams.changed and worker.durability.recorder is not None:
        worker.durability.streams.write(worker.durability.recorder)    # else with the next effect of a message
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
    if worker.push_back.holding or worker.push_back.full:
        return "acknowledgements that wait for a full queue"           # since the pass has resumed a PUBLISH
    if worker.access_checks.rechecking:
        return "a check of rules that have changed"
    if router.subacks.held:
        return "the routes of a subscription at other nodes"
    if any([thread.name == RETENTION_THREAD for thread in threading.enumerate()]):
        return "the removal of old segments"
    for connection in worker.turn.by_fd:
        if connection is not None:
            reason = connection_waits(connection)
            if reason is not None:
                return reason
    return "" if worker.cluster is None else worker.cluster.reason_to_wait()


def leave_nodes(Worker worker not None) -> bool:
    """Takes nothing of other nodes from now on, until `go_on`. Returns whether that is new."""
    if worker.cluster is None or not worker.cluster.listening:
        return False
    worker.cluster.stop_listening()
    return True


def saved_counters(Worker worker not None) -> bytes:
    """Returns the counters and gauges, which the successor writes to before it is sure of its place."""
    return (<char*>worker.router.counters)[:<int>COUNTER_MAX * sizeof(uint64_t)]


def collect(Worker worker not None) -> tuple[dict, list[int]]:
    """Returns the state as plain values, and the descriptors of its connections, in their order."""
    cdef Router router = worker.router
    cdef Share share = Share()
    cdef Session session
    cdef Connection connection
    report_all(worker)
    for session in (*router.sessions.values(), *worker.durability.leaving()):
        share.add_session(session)
    for connection in worker.turn.by_fd:
        if connection is not None and not stays_behind(connection):
            share.add_connection(connection)
    return share.values(worker) | {
        "access_seen": worker.access_checks.seen, "subacks": router.subacks.last_ticket,
        "cluster": None if worker.cluster is None else worker.cluster.image(),
    }, share.fds


cdef class Share:
    """Sessions and connections for one process that follows."""
    cdef StateRecorder recorder
    cdef list facts, connections
    cdef readonly list fds

    def __cinit__(self):
        self.recorder = StateRecorder.__new__(StateRecorder)
        self.recorder.buffer = RecordBuffer()
        self.facts = []
        self.connections = []
        self.fds = []

    cdef int add_session(self, Session session) except -1:
        if not session.logged:
            if session.place is not None:
                self.recorder.placed(session, session.place)   # before SESSION_SAVED, which must not take the place of another session
            save(session, self.recorder, True)
        if session.link is not None or not session.logged:
            self.facts.append(facts_of(session))
        return 0

    cdef int add_connection(self, Connection connection) except -1:
        self.connections.append(to_values(connection))
        self.fds.append(connection.fd)
        return 0

    cdef dict values(self, Worker worker):
        return {
            "clock_offset_ns": worker.router.clock_offset_ns, "next_key": worker.router.next_key,
            "records": bytes(self.recorder.buffer), "record_count": len(self.recorder.buffer), "facts": self.facts,
            "connections": self.connections,
            "streams": [[origin, identity, position] for (origin, identity), position in worker.durability.streams.snapshot().items()],
        }


cdef int report_all(Worker worker) except -1:
    while worker.reporter.changes:
        worker.reporter.flush_registry()
    worker.reporter.outlet().wake()
    worker.reporter.events = 0
    return 0


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


def departing_pass(Worker worker not None) -> None:
    """A quiet pass that also takes what acceptors, other workers and the manager have sent. What processes flows have sent stays in its
    ring: they publish again what no journal has."""
    cdef int producer
    for channel, react in list(worker.intake.channels.items()):
        if react is True:
            worker.intake.accept_some(channel)
    if worker.durability.behind:
        worker.inlets.drain_manager()
    else:
        for producer in (*range(worker.topology.workers), worker.router.reporter.manager):
            if producer != worker.number:
                worker.inlets.drain_lane(producer, worker.inlets.inbox.lane(producer))
    quiet_pass(worker)


def rest_of(Worker worker not None) -> tuple[str, int]:
    """Returns what has to be finished before this worker can end, empty if nothing, and how much it has taken of its rings."""
    cdef Ring ring
    cdef uint64_t taken = 0
    reason = reason_to_wait(worker)
    for producer in (*range(worker.topology.workers), worker.router.reporter.manager):
        ring = worker.inlets.inbox.lane(producer)
        taken += ring.taken()
        if not reason and producer != worker.router.reporter.manager and ring.waiting():
            reason = "a message of another worker"
    if not reason:
        poll = select.poll()
        for channel, react in worker.intake.channels.items():
            if react is True:
                poll.register(channel, select.POLLIN)
        if poll.poll(0):
            reason = "a new connection"
    return reason, taken


def part(Worker worker not None, division) -> list[tuple[dict, list[int]]]:
    """Returns for each worker of the division what collect() returns of all. A connection without a session stays behind."""
    cdef Session session
    cdef Connection connection
    cdef Share share
    cdef list shares = [Share() for _ in range(division.workers)]
    report_all(worker)
    for session in worker.router.sessions.values():
        share = shares[division.worker_of(session.client_id)]
        share.add_session(session)
    for connection in worker.turn.by_fd:
        if connection is not None and connection.session is not None and not stays_behind(connection):
            share = shares[division.worker_of(connection.session.client_id)]
            share.add_connection(connection)
    return [((<Share>one).values(worker), (<Share>one).fds) for one in shares]


def beat(Worker worker not None) -> None:
    """Shows that this worker, which only waits, has not ended."""
    worker.router.counters_segment.beat(worker.number, <uint64_t>(time.monotonic() * 1000))


def close_journal(Worker worker not None) -> None:
    """Everything is in the journal, which other processes read from now on."""
    worker.durability.close(0.0)


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
    if worker.cluster is not None:
        worker.cluster.listen_again()
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


cdef int replay_records(Replay replay, dict state, list fds) except -1:
    """Enters the sessions that no journal has. Raises ValueError, also if a descriptor of a connection is missing."""
    handlers = {int(kind): getattr(replay, "on_" + kind.name.lower(), None) for kind in Kind}
    replay.time_ms = (<Worker>replay.worker).router.now_ms
    replay.logged = OUT_OF_JOURNAL
    for item in decode_items(state["records"], state["record_count"]):
        handler = handlers.get(item[0])
        if handler is not None:
            handler(item)
    if len(fds) != len(state["connections"]):
        raise ValueError(f"{len(state['connections'])} connections, {len(fds)} descriptors")
    return 0


def adopt(Replay replay not None, dict state not None, list fds not None) -> None:
    """Enters sessions and connections into the tables of the worker, whose journal has been read. Raises ValueError, TypeError, KeyError."""
    cdef Worker worker = replay.worker
    cdef Router router = worker.router
    cdef Session session
    replay_records(replay, state, fds)
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
        # An earlier version continues a replay whose subscription has ended.
        session.replays = [
            (subscription, None if cursor is None else tuple(cursor)) for wire_filter, cursor in replays
            if (subscription := session.find_subscription(wire_filter)) is not None]
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
        router.route_changes.leave_all()    # else record_sessions() has done so
    worker.durability.streams.restore({(origin, identity): position for origin, identity, position in state["streams"]})
    router.subacks.last_ticket = max(router.subacks.last_ticket, <uint64_t>state["subacks"])
    count_sockets(worker)
    worker.access_checks.seen = min(worker.access_checks.seen, <uint64_t>state["access_seen"])


def adopt_part(Replay replay not None, int source, dict state not None, list fds not None) -> list[Connection]:
    """Enters what worker `source` of the broker before has handed to this one. Returns the connections.

    A connection whose session no journal has, since that was damaged, ends. Raises ValueError, TypeError, KeyError.
    """
    cdef Worker worker = replay.worker
    cdef Router router = worker.router
    cdef Session session
    cdef int64_t later_ms = (router.clock_offset_ns - <int64_t>state["clock_offset_ns"]) // 1000000
    cdef list connections = []
    unlogged = [facts[0] for facts in state["facts"] if not facts[2]]
    if replay.homes is not None:
        for key in unlogged:
            replay.homes[key] = source
    replay.source = source
    replay_records(replay, state, fds)
    replay.in_memory.update([router.by_key[key] for key in unlogged])
    for values, fd in zip(state["connections"], fds):
        session = router.by_key.get(values["session"])
        if session is None or session.link is not None or router.sessions.get(session.client_id) is not session:
            close(fd)
            continue
        connections.append(from_values(worker, moved_by(values, later_ms), fd, session))
    for facts in state["facts"]:
        if facts[0] in router.by_key:
            take_facts(router, facts)
    if source == worker.number:
        router.next_key = max(router.next_key, <uint64_t>state["next_key"])
    return connections


cdef dict moved_by(dict values, int64_t later_ms):
    """The clock of this process is ahead of that of the other one by this time."""
    if values["due"]:
        values["due"] += later_ms
    client = values["client"]
    client[7] += later_ms
    if "rates" in values:
        values["rates"][2] += later_ms
        values["rates"][3] += later_ms if values["rates"][3] else 0
    return values


def finish_parts(Worker worker not None, list states not None) -> None:
    """What a recovery does not know; states: of all workers of the broker before."""
    cdef Router router = worker.router
    cdef Session session
    cdef Connection connection
    cdef dict positions = {}
    for connection in worker.turn.by_fd:
        if connection is not None:
            if worker.durability.gate is not None:
                connection.guard = worker.durability.gate.fence(connection)
            worker.reporter.note_session(connection.session)
            connection.session.set_deadline()
    for state in states:
        for facts in state["facts"]:
            session = router.by_key.get(facts[0])
            if session is not None:
                session.known, session.logged = facts[1], facts[2]
        for origin, identity, position in state["streams"]:
            positions[origin, identity] = max(position, positions.get((origin, identity), 0))
    if router.recorder is None:
        router.route_changes.replace_all()  # else record_sessions() has done so
        worker.durability.streams.restore(positions)
    count_sockets(worker)
    # Rules and bans may have changed since the last look: connections are checked again in the first pass.
    worker.access_checks.changes += 1
    worker.access_checks.late = True


def shift_silence_of(list connections not None, uint64_t paused_ms) -> None:
    """As shift_silence(), for connections that were not read for this time."""
    cdef Connection connection
    for connection in connections:
        if connection.fd >= 0 and connection.last_packet_ms:
            connection.last_packet_ms += paused_ms
