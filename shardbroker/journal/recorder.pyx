"""Writes the records of sessions and of messages under way; see recorder.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE

from shardbroker.journal.encode cimport (
    KIND_SESSION_CREATED, KIND_SESSION_RESUMED, KIND_SESSION_SAVED, log_acknowledged, log_arrived, log_delivered, log_disconnected, log_dropped,
    log_message, log_queued, log_received, log_released, log_session, log_session_ended, log_session_named, log_subscribed, log_synced,
    log_unsubscribed,
)
from shardbroker.pubsub.subscriptions cimport ReplaySubscription, Subscription
from shardbroker.pubsub.topic_cache cimport FED
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.session.delivery cimport Delivery
from shardbroker.session.image cimport save
from shardbroker.session.journaling cimport FLAG_FROM_QUEUE, FLAG_RETAIN, FLAG_UTF8
from shardbroker.session.place cimport Place
from shardbroker.session.session cimport Session

from json import dumps

import cbor2

from shardbroker.journal.schema import Detail, EndReason, Kind, encode
from shardbroker.session.place import MERGED

__all__ = ["BufferRecorder", "JournalRecorder"]

cdef uint64_t NEVER = <uint64_t>-1

SEEN_A_RECORD = 4096
"""Ids in one record SEEN: 64 KB."""


cdef inline int flags_of(Delivery* slot) noexcept:
    return slot.qos | (FLAG_RETAIN if slot.retain else 0)


cdef bytes _packed(ids):
    """Returns ids of messages as a field."""
    return b"".join([one.to_bytes(16, "big") for one in ids])


cdef class BufferRecorder(Recorder):
    """Records of sessions, written into `buffer`."""

    cdef int message(self, Message message) except -1:
        cdef const uint8_t* at = message.block
        return log_message(
            self.buffer, message.id_high, message.id_low, at, message.topic_size,
            at + message.topic_size + message.properties_size, message.payload_size,
            message.qos | (FLAG_RETAIN if message.retain else 0) | (FLAG_UTF8 if message.payload_format else 0),
            message.expires_ms, at + message.topic_size, message.properties_size, message.client_id,
        )

    cdef int name(self, Subscriber session) except -1:
        return 0

    cdef int add(self, kind, dict fields) except -1:
        cdef bytes record = encode(kind, **fields)
        return self.buffer.add(PyBytes_AS_STRING(record), PyBytes_GET_SIZE(record))

    # --- connections and subscriptions --------------------------------------------------------------------------------------

    cdef int saved(self, Subscriber session, int version, uint64_t expiry_ms) except -1:
        return self.open(KIND_SESSION_SAVED, session, version, expiry_ms, None)

    cdef int opened(self, Subscriber session, bint present, int version, uint64_t expiry_ms, dict details) except -1:
        return self.open(KIND_SESSION_RESUMED if present else KIND_SESSION_CREATED, session, version, expiry_ms, details)

    cdef int open(self, int kind, Subscriber session, int version, uint64_t expiry_ms, dict details) except -1:
        cdef bytes map = None if details is None else cbor2.dumps(details, canonical=True)
        return log_session(self.buffer, kind, session.key, session.client_id, version, expiry_ms, map)

    cdef int away(self, Subscriber session, int reason_code, uint64_t expires_at_ms) except -1:
        self.name(session)
        return log_disconnected(self.buffer, session.key, reason_code, expires_at_ms)

    cdef int ended(self, Subscriber session, int cause) except -1:
        self.name(session)
        return log_session_ended(self.buffer, session.key, cause)

    cdef int subscribed(self, Subscriber session, Subscription subscription) except -1:
        self.name(session)
        return log_subscribed(
            self.buffer, session.key, subscription.wire_filter, subscription.qos | subscription.flags, subscription.identifier)

    cdef int unsubscribed(self, Subscriber session, bytes wire_filter) except -1:
        self.name(session)
        return log_unsubscribed(self.buffer, session.key, wire_filter)

    cdef int replayed(self, ReplaySubscription replay) except -1:
        self.name(replay.subscriber)
        return self.add(Kind.REPLAYED, {
            "session": replay.subscriber.key, "filter": replay.wire_filter, "start_us": replay.start_us,
            "end_us": None if replay.end_us == NEVER else replay.end_us, "positions": replay.positions, "over": 1 if replay.over else None,
            "topic_filter": replay.filter, "incarnations": replay.incarnations,
        })

    # --- deliveries -----------------------------------------------------------------------------------------------------

    cdef int queued(self, Subscriber session, Delivery* slot, int priority) except -1:
        cdef Message message = <Message>slot.message
        self.name(session)
        self.message(message)
        return log_queued(
            self.buffer, session.key, message.id_high, message.id_low, flags_of(slot), priority,
            <bytes>slot.ids if slot.ids != NULL else None, <tuple>slot.share if slot.share != NULL else None,
        )

    cdef int delivered(self, Subscriber session, Delivery* slot, bint from_queue) except -1:
        cdef Message message = <Message>slot.message
        self.name(session)
        self.message(message)
        return log_delivered(
            self.buffer, session.key, slot.packet_id, message.id_high, message.id_low,
            flags_of(slot) | (FLAG_FROM_QUEUE if from_queue else 0),
            <bytes>slot.ids if slot.ids != NULL else None, <tuple>slot.share if slot.share != NULL else None,
        )

    cdef int packet_id_used(self, Subscriber session, uint16_t packet_id, uint8_t qos, int packet) except -1:
        log_delivered(self.buffer, session.key, packet_id, 0, 0, qos, None, None)
        return log_acknowledged(self.buffer, session.key, packet_id, packet, 0)

    cdef int acknowledged(self, Subscriber session, uint16_t packet_id, int packet, uint8_t reason_code) except -1:
        self.name(session)
        return log_acknowledged(self.buffer, session.key, packet_id, packet, reason_code)

    cdef int dropped(self, Subscriber session, Delivery* slot, int cause) except -1:
        cdef Message message = <Message>slot.message
        self.name(session)
        return log_dropped(
            self.buffer, session.key, message.id_high, message.id_low, flags_of(slot) | FLAG_FROM_QUEUE, cause)

    # --- QoS 2 from the client ------------------------------------------------------------------------------------------

    cdef int received(self, Subscriber session, uint16_t packet_id, uint64_t id_high, uint64_t id_low) except -1:
        self.name(session)
        return log_received(self.buffer, session.key, packet_id, id_high, id_low)

    cdef int released(self, Subscriber session, uint16_t packet_id, int cause) except -1:
        self.name(session)
        return log_released(self.buffer, session.key, packet_id, cause)

    # --- wills ----------------------------------------------------------------------------------------------------------

    cdef int will_set(self, Subscriber session, Message message, uint32_t delay_s, object expiry_s, dict origin) except -1:
        self.name(session)
        return self.add(Kind.WILL_SET, {
            "session": session.key, "topic": message.topic, "payload": message.payload,
            "flags": message.qos | (FLAG_RETAIN if message.retain else 0) | (FLAG_UTF8 if message.payload_format else 0),
            "properties": message.properties, "delay_s": delay_s, "expiry_s": expiry_s,
            "origin": None if origin is None else dumps(origin).encode(),
        })

    cdef int will_cleared(self, Subscriber session, int cause) except -1:
        self.name(session)
        return self.add(Kind.WILL_CLEARED, {"session": session.key, "reason": cause})

    cdef int will_delayed(self, Subscriber session, uint64_t at_ms) except -1:
        self.name(session)
        return self.add(Kind.WILL_DELAYED, {"session": session.key, "at_ms": at_ms})

    # --- cluster ----------------------------------------------------------------------------------------------------------

    cdef int placed(self, Subscriber session, Place place) except -1:
        seen = place.seen
        fields = {
            "session": session.key, "state": place.state, "generation": place.generation, "stamp": place.stamp,
            "clean_stamp": place.clean_stamp, "peer": place.peer, "granted": place.granted,
        }
        if seen is not None:
            fields |= {"floor": _packed(seen.passed.ids), "base": _packed((seen.base,)), "forgotten": _packed(seen.forgotten.ids)}
            if place.merged:
                fields["merged"] = b"".join([MERGED.pack(*one) for one in sorted(place.merged)])
        if place.mixed:
            fields["mixed"] = 1
        self.name(session)
        self.add(Kind.PLACED, fields)
        if seen is None:
            return 0
        ids = seen.ids
        for first in range(0, len(ids), SEEN_A_RECORD):
            self.add(Kind.SEEN, {"session": session.key, "ids": _packed(ids[first:first + SEEN_A_RECORD])})
        return 0


cdef class JournalRecorder(BufferRecorder):
    """writer: the worker's journal. division: number of the division of sessions by which it is written."""

    def __init__(self, Writer writer not None, division=0):
        self.buffer = self.writer = writer
        self.cycle = 1
        self.division = division

    cdef int name(self, Subscriber session) except -1:
        """A segment names each session before the first other record of it, so that it can be read alone."""
        cdef uint32_t segment = self.writer.segment + 1
        if (<Session>session).named_in != segment:
            (<Session>session).named_in = segment
            log_session_named(self.writer, session.key, session.client_id)
        return 0

    cdef int open(self, int kind, Subscriber session, int version, uint64_t expiry_ms, dict details) except -1:
        (<Session>session).named_in = self.writer.segment + 1
        return BufferRecorder.open(self, kind, session, version, expiry_ms, details)

    cdef int snapshot(self, Subscriber subscriber) except -1:
        cdef Session session = <Session>subscriber
        if session.ended or not session.known:
            return 0
        if session.place is not None:
            self.placed(session, session.place)      # before SESSION_SAVED, which must not take the place of another session
        return save(session, self, session.logged)

    def moved(self, uint64_t number, bytes client_id) -> None:
        """A session of this journal belongs to another worker, whose journal has it."""
        self.add(Kind.SESSION_NAMED, {"session": number, "client_id": client_id})
        self.add(Kind.SESSION_ENDED, {"session": number, "reason": EndReason.MOVED})

    # --- cycles ---------------------------------------------------------------------------------------------------------

    def checkpoint(self, uint64_t keep_from) -> None:
        """All sessions were written since `keep_from`."""
        self.add(Kind.CHECKPOINT, {"snapshot": b"", "position": keep_from, "keep_from": keep_from})

    def next_cycle(self) -> None:
        """From here on every message is written again before a record refers to it."""
        self.cycle += 1

    # --- messages -------------------------------------------------------------------------------------------------------

    cdef int message(self, Message message) except -1:
        if message.logged == self.cycle:
            return 0
        message.logged = self.cycle
        return BufferRecorder.message(self, message)

    cdef int published_by(self, Subscriber session) except -1:
        cdef ClientOutput link = (<Session>session).link
        cdef uint32_t segment = self.writer.segment + 1
        if link.described_in == segment:
            return 0
        link.described_in = segment
        found = link.registry_fields()
        details = {
            Detail.PEER: found["peer"].encode(), Detail.USERNAME: found.get("username"), Detail.LISTENER: found["listener"].encode(),
            Detail.VERSION: found["version"],
        }
        return self.add(Kind.PUBLISHER, {
            "client_id": session.client_id, "details": {int(key): value for key, value in details.items() if value is not None}})

    def event(self, bytes event, bytes client_id, uint64_t at_ms, bytes columns) -> None:
        """What rules on events see. columns: CBOR, a map of names to values."""
        self.fed |= FED
        self.add(Kind.EVENT, {"event": event, "client_id": client_id, "at_ms": at_ms, "columns": columns})

    cdef int captured(self, Publication publication, uint8_t captured) except -1:
        if self.writer.durable >= self.captured_mark:
            self.captured_below = self.captured_behind
            self.captured_behind = 0
            self.captured_mark = self.writer.next_sequence
        self.captured_behind += 1
        self.fed |= captured
        log_message(
            self.writer, publication.id_high, publication.id_low, publication.topic, publication.topic_size,
            publication.payload, publication.payload_size,
            publication.qos | (FLAG_RETAIN if publication.retain else 0) | (FLAG_UTF8 if publication.payload_format else 0)
            | captured,
            publication.expires_ms, publication.properties, publication.properties_size, publication.client_id,
        )
        publication.logged = self.cycle
        if publication.message is not None:
            publication.message.logged = self.cycle
        return 0

    cdef uint64_t take_captured(self) noexcept:
        cdef uint64_t count = self.captured_behind
        if self.writer.durable < self.captured_mark:
            count += self.captured_below
        self.captured_below = self.captured_behind = 0
        return count

    cdef int not_captured(self, uint64_t count, uint64_t from_us, int error) except -1:
        return self.add(Kind.NOT_CAPTURED, {"count": count, "from_us": from_us, "errno": error})

    # --- rings ----------------------------------------------------------------------------------------------------------

    cdef int consumed(self, uint64_t rings, uint64_t producer, uint64_t position, bytes weights) except -1:
        return self.add(Kind.CONSUMED, {"rings": rings, "producer": producer, "position": position, "weights": weights})

    cdef int arrived_from(self, uint64_t origin, uint64_t stream, uint64_t position, bint over) except -1:
        return log_arrived(self.writer, origin, stream, position, over)

    cdef int forwarded(
        self, uint64_t rings, long destination, uint64_t position, Message message, int kind, uint64_t member, int attempts,
        bytes group, bytes filter, bint until_arrived,
    ) except -1:
        self.message(message)
        return self.add(Kind.FORWARDED, {
            "rings": rings, "destination": destination, "position": position,
            "id": message.id_high.to_bytes(8, "big") + message.id_low.to_bytes(8, "big"),
            "record": kind, "member": member, "attempts": attempts, "group": group or None, "filter": filter or None,
            "until_arrived": 1 if until_arrived else None,
        })

    cdef int deferred(
        self, uint64_t number, int purpose, Message message, long destination, int kind, uint64_t member, int attempts, bytes group,
        bytes filter, uint64_t at_ms,
    ) except -1:
        self.message(message)
        return self.add(Kind.HELD, {
            "number": number, "purpose": purpose, "id": message.id_high.to_bytes(8, "big") + message.id_low.to_bytes(8, "big"),
            "destination": destination, "record": kind, "member": member, "attempts": attempts, "group": group or None,
            "filter": filter or None, "at_ms": at_ms or None, "division": self.division or None,
        })

    cdef int deferred_done(self, uint64_t number) except -1:
        return self.add(Kind.LET_GO, {"number": number})

    # --- what is on the disk ----------------------------------------------------------------------------------------------

    cdef int synced(self) except -1:
        return log_synced(self.writer, self.writer.durable)

    def arrived(self) -> None:
        """Everything forwarded until now is in the journals of its destinations, or is forwarded again behind this record."""
        self.add(Kind.SYNCED, {"position": self.writer.durable, "arrived": self.writer.next_sequence})
