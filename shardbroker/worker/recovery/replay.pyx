"""Reads journals into sessions; see replay.pxd."""

from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.session.image cimport bytes_field, field_or_none
from shardbroker.session.place cimport OWNED, Place
from shardbroker.worker.deferred cimport DEFERRED_FOR_LOCAL, DEFERRED_FOR_RING
from shm.counters cimport SESSIONS_COUNT
from shm.destinations cimport WORKER, kind_of
from shm.records cimport RECORD_PUBLISH

import time

from shardbroker.journal import Block, Damage, recovery_start, trusted
from shardbroker.cluster.merge import SeenIds
from shardbroker.journal import read as read_journal
from shardbroker.journal.schema import FIELDS, EndReason, Kind
from shardbroker.session.place import MERGED
from shm.partitions import Division

__all__ = ["Replay"]

cdef enum:
    ID_BYTES = 16
    FIRST_CYCLE = 1                        # of the journal that is read, see JournalRecorder.cycle
    KEY_WORKER_SHIFT = 52                  # of the worker in a session's number, see Router.next_key

OF_SESSIONS = frozenset(int(kind) for kind, fields in FIELDS.items() if fields[0][0] == "session")
"""Kinds of records that begin with a session."""
ENDED, MOVED = int(Kind.SESSION_ENDED), int(EndReason.MOVED)


cdef list unpacked(bytes ids):
    """Returns the ids of messages in a field."""
    cdef Py_ssize_t at
    return [int.from_bytes(ids[at:at + ID_BYTES], "big") for at in range(0, len(ids), ID_BYTES)]


