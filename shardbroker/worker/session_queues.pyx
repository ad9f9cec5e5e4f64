"""Queues of sessions that move; see session_queues.pxd."""

from libc.stdint cimport uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message, make_message
from shardbroker.session.delivery cimport (
    AWAITING_PUBACK, AWAITING_PUBREC, DeliveryRing, drop_delivery,
)
from shardbroker.session.journaling cimport DROPPED_TAKEN, FLAG_QOS, FLAG_RETAIN, FLAG_UTF8
from shardbroker.session.mqueue cimport MQueue
from shardbroker.session.place cimport message_id, seen_id
from shm.counters cimport INFLIGHT_COUNT, MQUEUE_COUNT

from struct import Struct
from typing import NamedTuple

from shardbroker.cluster.claims import TAIL_BYTES
from shardbroker.cluster.messages import Queued
from shardbroker.cluster.takeover import PART_BYTES_MAX, STATE_BYTES_MAX
from shardbroker.journal.images import ImageError
from shardbroker.journal.schema import Kind, SchemaError, check_fields, decode_items, encode
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_name

__all__ = ["SeenBefore", "decode_queued", "decode_state", "encode_queued", "encode_state"]

HIGHEST_PRIORITY = 256
"""Of a queue: what was sent before the others is sent again before them."""
MOST_LEVELS = 65535
"""Of a topic: the limit of a listener applied when it was published."""
SEEN_IDS_MAX = 20_000
"""Ids of one kind in a STATE: twice SEEN_MAX, as a later version may keep more."""
_STATE = Struct("<B?xxIIIQ16s")
_STATE_VERSION = 2
_ID_BYTES = 16


# --- queues ------------------------------------------------------------------------------------------------------------------


cdef inline object id_of(Delivery* slot):
    return seen_id((<Message>slot.message).id_high, (<Message>slot.message).id_low)


cdef set ids_of(Session session, bint in_flight):
    cdef set found = queue_ids(session.queue) | queue_ids(session.place.behind)
    cdef Delivery* slot
    cdef uint32_t i
    if in_flight and session.window is not None:
        for i in range(session.window.count):
            slot = session.window.at(i)
            if slot.message != NULL:
                found.add(id_of(slot))
    return found


cdef set queue_ids(MQueue queue):
    cdef set found = set()
    cdef DeliveryRing ring
    cdef Delivery* slot
    cdef uint32_t i
    for _, lane in (() if queue is None or queue.count == 0 else queue.lanes):
        ring = <DeliveryRing>lane
        for i in range(ring.count):
            slot = ring.at(i)
            if slot.qos:
                found.add(id_of(slot))
    return found


cdef int remove_from_queue(Session session, set ids, bint recorded) except -1:
    cdef MQueue kept = without(session, session.queue, ids, recorded, False)
    session.queue = kept if kept is not None and kept.count else None
    session.place.behind = without(session, session.place.behind, ids, recorded, False)
    return 0


cdef int hand_over(Session session, set ids) except -1:
    cdef DeliveryRing ring
    cdef Delivery one
    cdef uint32_t found = 0
    for _, lane in (() if session.queue is None or session.queue.count == 0 else session.queue.lanes):
        ring = <DeliveryRing>lane
        while ring.count and id_of(ring.at(0)) in ids:
            ring.move_front(&one)
            session.queue.left(one.qos)
            drop_taken(session, &one, True)
            found += 1
    if found < <uint32_t>len(ids):
        return remove_from_queue(session, ids, True)
    if session.queue is not None and session.queue.count == 0:
        session.queue = None
    return 0


cdef int drop_taken(Session session, Delivery* one, bint recorded) except -1:
    if recorded and session.logged:
        session.context.recorder.dropped(session, one, DROPPED_TAKEN)
    session.context.gauge(MQUEUE_COUNT, -1)
    drop_delivery(one)
    return 0


cdef MQueue without(Session session, MQueue old, set ids, bint recorded, bint keeps_qos0):
    cdef MQueue kept
    cdef Delivery one
    cdef Delivery* slot
    if old is None or old.count == 0:
        return old
    kept = MQueue.__new__(MQueue)
    for priority, lane in old.lanes:
        while (<DeliveryRing>lane).count:
            (<DeliveryRing>lane).move_front(&one)
            if keeps_qos0 if one.qos == 0 else id_of(&one) not in ids:
                slot = kept.push(priority, one.qos)
                slot[0] = one
                continue
            drop_taken(session, &one, recorded)
    return kept


cdef int empty_window(Session session, bint keep) except -1:
    cdef MQueue old = session.queue, queue
    cdef Delivery one
    cdef Delivery* slot
    cdef uint32_t i
    session.context.gauge(INFLIGHT_COUNT, -<int>session.inflight)
    session.inflight = session.held = 0
    if session.window is None:
        return 0
    if keep:
        queue = MQueue.__new__(MQueue)
        for i in range(session.window.count):
            slot = session.window.at(i)
            if slot.message != NULL and (slot.state == AWAITING_PUBACK or slot.state == AWAITING_PUBREC):
                one = slot[0]
                slot.message = slot.ids = slot.share = NULL        # moved with their references
                one.packet_id = 0
                one.state = 0
                one.held = False
                queue.push(HIGHEST_PRIORITY, one.qos)[0] = one
                session.context.gauge(MQUEUE_COUNT, 1)
        for priority, lane in (() if old is None or old.lanes is None else old.lanes):
            while (<DeliveryRing>lane).count:
                (<DeliveryRing>lane).move_front(&one)
                queue.push(priority, one.qos)[0] = one
        session.queue = queue if queue.count else None
    session.first_id = session.packet_id_at(session.window.count)          # the client may hold those before it
    session.window = None
    return 0


