"""Records of the hot path; see encode.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy

from shardbroker.journal.buffer cimport RecordBuffer
from shardbroker.journal.cbor cimport UINT_BYTES, put_array, put_bytes, put_id, put_null, put_uint
from shardbroker.journal.writer cimport Writer
from shardbroker.session.journaling cimport FLAG_FROM_QUEUE

import cbor2

__all__ = ["log_for_test", "measure"]

cdef enum:
    ID_BYTES = 17
    HEADS = 16                             # number of heads of UINT_BYTES, more than any record has

cdef uint64_t NEVER = <uint64_t>-1


cdef inline size_t size_of(bytes text) noexcept:
    return 0 if text is None else PyBytes_GET_SIZE(text)


cdef inline uint8_t* put_text(uint8_t* at, bytes text) noexcept:
    return put_null(at) if text is None else put_bytes(at, PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text))


cdef int log_message(
    RecordBuffer buffer, uint64_t id_high, uint64_t id_low, const uint8_t* topic, uint32_t topic_size, const uint8_t* payload,
    uint32_t payload_size, int flags, uint64_t expires_ms, const uint8_t* properties, uint32_t properties_size, bytes publisher,
) except -1:
    cdef size_t size = HEADS * UINT_BYTES + <size_t>topic_size + payload_size + properties_size + size_of(publisher)
    cdef uint8_t* at = put_array(buffer.room(size), 8)
    at = put_id(put_uint(at, KIND_MESSAGE), id_high, id_low)
    at = put_bytes(at, topic, topic_size)
    at = put_bytes(at, payload, payload_size)
    at = put_uint(put_uint(at, flags), expires_ms)
    at = put_bytes(at, properties, properties_size)
    buffer.commit(put_text(at, publisher))
    return 0


cdef int log_session(
    RecordBuffer buffer, int kind, uint64_t session, bytes client_id, uint32_t version, uint64_t expiry_ms, bytes details,
) except -1:
    cdef uint8_t* at = buffer.room(HEADS * UINT_BYTES + size_of(client_id) + size_of(details))
    at = put_array(at, 6 if details is not None else 5 if expiry_ms != NEVER else 4)
    at = put_uint(put_text(put_uint(put_uint(at, kind), session), client_id), version)
    if expiry_ms != NEVER:
        at = put_uint(at, expiry_ms)
    elif details is not None:
        at = put_null(at)
    if details is not None:
        memcpy(at, PyBytes_AS_STRING(details), PyBytes_GET_SIZE(details))
        at += PyBytes_GET_SIZE(details)
    buffer.commit(at)
    return 0


cdef int log_session_named(RecordBuffer buffer, uint64_t session, bytes client_id) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES + size_of(client_id)), 3)
    buffer.commit(put_text(put_uint(put_uint(at, KIND_SESSION_NAMED), session), client_id))
    return 0


cdef int log_disconnected(RecordBuffer buffer, uint64_t session, int reason, uint64_t expires_at_ms) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES), 4 if expires_at_ms else 3)
    at = put_uint(put_uint(put_uint(at, KIND_DISCONNECTED), session), reason)
    buffer.commit(put_uint(at, expires_at_ms) if expires_at_ms else at)
    return 0


cdef int log_session_ended(RecordBuffer buffer, uint64_t session, int reason) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES), 3)
    buffer.commit(put_uint(put_uint(put_uint(at, KIND_SESSION_ENDED), session), reason))
    return 0


cdef int log_subscribed(RecordBuffer buffer, uint64_t session, bytes filter, int options, uint32_t identifier) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES + size_of(filter)), 5)
    at = put_text(put_uint(put_uint(at, KIND_SUBSCRIBED), session), filter)
    buffer.commit(put_uint(put_uint(at, options), identifier))
    return 0


cdef int log_unsubscribed(RecordBuffer buffer, uint64_t session, bytes filter) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES + size_of(filter)), 3)
    buffer.commit(put_text(put_uint(put_uint(at, KIND_UNSUBSCRIBED), session), filter))
    return 0


cdef inline size_t size_of_choice(bytes ids, tuple share) noexcept:
    return size_of(ids) if share is None else size_of(ids) + size_of(<bytes>share[0]) + size_of(<bytes>share[1])


cdef inline int items_of_choice(bytes ids, tuple share) noexcept:
    return 3 if share is not None else 1 if ids is not None else 0


cdef inline uint8_t* put_choice(uint8_t* at, bytes ids, tuple share) noexcept:
    """Writes how the session was chosen: Subscription Identifiers and (group, filter); trailing nulls are omitted."""
    if share is not None:
        return put_text(put_text(put_text(at, ids), <bytes>share[0]), <bytes>share[1])
    return at if ids is None else put_text(at, ids)


cdef int log_queued(
    RecordBuffer buffer, uint64_t session, uint64_t id_high, uint64_t id_low, int flags, uint32_t priority, bytes ids, tuple share,
) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES + size_of_choice(ids, share)), 5 + items_of_choice(ids, share))
    at = put_uint(put_uint(at, KIND_QUEUED), session)
    at = put_uint(put_uint(put_id(at, id_high, id_low), flags), priority)
    buffer.commit(put_choice(at, ids, share))
    return 0


cdef int log_delivered(
    RecordBuffer buffer, uint64_t session, uint16_t packet_id, uint64_t id_high, uint64_t id_low, int flags, bytes ids, tuple share,
) except -1:
    cdef uint8_t* at
    if flags & FLAG_FROM_QUEUE:
        ids = None
        share = None
    at = put_array(buffer.room(HEADS * UINT_BYTES + size_of_choice(ids, share)), 5 + items_of_choice(ids, share))
    at = put_uint(put_uint(put_uint(at, KIND_DELIVERED), session), packet_id)
    at = put_uint(put_id(at, id_high, id_low), flags)
    buffer.commit(put_choice(at, ids, share))
    return 0


cdef int log_acknowledged(RecordBuffer buffer, uint64_t session, uint16_t packet_id, int packet, uint8_t reason) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES), 5)
    at = put_uint(put_uint(put_uint(at, KIND_ACKNOWLEDGED), session), packet_id)
    buffer.commit(put_uint(put_uint(at, packet), reason))
    return 0


cdef int log_dropped(RecordBuffer buffer, uint64_t session, uint64_t id_high, uint64_t id_low, int flags, int reason) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES), 5)
    at = put_id(put_uint(put_uint(at, KIND_DROPPED), session), id_high, id_low)
    buffer.commit(put_uint(put_uint(at, flags), reason))
    return 0


cdef int log_received(RecordBuffer buffer, uint64_t session, uint16_t packet_id, uint64_t id_high, uint64_t id_low) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES), 4)
    at = put_uint(put_uint(put_uint(at, KIND_RECEIVED), session), packet_id)
    buffer.commit(put_id(at, id_high, id_low))
    return 0


cdef int log_released(RecordBuffer buffer, uint64_t session, uint16_t packet_id, int reason) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES), 4)
    at = put_uint(put_uint(put_uint(at, KIND_RELEASED), session), packet_id)
    buffer.commit(put_uint(at, reason))
    return 0


cdef int log_synced(RecordBuffer buffer, uint64_t position) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES), 2)
    buffer.commit(put_uint(put_uint(at, KIND_SYNCED), position))
    return 0


cdef int log_arrived(RecordBuffer buffer, uint64_t origin, uint64_t stream, uint64_t position, bint over) except -1:
    cdef uint8_t* at = put_array(buffer.room(HEADS * UINT_BYTES), 5 if over else 4)
    at = put_uint(put_uint(put_uint(put_uint(at, KIND_ARRIVED), origin), stream), position)
    buffer.commit(put_uint(at, 1) if over else at)
    return 0


# --- for tests and figures, which cannot call the above ------------------------------------------------------------------------


def log_for_test(Writer writer not None, str kind, dict fields):
    """Writes a record by its compiled encoder, from the fields of `schema.encode`."""
    cdef bytes id = fields.get("id") or bytes(16)
    cdef uint64_t high = int.from_bytes(id[:8], "big"), low = int.from_bytes(id[8:], "big")
    cdef bytes ids = fields.get("ids"), topic, payload, properties
    share = None if fields.get("group") is None else (fields["group"], fields["filter"])
    if kind == "MESSAGE":
        topic, payload, properties = fields["topic"], fields["payload"], fields["properties"]
        log_message(
            writer, high, low, <uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>len(topic), <uint8_t*>PyBytes_AS_STRING(payload),
            <uint32_t>len(payload), fields["flags"], fields["expires_ms"], <uint8_t*>PyBytes_AS_STRING(properties),
            <uint32_t>len(properties), fields.get("publisher"),
        )
    elif kind in ("SESSION_CREATED", "SESSION_RESUMED", "SESSION_SAVED"):
        expiry_ms, details = fields.get("expiry_ms"), fields.get("details")
        log_session(
            writer, {"SESSION_CREATED": KIND_SESSION_CREATED, "SESSION_RESUMED": KIND_SESSION_RESUMED}.get(kind, KIND_SESSION_SAVED),
            fields["session"], fields["client_id"], fields["version"], NEVER if expiry_ms is None else expiry_ms,
            None if details is None else cbor2.dumps(details, canonical=True))
    elif kind == "DISCONNECTED":
        log_disconnected(writer, fields["session"], fields["reason"], fields.get("expires_at_ms") or 0)
    elif kind == "SESSION_ENDED":
        log_session_ended(writer, fields["session"], fields["reason"])
    elif kind == "SUBSCRIBED":
        log_subscribed(writer, fields["session"], fields["filter"], fields["options"], fields["identifier"])
    elif kind == "UNSUBSCRIBED":
        log_unsubscribed(writer, fields["session"], fields["filter"])
    elif kind == "SESSION_NAMED":
        log_session_named(writer, fields["session"], fields["client_id"])
    elif kind == "QUEUED":
        log_queued(writer, fields["session"], high, low, fields["flags"], fields["priority"], ids, share)
    elif kind == "DELIVERED":
        log_delivered(writer, fields["session"], fields["packet_id"], high, low, fields["flags"], ids, share)
    elif kind == "ACKNOWLEDGED":
        log_acknowledged(writer, fields["session"], fields["packet_id"], fields["packet"], fields["reason"])
    elif kind == "DROPPED":
        log_dropped(writer, fields["session"], high, low, fields["flags"], fields["reason"])
    elif kind == "RECEIVED":
        log_received(writer, fields["session"], fields["packet_id"], high, low)
    elif kind == "RELEASED":
        log_released(writer, fields["session"], fields["packet_id"], fields["reason"])
    elif kind == "SYNCED":
        log_synced(writer, fields["position"])
    elif kind == "ARRIVED":
        log_arrived(writer, fields["origin"], fields["stream"], fields["position"], fields.get("over") is not None)
    else:
        raise KeyError(kind)


def measure(Writer writer not None, str kind, int passes, int per_pass, bytes payload=b"x" * 64):
    """Writes `per_pass` records in each of `passes` blocks; for the figures in docs."""
    cdef uint64_t session = (<uint64_t>3 << 52) | (<uint64_t>1_760_000_000 << 20), number = 0
    cdef bytes topic = b"site/17/device/4711/temperature", publisher = b"sensor-4711"
    cdef int which = ("ACKNOWLEDGED", "DELIVERED", "QUEUED", "MESSAGE").index(kind)
    cdef int i, _
    for i in range(passes):
        for _ in range(per_pass):
            number += 1
            if which == 0:
                log_acknowledged(writer, session + (number & 1023), <uint16_t>number, ACK_PUBACK, 0)
            elif which == 1:
                log_delivered(writer, session + (number & 1023), <uint16_t>number, 1_760_000_000_000_000, number, 1, None, None)
            elif which == 2:
                log_queued(writer, session + (number & 1023), 1_760_000_000_000_000, number, 1, 0, None, None)
            else:
                log_message(
                    writer, 1_760_000_000_000_000, number, <uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic),
                    <uint8_t*>PyBytes_AS_STRING(payload), <uint32_t>PyBytes_GET_SIZE(payload), 1, 0, NULL, 0, publisher,
                )
        writer.seal_c(i)
