"""What the protocol core records: the changes of sessions, and messages under way, so that they can be recovered.

`Recorder` is abstract, so that sessions know neither the journal nor its files; `journal/recorder.pyx` is the one that writes.
Nothing is recorded for a session that ends with its connection: the caller has checked `session.logged`. The records, their fields
and their meaning: docs/journal-format.md.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.subscriptions cimport ReplaySubscription, Subscriber, Subscription
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.place cimport Place

cdef enum:                                 # schema.MessageFlag
    FLAG_QOS = 0x03
    FLAG_RETAIN = 0x04
    FLAG_UTF8 = 0x08
    FLAG_FROM_QUEUE = 0x20

cdef enum DropCause:                       # schema.DropReason
    DROPPED_QUEUE_FULL = 1
    DROPPED_EXPIRED = 2
    DROPPED_TOO_LARGE = 3
    DROPPED_TAKEN = 6

cdef enum EndCause:                        # schema.EndReason
    ENDED_CLEAN_START = 0
    ENDED_EXPIRED = 1
    ENDED_DISCONNECTED = 2
    ENDED_MOVED_TO_NODE = 5

cdef enum WillCause:                       # schema.WillEnd
    WILL_DISCARDED = 0
    WILL_PUBLISHED = 1

cdef enum:
    RELEASED_PUBREL = 0                    # schema.ReleaseReason
    RELEASED_TIMEOUT = 1


cdef class Recorder:
    """A message is recorded before the first record that refers to it; the recorder sees to that."""
    # The head of a whole session, see session/image.pxd: what was recorded of it before is not needed any more.
    cdef int saved(self, Subscriber session, int version, uint64_t expiry_ms) except -1
    # Connections: new or resumed sessions, with schema.Detail as keys of `details`; sessions whose client is gone; ended sessions.
    cdef int opened(self, Subscriber session, bint present, int version, uint64_t expiry_ms, dict details) except -1
    cdef int away(self, Subscriber session, int reason_code, uint64_t expires_at_ms) except -1
    cdef int ended(self, Subscriber session, int cause) except -1
    cdef int subscribed(self, Subscriber session, Subscription subscription) except -1
    cdef int unsubscribed(self, Subscriber session, bytes wire_filter) except -1
    # Deliveries. `from_queue`: the queue has an entry for it, which ends with this record.
    cdef int queued(self, Subscriber session, Delivery* slot, int priority) except -1
    cdef int delivered(self, Subscriber session, Delivery* slot, bint from_queue) except -1
    # In a whole session: a packet id that is in use though its message is gone. `packet`: the last acknowledgement, PUBREC or PUBCOMP.
    cdef int packet_id_used(self, Subscriber session, uint16_t packet_id, uint8_t qos, int packet) except -1
    cdef int acknowledged(self, Subscriber session, uint16_t packet_id, int packet, uint8_t reason_code) except -1
    cdef int dropped(self, Subscriber session, Delivery* slot, int cause) except -1
    # QoS 2 from the client. `id_high`, `id_low`: message id, 0 if the message was not kept.
    cdef int received(self, Subscriber session, uint16_t packet_id, uint64_t id_high, uint64_t id_low) except -1
    cdef int released(self, Subscriber session, uint16_t packet_id, int cause) except -1
    cdef int will_set(self, Subscriber session, Message message, uint32_t delay_s, object expiry_s, dict origin) except -1
    cdef int will_cleared(self, Subscriber session, int cause) except -1
    cdef int will_delayed(self, Subscriber session, uint64_t at_ms) except -1
    # In a cluster: what is kept of its place among the nodes; replaces what was recorded of it before.
    cdef int placed(self, Subscriber session, Place place) except -1
    # How far a replay is: the messages up to its positions were delivered.
    cdef int replayed(self, ReplaySubscription replay) except -1
    # The connection of a session whose messages rules see: once in each segment.
    cdef int published_by(self, Subscriber session) except -1
    # A message that matches journal.capture, or FROM of a rule; `captured`: topic_cache.Capture.
    cdef int captured(self, Publication publication, uint8_t captured) except -1
    # A message written into a ring at `position`. If that is still the end of the ring at a recovery, the message never left.
    cdef int forwarded(
        self, uint64_t rings, long destination, uint64_t position, Message message, int kind, uint64_t member, int attempts,
        bytes group, bytes filter, bint until_arrived,
    ) except -1
    # A message that waits in this worker for room in a ring or for its time (worker/deferred.pxd), until deferred_done().
    cdef int deferred(
        self, uint64_t number, int purpose, Message message, long destination, int kind, uint64_t member, int attempts, bytes group,
        bytes filter, uint64_t at_ms,
    ) except -1
    cdef int deferred_done(self, uint64_t number) except -1