cdef class Replay(SessionReader):
    """worker: one that does not serve yet, and writes no journal. owns: client id -> whether the session is this worker's.
    division: number of the division by which the journals were written last, 0 if that is unknown."""

    def __init__(self, Worker worker not None, owns, division=0):
        self.worker = worker
        self.router = self.context = worker.router
        self.logged = FIRST_CYCLE
        self.owns = owns
        self.by_key = {}
        self.with_connection = set()
        self.in_memory = set()
        self.last_seen = {}
        self.origins = {}
        self.places = {}
        self.elsewhere = set()
        self.foreign = []
        self.consumed = {}
        self.notes = {}
        self.takers = {}
        self.streams = {}
        self.forwarded = {}
        self.deferred = {}
        self.division = division
        self.stale = set()
        self.damage = []

    def clear(self) -> None:
        """Everything has been used."""
        self.forwarded = {}
        self.deferred = {}
        self.foreign = []
        self.messages = {}
        self.by_key = {}
        self.with_connection = set()
        self.in_memory = set()
        self.places = {}

    # --- records --------------------------------------------------------------------------------------------------------------

    def compare(self, directory, int worker) -> None:
        """Reads one journal of several, each of which may know the same session: the latest record of a session decides whose it is.
        A journal from which the session moved away does not count. To be called for each journal before the first replay."""
        cdef dict seen = {}
        if self.homes is None:
            self.homes = {}
        for part in trusted(read_journal(directory, recovery_start(directory))):
            if isinstance(part, Block):
                self.beat()
                for item in part.items():
                    if item[0] in OF_SESSIONS:
                        seen[item[1]] = 0 if item[0] == ENDED and item[2] == MOVED else part.header.time_us
        for key, time_us in seen.items():
            if time_us and time_us >= self.last_seen.get(key, 0):
                self.last_seen[key] = time_us
                self.homes[key] = worker

    def read(self, directory, int worker) -> None:
        """Reads the whole journal of a worker. Damaged blocks are listed in `damage`; everything outside them counts. Raises OSError."""
        self.source = worker
        handlers = {int(kind): getattr(self, "on_" + kind.name.lower(), None) for kind in Kind}
        for part in trusted(read_journal(directory, recovery_start(directory))):
            if not isinstance(part, Block):
                self.damage.append(part)
                continue
            self.beat()
            self.time_ms = part.header.time_us // 1000
            self.bytes += part.header.length
            self.block = part.header.first_sequence
            self.take_items(part, handlers)

    cdef int take_items(self, object block, dict handlers) except -1:
        """Applies the records of a block. A record that this version cannot use is damage, as bytes without a valid checksum are."""
        cdef object items = iter(block.items())
        while True:
            try:
                for item in items:
                    self.records += 1
                    handler = handlers.get(item[0])
                    if handler is not None:
                        handler(item)
                return 0
            except Exception as error:
                self.damage.append(Damage(block.path, block.offset, block.end, f"a record of kind {item[0]} cannot be used: {error!r}"))

    cdef int beat(self) except -1:
        self.router.counters_segment.beat(self.worker.number, <uint64_t>(time.monotonic() * 1000))
        return 0

    # --- sessions -------------------------------------------------------------------------------------------------------------

    cdef Session open(self, list item, bint new):
        cdef Session session = self.session_of(item)
        if <uint64_t>item[1] >> KEY_WORKER_SHIFT == <uint64_t>self.worker.number:
            self.newest_key = max(self.newest_key, <uint64_t>item[1])
        if self.homes is not None and self.homes.get(item[1]) != self.source:
            return None
        if not self.owns(item[2]):
            if self.source == self.worker.number:
                self.foreign.append((item[1], item[2]))
            self.elsewhere.add(item[1])
            return None
        if session is not None and new:
            self.forget(session)
            session = None
        if session is None:
            session = Session(self.router, item[1], item[2])
            session.created_ms = self.time_ms
            self.by_key[session.key] = session
            self.router.by_key[session.key] = session
            session.place = self.places.get(session.key)
            if session.place is None or session.place.state == OWNED:
                self.enter(session)
        self.origins[session.key] = self.source
        self.connected(session, item)
        self.with_connection.add(session)
        return session

    def on_session_created(self, list item) -> None:
        self.open(item, True)

    def on_session_saved(self, list item) -> None:
        self.open(item, True)

    def on_session_resumed(self, list item) -> None:
        self.open(item, False)

    cdef Session session_of(self, list item):
        if self.homes is not None and self.homes.get(item[1]) != self.source:
            return None
        return self.by_key.get(item[1])

    cdef int forget(self, Session session) except -1:
        cdef Subscription subscription
        for subscription in session.all_subscriptions():
            self.router.subscriptions.unsubscribe(session, subscription.wire_filter, 0)
        session.end()
        self.with_connection.discard(session)
        self.by_key.pop(session.key, None)
        self.router.by_key.pop(session.key, None)
        return self.leave(session)

    cdef int enter(self, Session session) except -1:
        previous = self.router.sessions.get(session.client_id)
        if previous is session:
            return 0
        if previous is not None:
            self.forget(previous)
        self.router.sessions[session.client_id] = session
        self.router.gauge(SESSIONS_COUNT, 1)
        return 0

    cdef int leave(self, Session session) except -1:
        if self.router.sessions.get(session.client_id) is session:
            del self.router.sessions[session.client_id]
            self.router.gauge(SESSIONS_COUNT, -1)
        return 0

    def on_session_ended(self, list item) -> None:
        cdef Session session = self.session_of(item)
        self.places.pop(item[1], None)
        if session is not None:
            self.forget(session)
        elif self.homes is not None and self.homes.get(item[1]) == self.source:
            self.elsewhere.discard(item[1])

    def on_disconnected(self, list item) -> None:
        cdef Session session = self.session_of(item)
        SessionReader.on_disconnected(self, item)
        if session is not None:
            self.with_connection.discard(session)

    # --- cluster --------------------------------------------------------------------------------------------------------------

    def on_message(self, list item) -> None:
        SessionReader.on_message(self, item)
        if self.router.passed is not None:
            self.router.passed.add(item[1])

    def on_placed(self, list item) -> None:
        cdef Session session = self.session_of(item)
        cdef Place place
        if self.homes is not None and self.homes.get(item[1]) != self.source:
            return
        seen = None
        if field_or_none(item, 8) is not None:
            passed, base, forgotten = [unpacked(bytes_field(item, at)) for at in (8, 9, 10)]
            seen = SeenIds(passed, max(base, default=0), (), forgotten)
        merged = frozenset(MERGED.iter_unpack(field_or_none(item, 11) or b""))
        mixed = bool(field_or_none(item, 12))
        place = self.places[item[1]] = Place(item[2], item[3], item[4], item[5], item[6], item[7], seen, merged, mixed)
        if session is None:
            return
        session.place = place
        if place.state == OWNED:
            self.enter(session)
        else:
            self.leave(session)

    def on_seen(self, list item) -> None:
        cdef Place place = self.places.get(item[1])
        if place is None or place.seen is None or (self.homes is not None and self.homes.get(item[1]) != self.source):
            return
        for one in unpacked(item[2]):
            place.seen.add(one)

    cdef int add_subscription(self, Session session, Subscription subscription) except -1:
        return self.router.subscriptions.subscribe(session, subscription)

    cdef int remove_subscription(self, Session session, bytes wire_filter) except -1:
        self.router.subscriptions.unsubscribe(session, wire_filter, 0)
        return 0

    # --- rings and messages under way -----------------------------------------------------------------------------------------

    def on_consumed(self, list item) -> None:
        cdef bint one_message = item[2] & 0xFFFF == ONE_MESSAGE
        if not one_message:
            self.notes[item[1], item[2]] = item[3], field_or_none(item, 4)
        if item[2] >> TAKER_SHIFT == 0:
            self.consumed[item[1], item[2]] = item[3]
        else:
            division = Division(item[2] >> TAKERS_SHIFT, tuple(bytes_field(item, 4)))
            taken = (item[3], item[1]) if one_message else item[1]
            self.takers.setdefault(taken, set()).add(((item[2] >> TAKER_SHIFT & 0xFFFF) - 1, division))

    def on_arrived(self, list item) -> None:
        if field_or_none(item, 4):
            self.streams.get(self.source, {}).pop((item[1], item[2]), None)
        else:
            self.streams.setdefault(self.source, {})[item[1], item[2]] = item[3]

    def stream_positions(self) -> dict[tuple[int, int], int]:
        """Returns how far the streams of other nodes were dealt with.

        After the number of workers has changed, what one of them had not dealt with is delivered again. Streams of other brokers have
        one worker each.
        """
        cdef dict found = {}
        cdef list sources = list(self.streams.values())
        for positions in sources:
            for stream in positions:
                known = [one.get(stream, 0) for one in sources]
                found[stream] = max(known) if stream[0] >> 31 else min(known)
        return found

    def on_forwarded(self, list item) -> None:
        cdef dict forwarded = self.forwarded.setdefault(self.source, {})
        # Messages of an earlier block have left once a later block has some; at level `machine` they may not be on a disk yet.
        block, items = forwarded.get((item[1], item[2]), (0, ()))
        if not items or (block != self.block and not until_arrived(item)):
            forwarded[item[1], item[2]] = self.block, [item]
        else:
            items.append(item)
            forwarded[item[1], item[2]] = self.block, items

    def on_synced(self, list item) -> None:
        if len(item) > 2 and item[2]:
            self.forwarded.pop(self.source, None)

    def on_held(self, list item) -> None:
        cdef object division = field_or_none(item, 11)
        if division is None or division == self.division or not self.division:
            self.deferred[self.source, item[1]] = item
        elif self.source == self.worker.number:
            # Written for other workers: by an earlier division, or at a start that was killed before it was one.
            self.stale.add(item[1])

    def on_let_go(self, list item) -> None:
        self.deferred.pop((self.source, item[1]), None)
        if self.source == self.worker.number:
            self.stale.discard(item[1])


cdef bint is_for_members(list item):
    return item[2] == DEFERRED_FOR_LOCAL or (item[2] == DEFERRED_FOR_RING and item[5] == RECORD_PUBLISH and kind_of(item[4]) == WORKER)


cdef bint until_arrived(list item):
    return field_or_none(item, 10) is not None
