"""What sessions write into their worker's journal, so that they can be recovered (docs/journal-format.md).

Nothing is written for a session that ends with its connection. The caller has checked `session.logged`.

So that old segments can go, the state of every session is written anew from time to time, some sessions a pass: a cycle.

    | ... | session A | B's changes | session B | A's changes | session C | CHECKPOINT | ...
          ^ keep_from: once the cycle is through, nothing before it is needed

A message is written once per cycle, before the first record that refers to it.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.journal.writer cimport Writer
from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.subscriptions cimport Subscriber, Subscription
from shardbroker.session.delivery cimport Delivery

cdef enum DropCause:                       # schema.DropReason
    DROPPED_QUEUE_FULL = 1
    DROPPED_EXPIRED = 2
    DROPPED_TOO_LARGE = 3

cdef enum EndCause:                        # schema.EndReason
    ENDED_CLEAN_START = 0
    ENDED_EXPIRED = 1
    ENDED_DISCONNECTED = 2

cdef enum WillCause:                       # schema.WillEnd
    WILL_DISCARDED = 0
    WILL_PUBLISHED = 1

cdef enum:
    RELEASED_PUBREL = 0                    # schema.ReleaseReason
    RELEASED_TIMEOUT = 1


cdef class Recorder:
    cdef readonly Writer writer
    cdef readonly uint32_t cycle           # from 1 on
    # Captured messages that may not be safe yet: those below the mark, and those behind it. Once what is below it is safe, the
    # others take their place.
    cdef uint64_t captured_mark, captured_below, captured_behind

    cdef int message(self, Message message) except -1                 # once per message and cycle
    cdef int captured(self, Publication publication) except -1        # a message that analytics asks for
    cdef int snapshot(self, Subscriber session) except -1              # its whole state
    # The connection that a session has got: new or resumed. `details` are schema.Detail's.
    cdef int opened(self, Subscriber session, bint present, int version, uint64_t expiry_ms, dict details) except -1
    cdef int away(self, Subscriber session, int reason_code, uint64_t expires_at_ms) except -1
    cdef int ended(self, Subscriber session, int cause) except -1
    cdef int subscribed(self, Subscriber session, Subscription subscription) except -1
    cdef int unsubscribed(self, Subscriber session, bytes wire_filter) except -1
    cdef int queued(self, Subscriber session, Delivery* slot, int priority) except -1
    cdef int delivered(self, Subscriber session, Delivery* slot, bint from_queue) except -1
    cdef int acknowledged(self, Subscriber session, uint16_t packet_id, int packet, uint8_t reason_code) except -1
    cdef int dropped(self, Subscriber session, Delivery* slot, int cause) except -1
    cdef int received(self, Subscriber session, uint16_t packet_id, uint64_t id_high, uint64_t id_low) except -1
    cdef int released(self, Subscriber session, uint16_t packet_id, int cause) except -1
    cdef int will_set(self, Subscriber session, Message message, uint32_t delay_s, object expiry_s, dict origin) except -1
    cdef int will_cleared(self, Subscriber session, int cause) except -1
    cdef int will_delayed(self, Subscriber session, uint64_t at_ms) except -1
    # Records of a ring up to this position were dealt with.
    cdef int consumed(self, uint64_t rings, uint64_t producer, uint64_t position, bytes weights) except -1
    # A message written into a ring behind `position`; if that is still its end at the recovery, it never left.
    cdef int forwarded(
        self, uint64_t rings, long destination, uint64_t position, Message message, int kind, uint64_t member, int attempts,
        bytes group, bytes filter, bint until_arrived,
    ) except -1
    # A message that waits in this worker for room in a ring (worker.held) or for its time, until deferred_done().
    cdef int held(
        self, uint64_t number, int purpose, Message message, long destination, int kind, uint64_t member, int attempts, bytes group,
        bytes filter, uint64_t at_ms,
    ) except -1
    cdef int deferred_done(self, uint64_t number) except -1
    # What block this ends was written when everything below `durable` was on the disk.
    cdef int synced(self) except -1
    # So many messages were to be captured, and are in no block that was written or will be; the count begins anew.
    cdef uint64_t take_captured(self) noexcept
    cdef int not_captured(self, uint64_t count, uint64_t from_us, int error) except -1
    cdef int open(self, kind, Subscriber session, int version, uint64_t expiry_ms, dict details) except -1
    cdef int name(self, Subscriber session) except -1
    cdef int add(self, kind, dict fields) except -1
