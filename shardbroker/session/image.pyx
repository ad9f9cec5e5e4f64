# cython: boundscheck=True
# Records come from files and from other nodes: one that is too short raises IndexError, and ends nothing but itself.
"""Sessions to records and back; see image.pxd."""

from libc.stdint cimport uint16_t

from shardbroker.mqtt.spec cimport FAILURE, PUBCOMP, PUBREC
from shardbroker.pubsub.message cimport make_message
from shardbroker.pubsub.subscriptions cimport OPTION_FETCHING, OPTION_QOS, ReplaySubscription, new_subscription
from shardbroker.session.delivery cimport (
    AWAITING_PUBACK, AWAITING_PUBCOMP, AWAITING_PUBREC, DONE, DeliveryRing, drop_delivery, take_delivery,
)
from shardbroker.session.journaling cimport DROPPED_TAKEN, FLAG_FROM_QUEUE, FLAG_QOS, FLAG_RETAIN, FLAG_UTF8
from shardbroker.session.mqueue cimport MQueue
from shardbroker.session.place cimport OWNED, seen_id
from shardbroker.session.session cimport Will
from shm.counters cimport MQUEUE_COUNT

from json import loads

from shardbroker.mqtt.topics import parse_subscription

__all__ = ["SessionReader"]

cdef enum:
    WINDOW_SPAN = 65534                    # slots of the largest window

cdef uint64_t NEVER = <uint64_t>-1


cdef int save(Session session, Recorder recorder, bint whole) except -1:
    cdef Subscription subscription
    cdef Delivery* slot
    cdef DeliveryRing ring
    cdef uint32_t i
    recorder.saved(session, 0 if session.link is None else session.link.version, session.expiry_ms)
    if session.will is not None:
        recorder.will_set(
            session, session.will.message, session.will.delay_s, session.will.expiry_s if session.will.has_expiry else None,
            session.will.origin)
    if whole:
        for subscription in session.all_subscriptions():
            recorder.subscribed(session, subscription)
            if isinstance(subscription, ReplaySubscription):
                recorder.replayed(<ReplaySubscription>subscription)
        for i in range(session.window.count if session.window is not None else 0):
            slot = session.window.at(i)
            if slot.message != NULL:
                recorder.delivered(session, slot, False)
            else:
                recorder.packet_id_used(
                    session, session.packet_id_at(i), slot.qos, PUBREC if slot.state == AWAITING_PUBCOMP else PUBCOMP)
        for queue in (session.queue, None if session.place is None else session.place.behind):
            for priority, lane in (() if queue is None or queue.count == 0 else (<MQueue>queue).lanes):
                ring = <DeliveryRing>lane
                for i in range(ring.count):
                    recorder.queued(session, ring.at(i), priority)
        for packet_id in session.awaiting_rel or ():
            recorder.received(session, packet_id, 0, 0)
    if session.link is None:
        recorder.away(session, 0, session.expires_at_ms)
        if session.will_at_ms:
            recorder.will_delayed(session, session.will_at_ms)
    return 0


