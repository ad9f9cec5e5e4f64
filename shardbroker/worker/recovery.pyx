"""Making the sessions of a worker again from its journal.

    Recovery(worker).replay(directory)      records -> sessions, as they were at the last block
    .take_old_rings(inboxes)              what was in rings that nobody reads any more
    .finish()                             routes; from here on the journal is written
    .resume_reading()                             once clients may come: connections that are gone, wills, messages that never left

A block is a pass of the worker that wrote it: all of it happened, or nothing. Nothing of what the broker had said to a client or to
another worker can be newer than the last block (docs/design/0002-durability.md).
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.mqtt.spec cimport UNSPECIFIED_ERROR
from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.subscriptions cimport Subscription
from shardbroker.session.image cimport SessionReader, bytes_field, field_or_none
from shardbroker.session.session cimport Session
from shardbroker.worker.deferred cimport (
    HELD_FOR_GROUP, HELD_FOR_RING, HELD_FOR_TIME, Deferred, defer_for_all, defer_for_group, defer_for_ring, defer_for_time,
)
from shardbroker.worker.one_pass cimport Worker
from shm.counters cimport SESSIONS_COUNT
from shm.destinations cimport RETAINED_STORE
from shm.records cimport RECORD_PUBLISH, RECORD_SHARED, check_record
from shm.ring cimport Inbox, Ring

import time

from shardbroker.journal import Block, Damage, read, recovery_start, trusted
from shardbroker.journal.schema import FIELDS, EndReason, Kind
from shm.partitions import Division
from shm.records import DAMAGE

__all__ = ["Recovery"]

cdef enum:
    FIRST_CYCLE = 1                        # of the journal that is read, see JournalRecorder.cycle
    RINGS_REMEMBERED = 16                  # starts of the broker whose rings are known: producers ask for those of their last few
    KEY_WORKER_SHIFT = 52                  # of the worker in a session's number, see Router.next_key
    TAKER_SHIFT = 16                       # of the worker's number plus one in `consumed`, see take_old_rings
    TAKERS_SHIFT = 32                      # of the number of workers, beside it

cdef uint64_t NEVER = <uint64_t>-1

OF_SESSIONS = frozenset(int(kind) for kind, fields in FIELDS.items() if fields[0][0] == "session")
"""Kinds of records that begin with a session."""
ENDED, MOVED, CONSUMED = int(Kind.SESSION_ENDED), int(EndReason.MOVED), int(Kind.CONSUMED)


cdef class Recovery(SessionReader):
    """worker: one that serves nobody yet, and writes no journal."""
    cdef Worker worker
    cdef dict by_key                       # session number in the journal -> Session
    cdef readonly dict consumed            # (rings, producer) -> position
    cdef dict notes                        # the same with takers' marks -> (position, weights): as the journal has it
    cdef uint64_t newest_key               # session number: the greatest that this worker has given, as far as journals have it
    cdef dict origins                      # session key -> worker whose journal it is from
    cdef int source                        # worker whose journal is being read
    cdef dict homes                        # session key -> worker whose journal knows it best; None: there is one journal only
    cdef dict last_seen                    # session key -> µs of its last record in that journal
    cdef dict forwarded                    # worker -> (rings, destination) -> block, records of messages for it that may never have left
    cdef dict held                         # (worker, number) -> record of a message that waits for room in a ring
    cdef dict takers                       # rings -> (worker, Division) that had taken all of them when an earlier start was killed
    cdef set elsewhere                     # keys of sessions that another worker has, after the number of workers changed
    cdef list foreign                      # session numbers and client ids of this journal that belong to other workers now
    cdef readonly object owns              # client id -> whether it is this worker's
    cdef set with_connection               # Sessions without an end of their last connection
    cdef readonly list damage              # journal.Damage found on the way
    cdef readonly uint64_t records, bytes
    cdef uint64_t block                    # its first sequence
    cdef dict arrivals                     # (rings, destination) -> position: how far that worker's journal says that it has come

    def __init__(self, Worker worker not None, owns):
        self.worker = self.context = worker
        self.logged = FIRST_CYCLE
        self.owns = owns
        self.foreign = []
        self.by_key = {}
        self.consumed = {}
        self.notes = {}
        self.origins = {}
        self.last_seen = {}
        self.forwarded = {}
        self.held = {}
        self.takers = {}
        self.elsewhere = set()
        self.with_connection = set()
        self.damage = []
        self.arrivals = {}

    # --- records ------------------------------------------------------------------------------------------------------------

    def compare(self, directory, int worker) -> None:
        """Looks at one journal of several, each of which may know the same session: the one that says most lately what became of it is
        right. One that says that it moved away knows nothing of it any more. To be called for each before the first replay."""
        cdef dict seen = {}
        if self.homes is None:
            self.homes = {}
        for part in trusted(read(directory, recovery_start(directory))):
            if isinstance(part, Block):
                self.beat()
                for item in part.items():
                    if item[0] in OF_SESSIONS:
                        seen[item[1]] = 0 if item[0] == ENDED and item[2] == MOVED else part.header.time_us
        for key, time_us in seen.items():
            if time_us and time_us >= self.last_seen.get(key, 0):
                self.last_seen[key] = time_us
                self.homes[key] = worker

    def replay(self, directory, int worker) -> None:
        """Reads the whole journal of a worker. Damaged blocks are named in `damage`; everything outside them counts. Raises OSError."""
        self.source = worker
        handlers = {int(kind): getattr(self, "on_" + kind.name.lower(), None) for kind in Kind}
        for part in trusted(read(directory, recovery_start(directory))):
            if not isinstance(part, Block):
                self.damage.append(part)
                continue
            self.beat()
            self.time_ms = part.header.time_us // 1000
            self.bytes += part.header.length
            self.block = part.header.first_sequence
            self.take_items(part, handlers)

    cdef int take_items(self, object block, dict handlers) except -1:
        """The records of a block. One that this version cannot make sense of is damage, as bytes without a valid checksum are."""
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
        """The supervisor sees that there is progress."""
        self.worker.counters_segment.beat(self.worker.number, <uint64_t>(time.monotonic() * 1000))
        return 0

    cdef Session open(self, list item, bint anew):
        cdef Worker worker = self.worker
        cdef Session session = self.session_of(item)
        if <uint64_t>item[1] >> KEY_WORKER_SHIFT == <uint64_t>worker.number:
            self.newest_key = max(self.newest_key, <uint64_t>item[1])
        if self.homes is not None and self.homes.get(item[1]) != self.source:
            return None
        if not self.owns(item[2]):
            if self.source == self.worker.number:
                self.foreign.append((item[1], item[2]))
            self.elsewhere.add(item[1])
            return None
        if session is not None and anew:
            self.forget(session)
            session = None
        if session is None:
            session = Session(worker, item[1], item[2])
            session.created_ms = self.time_ms
            self.by_key[session.key] = session
            previous = worker.sessions.get(session.client_id)
            if previous is not None:
                self.forget(previous)
            worker.sessions[session.client_id] = session
            worker.by_key[session.key] = session
            worker.gauge(SESSIONS_COUNT, 1)
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
        """It has ended, and nothing of it is left."""
        cdef Worker worker = self.worker
        cdef Subscription subscription
        for subscription in session.all_subscriptions():
            worker.unsubscribe(session, subscription.wire_filter, 0)
        session.end()
        self.with_connection.discard(session)
        self.by_key.pop(session.key, None)
        worker.by_key.pop(session.key, None)
        if worker.sessions.get(session.client_id) is session:
            del worker.sessions[session.client_id]
        worker.gauge(SESSIONS_COUNT, -1)
        return 0

    def on_session_ended(self, list item) -> None:
        cdef Session session = self.session_of(item)
        if session is not None:
            self.forget(session)
        elif self.homes is not None and self.homes.get(item[1]) == self.source:
            self.elsewhere.discard(item[1])

    def on_disconnected(self, list item) -> None:
        cdef Session session = self.session_of(item)
        SessionReader.on_disconnected(self, item)
        if session is not None:
            self.with_connection.discard(session)

    cdef int add_subscription(self, Session session, Subscription subscription) except -1:
        return self.worker.subscribe(session, subscription)

    cdef int remove_subscription(self, Session session, bytes wire_filter) except -1:
        self.worker.unsubscribe(session, wire_filter, 0)
        return 0

    # --- rings ------------------------------------------------------------------------------------------------------------------

    def on_consumed(self, list item) -> None:
        self.notes[item[1], item[2]] = item[3], field_or_none(item, 4)
        if item[2] >> TAKER_SHIFT == 0:
            self.consumed[item[1], item[2]] = item[3]
        else:
            division = Division(item[2] >> TAKERS_SHIFT, tuple(bytes_field(item, 4)))
            self.takers.setdefault(item[1], set()).add(((item[2] >> TAKER_SHIFT & 0xFFFF) - 1, division))

    def on_forwarded(self, list item) -> None:
        cdef dict forwarded = self.forwarded.setdefault(self.source, {})
        # Once there is another block with some, those of the block before had left; at level `machine` not to a disk yet.
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
        self.held[self.source, item[1]] = item

    def on_let_go(self, list item) -> None:
        self.held.pop((self.source, item[1]), None)

    def ask_others(self, inboxes, journal_of) -> None:
        """After a power cut the rings are gone: how far the others have come says what their journals say.

        inboxes: as for resume(). journal_of: worker -> directory of its journal.
        """
        cdef dict found = {}
        for (rings, destination), (_, items) in self.forwarded.get(self.worker.number, {}).items():
            if destination == RETAINED_STORE:
                self.arrivals[rings, destination] = self.worker.retained.arrived(rings)
            elif (rings, destination) not in inboxes and until_arrived(items[0]):
                if destination not in found:
                    found[destination] = consumed_from(journal_of(destination), self.worker.number)
                self.arrivals[rings, destination] = found[destination].get(rings, 0)

    def latest_arrivals(self, Inbox inbox not None) -> dict:
        """What is known of rings of before: they may be found once more, or their producers may ask."""
        cdef dict last = {}
        for (rings, producer), note in self.notes.items():
            if rings != inbox.identity:
                last.setdefault(rings, {})[rings, producer] = note
        return {key: value for rings in list(last)[-RINGS_REMEMBERED:] for key, value in last[rings].items()}

    def take_own_ring(self, Inbox inbox not None) -> None:
        """Goes on behind the records that the predecessor had dealt with, though it did not come to giving them back."""
        for producer, ring in enumerate(inbox.lanes):
            (<Ring>ring).skip_to(self.consumed.get((inbox.identity, producer), 0))

    def take_old_rings(self, Inbox inbox not None, int worker, spill_dir) -> int:
        """What was under way to `worker` when the whole broker died, for those of its sessions that are here now; how many records.

        They stay where they are: each is known by its position, so that taking them twice does no harm. If the number of workers has
        changed, all workers take the same ring, each for its own sessions: its journal says so beside the sessions as they are then.
        """
        cdef Ring ring
        cdef Session session
        cdef const uint8_t* record
        cdef uint32_t size
        cdef int taken = 0
        cdef list others
        self.take_own_ring(inbox)
        self.worker.inlets.spill_source = spill_dir
        others = self.take_part(inbox.identity, worker)
        for producer, ring in enumerate(inbox.lanes):
            before = taken
            damage = (<Ring>ring).damage()
            if damage:
                self.worker.log(DAMAGE, f"{inbox.name}: lane {producer}: {damage}; messages in it are lost")
                continue
            while True:
                record = ring.next(&size)
                if record == NULL:
                    break
                taken += 1
                try:
                    check_record(record, size)
                    self.worker.inlets.on_record(producer, record, size)
                except Exception as error:
                    self.worker.inlets.record_failed(producer, error)
            if taken > before:
                self.note_taken(inbox.identity, producer, ring.taken())
        self.take_all(others)
        self.worker.inlets.spill_source = self.worker.topology.spill_dir
        return taken

    cdef list take_part(self, rings, int worker):
        """What is delivered from here on was in this ring of this worker. Sessions that were not its own take nothing, nor do those that
        an earlier start has given it, before it was killed. Returns those, for take_all()."""
        cdef Session session
        cdef list others = []
        cdef set takers = self.takers.get(rings, set())
        cdef list divisions = [division for taker, division in takers if taker == worker]
        for session in self.by_key.values():
            if not session.ended and (self.origins[session.key] != worker or any(
                    [division.worker_of(session.client_id) == worker for division in divisions])):
                session.ended = True
                others.append(session)
        if self.homes is not None or takers:
            self.worker.inlets.elsewhere = self.elsewhere
            self.worker.inlets.heir = worker % self.worker.topology.workers == self.worker.number and not any(
                [taker == worker % division.workers for taker, division in takers])
        return others

    cdef int note_taken(self, rings, int producer, position) except -1:
        """In the journal: its own ring, or if sessions are divided anew, one of those that all workers take."""
        cdef object mark = 0
        cdef bytes weights = None
        if self.homes is not None:
            mark = self.worker.topology.workers << TAKERS_SHIFT | (self.worker.number + 1) << TAKER_SHIFT
            weights = bytes(self.worker.topology.division.weights) or None
        self.worker.durability.arrivals[rings, producer | mark] = position, weights
        return self.worker.durability.recorder.consumed(rings, producer | mark, position, weights)

    cdef int take_all(self, list others) except -1:
        cdef Session session
        for session in others:
            session.ended = False
        self.worker.inlets.elsewhere = None
        return 0

    def note_connected(self) -> None:
        """The sessions of other journals stand in this one, as if their clients had gone. They had not."""
        cdef Session session
        for session in self.with_connection:
            self.worker.recorder.opened(session, True, 0, session.expiry_ms, None)

    def take_forwarded(self, inboxes) -> None:
        """The number of workers has changed: messages that never came into the rings of before are taken here as if they had, each
        for those of its destination's sessions that are here now. inboxes: as for resume()."""
        for source, forwarded in self.forwarded.items():
            for (rings, destination), (_, items) in forwarded.items():
                if destination == RETAINED_STORE:
                    if source % self.worker.topology.workers == self.worker.number:
                        self.retain_again(rings, items)
                    continue
                come_to = self.consumed.get((rings, source), 0)
                inbox = inboxes.get((rings, destination))
                if inbox is not None:
                    come_to = max(come_to, (<Inbox>inbox).lane(source).committed())
                elif not until_arrived(items[0]):
                    continue               # those rings have gone long ago
                items = [item for item in items if item[3] >= come_to]
                if not items:
                    continue
                others = self.take_part(rings, destination)
                for item in items:
                    self.take_one(item)
                self.take_all(others)
                self.note_taken(rings, source, items[len(items) - 1][3] + 1)
        self.forwarded = {}

    cdef int take_one(self, list item) except -1:
        cdef Message message = self.message(item[4])
        cdef Publication publication
        if message is None:
            return 0
        publication = Publication.__new__(Publication)
        publication.borrow(message)
        try:
            if item[5] == RECORD_PUBLISH:
                entry = self.worker.resolve(message.block, message.topic_size, None)
                return self.worker.deliver_locally(entry, publication, None)
            group, filter = bytes_field(item, 8), bytes_field(item, 9)
            if not self.worker.deliver_to_member(group, filter, item[6], publication):
                self.worker.inlets.next_member(group, filter, item[6], message, item[7] + 1)
        except Exception as error:
            self.worker.drop_failed("recovery", message.topic, error)
        return 0

    cdef int retain_again(self, rings, list items) except -1:
        cdef Message message
        cdef Publication publication
        arrived = self.worker.retained.arrived(rings)
        for item in items:
            message = self.message(item[4])
            if message is not None and item[3] >= arrived:
                publication = Publication.__new__(Publication)
                publication.borrow(message)
                self.worker.retain(publication)
        return 0

    # --- the end ----------------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Every session is there; what happens to them from now on is recorded."""
        cdef Session session
        # A predecessor that began in the same second, or before the clock was set back, has given the numbers that would be next.
        self.worker.next_key = max(self.worker.next_key, self.newest_key)
        for session in list(self.by_key.values()):
            session.known = True
            session.logged = session.expiry_ms > 0
            session.named_in = 0
            self.end_lost(session)
            self.worker.reporter.note_session(session)
        self.hold_again()
        self.messages = {
            item[4]: self.messages.get(item[4])
            for forwarded in self.forwarded.values() for _, items in forwarded.values() for item in items
        }
        self.worker.recover_routes()

    cdef int hold_again(self) except -1:
        """What waited for room in a ring or for its time waits again. If the number of workers has changed, each has those of the journals that its own
        takes the place of."""
        cdef Worker worker = self.worker
        cdef Message message
        cdef Deferred deferred
        cdef set known = set()
        for (source, number), item in sorted(self.held.items(), key=lambda entry: (entry[0][0] != worker.number, entry[0])):
            message = self.message(item[3])
            if source % worker.topology.workers != worker.number or message is None:
                continue
            group, filter = bytes_field(item, 8), bytes_field(item, 9)
            if item[2] == HELD_FOR_RING and self.homes is None:
                deferred = defer_for_ring(message, item[4], item[5], item[6], item[7], group, filter)
            elif item[2] == HELD_FOR_RING and item[5] != RECORD_SHARED:
                continue                   # of a worker whose sessions are all over the place: see docs/design/0002
            elif item[2] == HELD_FOR_RING:
                deferred = defer_for_group(message, group, filter, 0, item[7])
            elif item[2] == HELD_FOR_GROUP:
                deferred = defer_for_group(message, group, filter, item[6], item[7])
            elif item[2] == HELD_FOR_TIME:
                deferred = defer_for_time(message, field_or_none(item, 10) or 0)
            else:
                deferred = defer_for_all(message)
            if (item[3], group, filter, deferred.destination) in known:
                continue                   # an earlier start was killed behind taking it from the other journal
            known.add((item[3], group, filter, deferred.destination))
            if source == worker.number:
                deferred.number = number
                worker.last_held = max(worker.last_held, <uint64_t>number)
            else:
                worker.last_held += 1
                deferred.number = worker.last_held
            if deferred.purpose == HELD_FOR_TIME:
                worker.delays.add(deferred)
            else:
                worker.retry.append(deferred)
        return 0

    def resume(self, inboxes) -> None:
        """Everybody serves. Connections that broke with their worker are over; what has run out meanwhile ends; messages for other
        workers that never left go now. inboxes: identity -> Inbox of the rings that there were."""
        cdef Session session
        if self.worker.durability.gate is not None or self.worker.number in self.forwarded:
            self.worker.durability.recorder.arrived()   # or is forwarded again, behind this
        for _, items in self.forwarded.get(self.worker.number, {}).values():
            for item in items:
                try:
                    self.forward_again(item, inboxes)
                except Exception as error:
                    self.worker.drop_failed("recovery", topic_of(self.message(item[4])), error)
        for number, client_id in self.foreign:
            self.worker.durability.recorder.moved(number, client_id)
        for session in list(self.by_key.values()):
            if session.ended or session.link is not None or self.worker.sessions.get(session.client_id) is not session:
                continue
            try:
                if session in self.with_connection:
                    self.worker.client_gone(session, UNSPECIFIED_ERROR, True)      # the connection broke with its worker
                else:
                    session.set_deadline()
            except Exception as error:
                self.worker.log_failure(f"session not resumed client_id={session.client_id.decode(errors='replace')!r}", error)
        self.forwarded = {}
        self.foreign = []
        self.messages = {}
        self.by_key = {}
        self.with_connection = set()

    cdef int forward_again(self, list item, dict inboxes) except -1:
        cdef Inbox inbox = inboxes.get((item[1], item[2]))
        cdef Deferred deferred
        cdef Ring lane
        if item[1] in self.takers:
            return 0                       # when the number of workers changed: every worker has taken it, see take_forwarded()
        cdef Publication publication
        cdef Message message
        if inbox is not None:
            lane = inbox.lane(self.worker.number)
            if lane.committed() > <uint64_t>item[3]:
                # It had left. If it is in a ring still, it is not on that worker's disk, and stays on record.
                if not until_arrived(item) or inbox.name != self.worker.topology.inbox_name(item[2]) or lane.is_secure(item[3] + 1):
                    return 0
                self.worker.rings.outlet_of(item[2])     # the gate sees how far a lane has arrived if it is open
                message = self.message(item[4])
                return 0 if message is None else self.worker.recorder.forwarded(
                    item[1], item[2], item[3], message, item[5], item[6], item[7], field_or_none(item, 8), field_or_none(item, 9), True)
        elif self.arrivals.get((item[1], item[2]), NEVER) > <uint64_t>item[3]:
            return 0                       # it had arrived, or the broker had ended in peace
        message = self.message(item[4])
        if message is None:
            return 0
        if item[2] == RETAINED_STORE:
            publication = Publication.__new__(Publication)
            publication.borrow(message)
            publication.unrepeatable = True
            return self.worker.retain(publication)
        deferred = defer_for_ring(message, item[2], item[5], item[6], item[7], bytes_field(item, 8), bytes_field(item, 9))
        if not self.worker.outlets.put_deferred(deferred):
            self.worker.defer(deferred)
        return 0


cdef bytes topic_of(Message message):
    return b"" if message is None else message.topic


cdef bint until_arrived(list item):
    """Whether a forwarded message is to be looked after until it stands in its destination's journal."""
    return field_or_none(item, 10) is not None


cdef dict consumed_from(directory, int producer):
    """Rings -> how far that journal has dealt with what this producer wrote into them."""
    cdef dict found = {}
    if directory.is_dir():
        for part in trusted(read(directory, recovery_start(directory))):
            if isinstance(part, Block):
                for item in part.items():
                    if item[0] == CONSUMED and item[2] == producer:
                        found[item[1]] = max(found.get(item[1], 0), item[3])
    return found
