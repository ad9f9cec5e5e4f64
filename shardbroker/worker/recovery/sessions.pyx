"""Recovered sessions and deferred messages: from now on recorded, and once all workers serve, resumed."""

from shardbroker.mqtt.spec cimport UNSPECIFIED_ERROR
from shardbroker.pubsub.message cimport Message
from shardbroker.session.image cimport bytes_field, field_or_none
from shardbroker.session.journaling cimport ENDED_MOVED_TO_NODE
from shardbroker.session.place cimport Place
from shardbroker.session.place cimport GONE, OWNED
from shardbroker.session.session cimport Session
from shardbroker.worker.deferred cimport (
    DEFERRED_FOR_GROUP, DEFERRED_FOR_LOCAL, DEFERRED_FOR_RING, DEFERRED_FOR_TIME, Deferred, defer_for_all, defer_for_group, defer_for_local,
    defer_for_ring, defer_for_time,
)
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.recovery.replay cimport Replay, is_for_members
from shardbroker.worker.router cimport Router
from shm.destinations cimport WORKER, kind_of
from shm.records cimport FLAG_ANSWERED

from shardbroker.logs.phrases import log_line

__all__ = ["record_sessions", "resume_sessions"]


def record_sessions(Replay replay not None, bint routes_stay=False) -> None:
    """Every session is there: what happens to it from now on is recorded, and the routes of the worker are those of its sessions.

    routes_stay: the process before has handed over, so they are. To compare them takes a look at the routes of all workers."""
    cdef Worker worker = replay.worker
    cdef Router router = replay.router
    cdef Session session
    # A predecessor that began in the same second, or before the clock was set back, has given the numbers that would be next.
    router.next_key = max(router.next_key, replay.newest_key)
    if router.claims is None:
        take_back(replay)
    for session in list(replay.by_key.values()):
        session.known = True
        session.logged = session.expiry_ms > 0
        session.named_in = 0
        replay.end_lost(session)
        if router.sessions.get(session.client_id) is session:
            worker.reporter.note_session(session)
    defer_again(replay)
    used = {item[4] for forwarded in replay.forwarded.values() for _, items in forwarded.values() for item in items}
    if replay.homes is not None:
        used.update([item[3] for item in replay.deferred.values() if is_for_members(item)])
    replay.messages = {message_id: replay.messages.get(message_id) for message_id in used}
    if routes_stay:
        router.route_changes.leave_all()
    else:
        router.route_changes.replace_all()


cdef int take_back(Replay replay) except -1:
    """The node is in no cluster any more: sessions that are not merged into another one are served again, and those that are at another node
    end."""
    cdef Session session
    for session in list(replay.by_key.values()):
        if session.place is None:
            continue
        if session.place.state != OWNED and (session.place.state == GONE or session.client_id in replay.router.sessions):
            session.named_in = 0
            replay.router.recorder.ended(session, ENDED_MOVED_TO_NODE)
            replay.forget(session)
            continue
        replay.enter(session)
        session.named_in = 0
        replay.router.recorder.placed(session, Place())
        session.place = None
    return 0


def resume_sessions(Replay replay not None) -> None:
    """All workers serve: connections that broke with their worker end, and what has expired meanwhile ends."""
    cdef Router router = replay.router
    cdef Session session
    for session in list(replay.by_key.values()):
        if session.ended or session.link is not None or router.sessions.get(session.client_id) is not session:
            continue
        try:
            if session in replay.with_connection:
                router.client_gone(session, UNSPECIFIED_ERROR, True)
            else:
                session.set_deadline()
        except Exception as error:
            router.log_failure(log_line("session not resumed", client_id=session.client_id), error)


cdef int defer_again(Replay replay) except -1:
    """Messages that waited for room in a ring, for a look-up or for their time wait again. If the number of workers has changed, a delayed
    message belongs to the worker of its publisher, so that its messages stay in order, and another one to the worker that replaces the one
    where it was. It gets a new number: until all workers serve, the record with the old one counts, and then only the new one does."""
    cdef Worker worker = replay.worker
    cdef Router router = replay.router
    cdef Message message
    cdef Deferred deferred
    cdef bint moving = replay.homes is not None
    cdef int owner
    cdef list own = [number for source, number in replay.deferred if source == worker.number]
    router.retries.last_number = max(own + list(replay.stale), default=0)
    for number in replay.stale:
        router.recorder.deferred_done(number)
    replay.stale = set()
    for (source, number), item in sorted(replay.deferred.items()):
        message = replay.message(item[3])
        if message is None:
            continue
        if moving:
            owner = source % worker.topology.workers
            if item[2] == DEFERRED_FOR_TIME and message.client_id:
                owner = worker.topology.division.worker_of(message.client_id)
            if owner != worker.number or is_for_members(item):
                continue
        group, filter = bytes_field(item, 8), bytes_field(item, 9)
        if item[2] == DEFERRED_FOR_RING and (not moving or kind_of(item[4]) != WORKER):
            deferred = defer_for_ring(message, item[4], item[5], item[6], item[7], group, filter)
        elif item[2] == DEFERRED_FOR_RING:
            deferred = defer_for_group(message, group, filter, 0, item[7])
        elif item[2] == DEFERRED_FOR_GROUP:
            deferred = defer_for_group(message, group, filter, item[6], item[7])
        elif item[2] == DEFERRED_FOR_TIME:
            deferred = defer_for_time(message, field_or_none(item, 10) or 0)
        elif item[2] == DEFERRED_FOR_LOCAL:
            deferred = defer_for_local(message, FLAG_ANSWERED)
        else:
            deferred = defer_for_all(message, FLAG_ANSWERED)
        if moving:
            router.retries.last_number += 1
            deferred.number = router.retries.last_number
        else:
            deferred.number = number
        if deferred.purpose == DEFERRED_FOR_TIME:
            router.retries.delays.add(deferred)
        elif deferred.purpose == DEFERRED_FOR_LOCAL:
            router.retries.set_aside(deferred)
        else:
            router.retries.waiting.append(deferred)
    return 0