cdef class SessionReader:
    def __cinit__(self):
        self.messages = {}

    cdef Session session_of(self, list item):
        raise NotImplementedError("SessionReader.session_of")

    cdef int add_subscription(self, Session session, Subscription subscription) except -1:
        return session.put_subscription(subscription)

    cdef int remove_subscription(self, Session session, bytes wire_filter) except -1:
        session.pop_subscription(wire_filter)
        return 0

    # --- messages -----------------------------------------------------------------------------------------------------------

    def on_message(self, list item) -> None:
        self.messages[item[1]] = item

    cdef Message message(self, bytes id):
        cdef Message message
        found = self.messages.get(id)
        if found is None or isinstance(found, Message):
            return found
        message = message_from(
            bytes_field(found, 2), bytes_field(found, 3), found[4], found[5], bytes_field(found, 6), bytes_field(found, 7) or None, id)
        message.logged = self.logged
        self.messages[id] = message
        return message

    # --- connections and subscriptions --------------------------------------------------------------------------------------

    cdef int connected(self, Session session, list item) except -1:
        expiry = field_or_none(item, 4)
        session.expiry_ms = NEVER if expiry is None else expiry
        session.expires_at_ms = 0
        session.will_at_ms = 0
        return 0

    def on_disconnected(self, list item) -> None:
        cdef Session session = self.session_of(item)
        if session is not None:
            session.expires_at_ms = field_or_none(item, 3) or 0

    def on_subscribed(self, list item) -> None:
        cdef Session session = self.session_of(item)
        cdef Subscription subscription
        cdef uint32_t options = item[3]
        if session is None:
            return
        subscription = new_subscription(item[2], self.time_ms * 1000)
        group, filter = parse_subscription(item[2])
        subscription.subscriber = session
        subscription.filter = filter
        subscription.group = group
        subscription.wire_filter = filter if group is None and not isinstance(subscription, ReplaySubscription) else item[2]
        subscription.qos = options & OPTION_QOS
        subscription.flags = options & ~<uint32_t>OPTION_QOS
        subscription.identifier = item[4]
        if options & OPTION_FETCHING:
            session.fetching = True
        self.add_subscription(session, subscription)

    def on_replayed(self, list item) -> None:
        cdef Session session = self.session_of(item)
        cdef ReplaySubscription replay
        found = None if session is None else session.find_subscription(item[2])
        if not isinstance(found, ReplaySubscription):
            return
        replay = found
        end_us = field_or_none(item, 4)
        replay.start_us, replay.end_us = item[3], NEVER if end_us is None else end_us
        replay.positions = field_or_none(item, 5) or {}
        replay.over = bool(field_or_none(item, 6))
        replay.filter = bytes_field(item, 7) or replay.filter
        replay.incarnations = field_or_none(item, 8) or {}

    def on_unsubscribed(self, list item) -> None:
        cdef Session session = self.session_of(item)
        if session is not None:
            self.remove_subscription(session, item[2])

    # --- deliveries ---------------------------------------------------------------------------------------------------------

    def on_queued(self, list item) -> None:
        cdef Session session = self.session_of(item)
        cdef Message message = self.message(item[2])
        cdef uint32_t flags = item[3]
        cdef Delivery* slot
        if session is None or message is None:
            return
        if session.queue is None:
            session.queue = MQueue.__new__(MQueue)
        slot = session.queue.push(item[4], flags & FLAG_QOS)
        take_delivery(slot, message, field_or_none(item, 5), share_of(item, 6))
        slot.qos = flags & FLAG_QOS
        slot.retain = (flags & FLAG_RETAIN) != 0
        self.context.gauge(MQUEUE_COUNT, 1)
        if slot.qos:
            note_seen(session, item[2])

    cdef bint take_from_queue(self, Session session, bytes id, Delivery* taken) except -1:
        """Takes the oldest queue entry of this message, which is nearly always the first one. False: the queue has no such entry."""
        cdef MQueue kept
        cdef Delivery* slot
        cdef Delivery one
        cdef bint found = False
        if session.queue is None or session.queue.count == 0:
            return False
        slot = session.queue.front()
        if same_id(<Message>slot.message, id):
            session.queue.pop(taken)
            found = True
        else:
            kept = MQueue.__new__(MQueue)
            for priority, lane in session.queue.lanes:
                while (<DeliveryRing>lane).count:
                    (<DeliveryRing>lane).move_front(&one)
                    if not found and same_id(<Message>one.message, id):
                        taken[0] = one
                        found = True
                    else:
                        slot = kept.push(priority, one.qos)
                        slot[0] = one
            session.queue = kept
        if found:
            self.context.gauge(MQUEUE_COUNT, -1)
        if session.queue.count == 0:
            session.queue = None
        return found

    def on_delivered(self, list item) -> None:
        cdef Session session = self.session_of(item)
        cdef uint16_t packet_id = item[2]
        cdef uint32_t flags = item[4]
        cdef Message message
        cdef Delivery taken
        cdef Delivery* slot
        ids, share = field_or_none(item, 5), share_of(item, 6)
        if session is None:
            return
        message = self.message(item[3])
        if flags & FLAG_FROM_QUEUE and self.take_from_queue(session, item[3], &taken):
            ids = <object>taken.ids if taken.ids != NULL else None
            share = <object>taken.share if taken.share != NULL else None
            message = <Message>taken.message
            drop_delivery(&taken)
        if flags & FLAG_QOS == 0:
            return
        note_seen(session, item[3])
        if session.window is None:
            session.window = DeliveryRing.__new__(DeliveryRing)
        if session.window.count == 0:
            session.first_id = packet_id
        while session.packet_id_at(session.window.count) != packet_id:
            if session.window.count == WINDOW_SPAN:
                return                     # damage: no such id can follow
            slot = session.window.push()   # an earlier record is lost: its place is a hole
            slot.state = DONE
        session.push_slot(message, packet_id, flags & FLAG_QOS, (flags & FLAG_RETAIN) != 0, ids, share)
        if message is None:
            slot = session.window.at(session.window.count - 1)
            drop_delivery(slot)            # only its packet id counts

    def on_acknowledged(self, list item) -> None:
        cdef Session session = self.session_of(item)
        cdef Delivery* slot
        if session is None:
            return
        slot = session.in_window(item[2])
        if slot == NULL or slot.state == DONE:
            return
        if item[3] == PUBREC and item[4] < FAILURE:
            drop_delivery(slot)
            slot.state = AWAITING_PUBCOMP
        else:
            session.complete(slot)

    def on_dropped(self, list item) -> None:
        cdef Session session = self.session_of(item)
        cdef Delivery taken
        if session is None:
            return
        if item[3] & FLAG_FROM_QUEUE and self.take_from_queue(session, item[2], &taken):
            drop_delivery(&taken)
        if item[4] == DROPPED_TAKEN and session.place is not None and session.place.state != OWNED and session.place.seen is not None:
            session.place.seen.discard(id_from(item[2]))           # handed over to another node, not delivered here

    cdef int end_lost(self, Session session) except -1:
        cdef Delivery* slot
        cdef uint32_t i
        cdef int lost = 0
        for i in range(session.window.count if session.window is not None else 0):
            slot = session.window.at(i)
            if slot.message == NULL and (slot.state == AWAITING_PUBACK or slot.state == AWAITING_PUBREC):
                session.drop_slot(slot)
                lost += 1
        if session.window is not None:
            session.free_front()
        return lost

    # --- QoS 2 from the client ----------------------------------------------------------------------------------------------

    def on_received(self, list item) -> None:
        cdef Session session = self.session_of(item)
        if session is not None:
            if session.awaiting_rel is None:
                session.awaiting_rel = {}
            session.awaiting_rel[item[2]] = self.time_ms

    def on_released(self, list item) -> None:
        cdef Session session = self.session_of(item)
        if session is not None and session.awaiting_rel is not None:
            session.awaiting_rel.pop(item[2], None)

    # --- wills --------------------------------------------------------------------------------------------------------------

    def on_will_set(self, list item) -> None:
        cdef Session session = self.session_of(item)
        cdef Will will
        if session is None:
            return
        will = Will.__new__(Will)
        will.message = message_from(
            bytes_field(item, 2), bytes_field(item, 3), item[4], 0, bytes_field(item, 5), session.client_id, bytes(16))
        will.delay_s = item[6]
        expiry = field_or_none(item, 7)
        will.has_expiry = expiry is not None
        will.expiry_s = expiry or 0
        origin = field_or_none(item, 8)
        will.origin = None if origin is None else loads(origin)
        session.will = will

    def on_will_cleared(self, list item) -> None:
        cdef Session session = self.session_of(item)
        if session is not None:
            session.will = None
            session.will_at_ms = 0

    def on_will_delayed(self, list item) -> None:
        cdef Session session = self.session_of(item)
        if session is not None:
            session.will_at_ms = item[2]