cdef list first_queued(Session session, int most):
    cdef DeliveryRing ring
    cdef Delivery* slot
    cdef uint32_t i
    cdef list first = []
    size = 0
    for _, lane in (() if session.queue is None or session.queue.count == 0 else session.queue.lanes):
        ring = <DeliveryRing>lane
        for i in range(ring.count):
            slot = ring.at(i)
            if not slot.qos:
                continue
            if len(first) == most:
                return first
            queued = encode_slot(id_of(slot), slot)
            first.append(queued)
            if size > TAIL_BYTES:
                return first               # one more than a TAIL takes shows that it is not the last one
            size += len(queued.topic) + len(queued.body)
    return first


# --- messages of TAIL ----------------------------------------------------------------------------------------------------------


cdef object encode_slot(object number, Delivery* slot):
    cdef Message message = <Message>slot.message
    return encode_queued(
        number, slot.qos, bool(slot.retain), <object>slot.ids if slot.ids != NULL else None, message.topic, message.payload,
        message.properties, message.client_id,
        message.qos | (FLAG_RETAIN if message.retain else 0) | (FLAG_UTF8 if message.payload_format else 0), message.expires_ms)


def encode_queued(number, qos, retain, ids, topic, payload, properties, publisher, flags, expires_ms):
    """Returns a message of a queue for TAIL: a record MESSAGE without id and topic, and a record QUEUED, as in a journal."""
    body = encode(Kind.MESSAGE, id=b"", topic=b"", payload=payload, flags=flags, expires_ms=expires_ms, properties=properties,
                  publisher=publisher)
    body += encode(Kind.QUEUED, session=0, id=b"", flags=qos | (FLAG_RETAIN if retain else 0), priority=0, ids=ids)
    return Queued(number, topic, qos, body)


def decode_queued(queued) -> tuple:
    """Returns (Message, QoS, retain, Subscription Identifiers or None) of a message in TAIL. Raises ImageError."""
    cdef uint64_t high = 0, low = 0
    if message_id(queued.id, &high, &low) < 0:
        raise ImageError(f"id {queued.id:#x} is not that of a message")
    try:
        check_topic_name(queued.topic, MOST_LEVELS)
        message, entry = decode_items(queued.body, 2)
        if message[0] != Kind.MESSAGE or entry[0] != Kind.QUEUED:
            raise ImageError(f"records {message[0]} and {entry[0]} are not those of a queued message")
        check_fields(message)
        check_fields(entry)
        if message[4] & FLAG_QOS == 3 or entry[3] & FLAG_QOS != queued.qos:
            raise ImageError("QoS does not match")
    except (MqttError, SchemaError, IndexError, TypeError, ValueError) as error:
        raise ImageError(f"queued message: {error}") from None
    fields = message + [None] * 8
    ids = entry[5] if len(entry) > 5 else None
    made = make_message(
        queued.topic, fields[3] or b"", fields[6] or b"", fields[7], high.to_bytes(8, "big") + low.to_bytes(8, "big"), fields[5],
        fields[4] & FLAG_QOS, bool(fields[4] & FLAG_RETAIN), bool(fields[4] & FLAG_UTF8), 0)
    return made, queued.qos, bool(entry[3] & FLAG_RETAIN), ids


# --- STATE -----------------------------------------------------------------------------------------------------------------


class SeenBefore(NamedTuple):
    """What a session has had at its former node: see SeenIds."""

    clean_stamp: int
    base: int
    passed: list[int]
    forgotten: list[int]
    ids: list[int]
    mixed: bool = False            # `Place.mixed`


def encode_state(image: bytes, seen: SeenBefore) -> list[bytes] | None:
    """Returns the parts of a session: what it has seen, and its image (journal/images.pyx). None: it is too large to move."""
    counts = len(seen.ids), len(seen.passed), len(seen.forgotten)
    head = _STATE.pack(_STATE_VERSION, seen.mixed, *counts, seen.clean_stamp, seen.base.to_bytes(_ID_BYTES, "little"))
    state = head + b"".join([one.to_bytes(_ID_BYTES, "little") for one in (*seen.ids, *seen.passed, *seen.forgotten)]) + image
    if len(state) > STATE_BYTES_MAX:
        return None
    return [state[first:first + PART_BYTES_MAX] for first in range(0, len(state), PART_BYTES_MAX)]


def decode_state(parts) -> tuple[bytes, SeenBefore]:
    """Returns the image, and what the session has had. Raises ImageError."""
    state = b"".join(parts)
    if len(state) < _STATE.size:
        raise ImageError(f"state: must have at least {_STATE.size} bytes, got {len(state)}")
    version, mixed, count, passed, forgotten, clean_stamp, base = _STATE.unpack_from(state)
    start = _STATE.size
    end = start + (count + passed + forgotten) * _ID_BYTES
    if version != _STATE_VERSION:
        raise ImageError(f"state: must have version {_STATE_VERSION}, got {version}")
    if max(count, passed, forgotten) > SEEN_IDS_MAX or end > len(state):
        raise ImageError(
            f"state: must have at most {SEEN_IDS_MAX} ids of a kind within {len(state)} bytes, got {count}, {passed} and {forgotten}")
    if clean_stamp >> 63:
        raise ImageError(f"state: must have a clean stamp below 2**63, got {clean_stamp}")
    ids = [int.from_bytes(state[at:at + _ID_BYTES], "little") for at in range(start, end, _ID_BYTES)]
    seen = SeenBefore(
        clean_stamp, int.from_bytes(base, "little"), ids[count:count + passed], ids[count + passed:], ids[:count], mixed)
    return state[end:], seen
