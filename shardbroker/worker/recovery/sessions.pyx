"""Recovered sessions and deferred messages: from now on recorded, and once all workers serve, resumed."""

from libc.stdint cimport uint64_t

from shardbroker.mqtt.spec cimport UNSPECIFIED_ERROR
from shardbroker.pubsub.message cimport Message
from shardbroker.session.image cimport bytes_field, field_or_none
from shardbroker.session.session cimport Session
from shardbroker.worker.deferred cimport (
    DEFERRED_FOR_GROUP, DEFERRED_FOR_RING, DEFERRED_FOR_TIME, Deferred, defer_for_all, defer_for_group, defer_for_ring, defer_for_time,
)
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.recovery.replay cimport Replay
from shardbroker.worker.router cimport Router
from shm.records cimport RECORD_SHARED

from shardbroker.logs.phrases import log_line

__all__ = ["record_sessions", "resume_sessions"]


def record_sessions(Replay replay not None) -> None:
    """Every session is there: what happens to it from now on is recorded, and the routes of the worker are those of its sessions."""
    cdef Worker worker = replay.worker
    cdef Router router = replay.router
    cdef Session session
    # A predecessor that began in the same second, or before the clock was set back, has given the numbers that would be next.
    router.next_key = max(router.next_key, replay.newest_key)
    for session in list(replay.by_key.values()):
        session.known = True
        session.logged = session.expiry_ms > 0
        session.named_in = 0
        replay.end_lost(session)
        worker.reporter.note_session(session)
    defer_again(replay)
    replay.messages = {
        item[4]: replay.messages.get(item[4])
        for forwarded in replay.forwarded.values() for _, items in forwarded.values() for item in items
    }
    router.recover_routes()


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
    """Messages that waited for room in a ring or for their time wait again. If the number of workers has changed, each worker takes those of
    the journals that its own replaces."""
    cdef Worker worker = replay.worker
    cdef Router router = replay.router
    cdef Message message
    cdef Deferred deferred
    cdef set known = set()
    for (source, number), item in sorted(replay.deferred.items(), key=lambda entry: (entry[0][0] != worker.number, entry[0])):
        message = replay.message(item[3])
        if source % worker.topology.workers != worker.number or message is None:
            continue
        group, filter = bytes_field(item, 8), bytes_field(item, 9)
        if item[2] == DEFERRED_FOR_RING and replay.homes is None:
            deferred = defer_for_ring(message, item[4], item[5], item[6], item[7], group, filter)
        elif item[2] == DEFERRED_FOR_RING and item[5] != RECORD_SHARED:
            continue                       # its worker's sessions are divided among several workers now: docs/design/0002-durability.md
        elif item[2] == DEFERRED_FOR_RING:
            deferred = defer_for_group(message, group, filter, 0, item[7])
        elif item[2] == DEFERRED_FOR_GROUP:
            deferred = defer_for_group(message, group, filter, item[6], item[7])
        elif item[2] == DEFERRED_FOR_TIME:
            deferred = defer_for_time(message, field_or_none(item, 10) or 0)
        else:
            deferred = defer_for_all(message)
        if (item[3], group, filter, deferred.destination) in known:
            continue                       # an earlier start took it from the other journal and was killed after that
        known.add((item[3], group, filter, deferred.destination))
        if source == worker.number:
            deferred.number = number
            router.last_deferred = max(router.last_deferred, <uint64_t>number)
        else:
            router.last_deferred += 1
            deferred.number = router.last_deferred
        if deferred.purpose == DEFERRED_FOR_TIME:
            router.delays.add(deferred)
        else:
            router.retry.append(deferred)
    return 0