cdef bytes bytes_field(list item, Py_ssize_t at):
    cdef object found = item[at] if at < len(item) else None
    return b"" if found is None else found


cdef object field_or_none(list item, Py_ssize_t at):
    return item[at] if at < len(item) else None


cdef object share_of(list item, Py_ssize_t at):
    """(group, filter), or None."""
    return (item[at], item[at + 1]) if at + 1 < len(item) and item[at] is not None else None


cdef int note_seen(Session session, bytes id) except -1:
    if session.place is not None and session.place.seen is not None:
        session.place.seen.add(id_from(id))
    return 0


cdef object id_from(bytes id):
    return seen_id(int.from_bytes(id[:8], "big"), int.from_bytes(id[8:], "big"))


cdef bint same_id(Message message, bytes id) noexcept:
    return message.id_high == <uint64_t>int.from_bytes(id[:8], "big") and message.id_low == <uint64_t>int.from_bytes(id[8:], "big")


cdef Message message_from(bytes topic, bytes payload, uint32_t flags, uint64_t expires_ms, bytes properties, bytes publisher, bytes id):
    """A message that no journal has yet (`logged` is 0)."""
    return make_message(topic, payload, properties, publisher, id, expires_ms, flags & FLAG_QOS, (flags & FLAG_RETAIN) != 0,
                        (flags & FLAG_UTF8) != 0, 0)
