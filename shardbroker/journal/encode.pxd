"""The records of the hot path, written directly into the buffer; all others are encoded by `schema.encode`.

Each function needs only its arguments, and the memory that they point to only until it returns. Fields and their order:
`schema.FIELDS`. NULL or None is written as null.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.journal.buffer cimport RecordBuffer

# As in schema.Kind and schema.Ack.
cdef enum:
    KIND_MESSAGE = 1
    KIND_SESSION_CREATED = 2
    KIND_SESSION_RESUMED = 3
    KIND_SESSION_NAMED = 4
    KIND_DISCONNECTED = 5
    KIND_SESSION_ENDED = 6
    KIND_SUBSCRIBED = 7
    KIND_UNSUBSCRIBED = 8
    KIND_QUEUED = 9
    KIND_DELIVERED = 10
    KIND_ACKNOWLEDGED = 11
    KIND_DROPPED = 12
    KIND_RECEIVED = 13
    KIND_RELEASED = 14
    KIND_SESSION_SAVED = 22
    KIND_SYNCED = 23
    KIND_ARRIVED = 26
    ACK_PUBACK = 4
    ACK_PUBREC = 5
    ACK_PUBCOMP = 7

cdef int log_message(
    RecordBuffer buffer, uint64_t id_high, uint64_t id_low, const uint8_t* topic, uint32_t topic_size, const uint8_t* payload,
    uint32_t payload_size, int flags, uint64_t expires_ms, const uint8_t* properties, uint32_t properties_size, bytes publisher,
) except -1
# kind: KIND_SESSION_CREATED, KIND_SESSION_RESUMED, KIND_SESSION_SAVED. details: a map in CBOR. expiry_ms: NEVER is null.
cdef int log_session(
    RecordBuffer buffer, int kind, uint64_t session, bytes client_id, uint32_t version, uint64_t expiry_ms, bytes details,
) except -1
cdef int log_session_named(RecordBuffer buffer, uint64_t session, bytes client_id) except -1
cdef int log_disconnected(RecordBuffer buffer, uint64_t session, int reason, uint64_t expires_at_ms) except -1
cdef int log_session_ended(RecordBuffer buffer, uint64_t session, int reason) except -1
cdef int log_subscribed(RecordBuffer buffer, uint64_t session, bytes filter, int options, uint32_t identifier) except -1
cdef int log_unsubscribed(RecordBuffer buffer, uint64_t session, bytes filter) except -1
cdef int log_queued(
    RecordBuffer buffer, uint64_t session, uint64_t id_high, uint64_t id_low, int flags, uint32_t priority, bytes ids, tuple share,
) except -1
# With FLAG_FROM_QUEUE `ids` and `share` are those of the queue's entry and are not written again.
cdef int log_delivered(
    RecordBuffer buffer, uint64_t session, uint16_t packet_id, uint64_t id_high, uint64_t id_low, int flags, bytes ids, tuple share,
) except -1
cdef int log_acknowledged(RecordBuffer buffer, uint64_t session, uint16_t packet_id, int packet, uint8_t reason) except -1
cdef int log_dropped(RecordBuffer buffer, uint64_t session, uint64_t id_high, uint64_t id_low, int flags, int reason) except -1
cdef int log_received(RecordBuffer buffer, uint64_t session, uint16_t packet_id, uint64_t id_high, uint64_t id_low) except -1
cdef int log_released(RecordBuffer buffer, uint64_t session, uint16_t packet_id, int reason) except -1
cdef int log_synced(RecordBuffer buffer, uint64_t position) except -1
cdef int log_arrived(RecordBuffer buffer, uint64_t origin, uint64_t stream, uint64_t position, bint over) except -1
