"""The session of one client (MQTT 3.1.1 §3.1.2.4, 5.0 §4.1); see session.pxd.

QoS flows: MQTT 5.0 §4.3. Queueing and drop rules: EMQX's, see docs/configuration.md. Retransmission: 3.x clients get
unacknowledged packets again after the retry interval and on reconnect, 5.0 clients on reconnect only [MQTT-4.4.0-1].
"""

from libc.stdint cimport int64_t

from shardbroker.hooks.masks cimport HOOK_MESSAGE_ACKED
from shardbroker.mqtt.codec cimport write_ack
from shardbroker.mqtt.spec cimport FAILURE, PACKET_TOO_LARGE, PUBACK, PUBCOMP, PUBREC, PUBREL_FIRST
from shardbroker.session.watcher cimport unlikely
from shm.counters cimport (
    DELIVERY_DROPPED_EXPIRED, DELIVERY_DROPPED_OUTPUT_FULL, DELIVERY_DROPPED_OVERLOAD,
    DELIVERY_DROPPED_QOS0_MSG, DELIVERY_DROPPED_QUEUE_FULL, DELIVERY_DROPPED_QUEUE_STALLED, INFLIGHT_COUNT, MESSAGES_ACKED, MESSAGES_DROPPED_AWAIT_PUBREL_TIMEOUT, MQUEUE_COUNT, PACKETS_PUBREL_SENT, PACKETS_SENT,
)
from shardbroker.session.context cimport NOTIFY_ACKED, NOTIFY_DELIVERED
from shardbroker.session.overflow cimport DROP_OLDEST, LEAVE, is_stalled
from shardbroker.session.place cimport TAKEN, TAKEN_BEHIND
from shardbroker.session.journaling cimport (
    DROPPED_EXPIRED, DROPPED_QUEUE_FULL, DROPPED_TOO_LARGE, RELEASED_PUBREL, RELEASED_TIMEOUT,
)
from shardbroker.session.delivery cimport (
    AWAITING_PUBACK, AWAITING_PUBCOMP, AWAITING_PUBREC, DONE, drop_delivery, take_delivery,
)

__all__ = ["Session", "Will"]

cdef enum:
    LAST_PACKET_ID = 65535                 # MQTT 5.0 §2.2.1
    WINDOW_SPAN = 65534                    # ids between the oldest unacknowledged and the newest
    RELEASED_AHEAD = 32                    # packet ids: as many as may be in flight by default, so answers come before they are needed
    QUEUE_COST = 3                         # units of the budget, for a message that is queued
    NO_MORE_QOS0 = 2                       # level of memory from which QoS 0 is not queued
    AWAIT_REL_GRAIN_MS = 1000              # largest delay of an awaiting_rel timeout


cdef class Will:
    """A will as CONNECT gave it (MQTT 5.0 §3.1.3.2): its message, delay and expiry, in seconds."""


cdef class SessionTimer(Timed):
    cdef int expire(self, uint64_t now_ms) except -1:
        # The session may end in on_timer() and release this timer: keep a reference until it has returned.
        cdef Session session = self.session
        return session.on_timer()


cdef class Session(Subscriber):
    def __init__(self, WorkerContext context, uint64_t key, bytes client_id):
        self.context = context
        self.key = key
        self.client_id = client_id
        self.first_id = 1
        self.created_ms = context.now_ms

    # --- subscriptions: most clients have one, and a dict for it would be a seventh of the memory of a client -------------------

    cdef Subscription find_subscription(self, bytes wire_filter):
        if isinstance(self.subscriptions, Subscription):
            return self.subscriptions if (<Subscription>self.subscriptions).wire_filter == wire_filter else None
        return (<dict>self.subscriptions).get(wire_filter) if self.subscriptions is not None else None

    cdef int put_subscription(self, Subscription subscription) except -1:
        cdef Subscription only
        if self.subscriptions is None:
            self.subscriptions = subscription
        elif isinstance(self.subscriptions, Subscription):
            only = self.subscriptions
            if only.wire_filter == subscription.wire_filter:
                self.subscriptions = subscription
            else:
                self.subscriptions = {only.wire_filter: only, subscription.wire_filter: subscription}
        else:
            (<dict>self.subscriptions)[subscription.wire_filter] = subscription
        return 0

    cdef Subscription pop_subscription(self, bytes wire_filter):
        cdef Subscription found = self.find_subscription(wire_filter)
        if found is not None:
            if self.replays:
                # The list stays, even if it is empty: RetainedReplays ends it in its turn.
                self.replays = [one for one in self.replays if (<Subscription>one[0]).wire_filter != wire_filter]
            if isinstance(self.subscriptions, Subscription):
                self.subscriptions = None
            else:
                del (<dict>self.subscriptions)[wire_filter]
                if not self.subscriptions:
                    self.subscriptions = None
        return found

    cdef list all_subscriptions(self):
        if self.subscriptions is None:
            return []
        return [self.subscriptions] if isinstance(self.subscriptions, Subscription) else list((<dict>self.subscriptions).values())

    cdef size_t subscription_count(self) except? 0:
        if self.subscriptions is None:
            return 0
        return 1 if isinstance(self.subscriptions, Subscription) else len(<dict>self.subscriptions)

    # --- delivery -------------------------------------------------------------------------------------------------------

    cdef uint32_t window_size(self) noexcept:
        cdef uint32_t size = self.context.max_inflight
        if self.link is not None and self.link.receive_maximum < size:
            size = self.link.receive_maximum          # [MQTT-3.3.4-9]
        return size

    cdef int deliver(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1:
        # The lower of the published and the granted QoS [MQTT-3.8.4-8], unless QoS is to be upgraded.
        if publication.qos < qos and not self.context.upgrade_qos:
            qos = publication.qos
        if self.ended:
            return 0
        if self.fetching or (self.place is not None and self.place.watched):
            return special_delivery(self, publication, qos, retain, ids, share)
        if publication.expires_ms and publication.expires_ms < self.context.now_ms:
            # It expired in a ring, or at another member of its group [MQTT-3.3.2-5].
            self.context.delivery_dropped(self, publication, DELIVERY_DROPPED_EXPIRED, "expired")
            return 0
        return self.send_or_queue(publication, qos, retain, ids, share)

    cdef int send_or_queue(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1:
        cdef ClientOutput link = self.link
        if link is not None:
            if not link.congested():
                if qos == 0:
                    if self.queue is None or self.queue.qos0_count == 0:
                        if link.write_publish(publication, 0, retain, False, 0, ids) and self.context.notifications & NOTIFY_DELIVERED:
                            self.context.publish_event(NOTIFY_DELIVERED, self, publication)
                        return 0
                elif (self.queue is None or self.queue.count == 0) and self.has_room() \
                        and (qos != 2 or self.place is None or self.is_next_released()):
                    self.start(publication, qos, retain, ids, share, False)
                    return 0
            elif qos == 0 and not self.logged and not link.promised:
                if link.relieve():
                    return self.send_or_queue(publication, qos, retain, ids, share)
                # The client is connected and reads nothing: QoS 0 is queued only for clients that are away, as in EMQX.
                self.context.delivery_dropped(self, publication, DELIVERY_DROPPED_OUTPUT_FULL, "output_full")
                return 0
        return self.enqueue(publication, qos, retain, ids, share)

    cdef bint has_room(self) noexcept:
        # Held deliveries are sent first, to keep the order.
        return self.held == 0 and self.inflight < self.window_size() and (self.window is None or self.window.count < WINDOW_SPAN)

    cdef bint start(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share, bint from_queue) except -1:
        """Adds a delivery to the window under the next packet id and writes it. False: larger than the client's Maximum Packet Size."""
        cdef uint32_t packet_id
        if self.window is None:
            self.window = DeliveryRing.__new__(DeliveryRing)
        packet_id = self.packet_id_at(self.window.count)
        if not self.link.write_publish(publication, qos, retain, False, <uint16_t>packet_id, ids):
            return False                   # as if it had been sent [MQTT-3.1.2-25]
        if self.place is not None and self.place.asked:
            self.place.use()
        self.push_slot(publication.keep(), <uint16_t>packet_id, qos, retain, ids, share)
        if self.logged:
            self.context.recorder.delivered(self, self.window.at(self.window.count - 1), from_queue)
        if self.context.retry_interval_ms and self.link.version < 5 and self.inflight == 1:
            self.set_deadline()
        if self.context.notifications & NOTIFY_DELIVERED:
            self.context.publish_event(NOTIFY_DELIVERED, self, publication)
        return True

    cdef int push_slot(self, Message message, uint16_t packet_id, uint8_t qos, bint retain, bytes ids, tuple share) except -1:
        """Adds a delivery at the end of the window."""
        cdef Delivery* slot = self.window.push()
        take_delivery(slot, message, ids, share)
        slot.packet_id = packet_id
        slot.qos = qos
        slot.retain = retain
        slot.state = AWAITING_PUBACK if qos == 1 else AWAITING_PUBREC
        slot.sent_ms = self.context.now_ms
        self.inflight += 1
        self.context.budget -= 1
        self.context.gauge(INFLIGHT_COUNT, 1)
        return 0

    cdef int enqueue(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1:
        cdef WorkerContext context = self.context
        cdef int priority = context.mqueue_default_priority
        cdef int taking
        context.budget -= QUEUE_COST
        if qos == 0 and not context.mqueue_store_qos0:
            context.delivery_dropped(self, publication, DELIVERY_DROPPED_QOS0_MSG, "qos0_msg")
            return 0
        if context.memory_level:
            if qos == 0 and context.memory_level >= NO_MORE_QOS0:
                context.delivery_dropped(self, publication, DELIVERY_DROPPED_OVERLOAD, "overload")
                return 0
            context.queued_by(publication.client_id, sizeof(Delivery) + (
                <uint64_t>publication.topic_size + publication.properties_size + publication.payload_size
                if publication.message is None else 0))
        if self.queue is None:
            self.queue = MQueue.__new__(MQueue)
        if context.max_mqueue_len and self.queue.count >= context.max_mqueue_len:
            taking = DROP_OLDEST if context.overflow is None else context.overflow.on_full(self, publication, share)
            if taking == LEAVE:
                return 0
            if taking == DROP_OLDEST:
                self.drop_oldest()
                if self.queue.count >= context.max_mqueue_len:
                    self.drop_oldest()     # what is left of a reserve
        cdef Message message = publication.keep()
        if context.mqueue_priorities:
            priority = context.mqueue_priorities.get(message.topic, priority)
        cdef Delivery* slot = self.queue.push(priority, qos)
        take_delivery(slot, message, ids, share)
        slot.qos = qos
        slot.retain = retain
        context.gauge(MQUEUE_COUNT, 1)
        if self.logged:
            context.recorder.queued(self, slot, priority)
        if context.watch:
            context.watcher.queued(self, publication, qos)
        return 0

    cdef int drop_oldest(self) except -1:
        """Drops the oldest message of the lowest priority, to make room."""
        cdef Delivery* oldest = self.queue.oldest_of_lowest()
        if self.logged:
            self.context.recorder.dropped(self, oldest, DROPPED_QUEUE_FULL)
        if is_stalled(self.queue):
            self.context.delivery_dropped(self, <Message>oldest.message, DELIVERY_DROPPED_QUEUE_STALLED, "queue_stalled")
        else:
            self.context.delivery_dropped(self, <Message>oldest.message, DELIVERY_DROPPED_QUEUE_FULL, "queue_full")
        self.queue.drop_oldest_of_lowest()
        self.context.gauge(MQUEUE_COUNT, -1)
        return 0

    cdef int enqueue_behind(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1:
        """Queues a message behind those of the former node that are still on their way; its bounds are those of the queue."""
        cdef MQueue queue = self.queue
        self.queue = self.place.behind
        try:
            return self.enqueue(publication, qos, retain, ids, share)
        finally:
            self.place.behind, self.queue = self.queue, queue

    cdef int join_behind(self) except -1:
        cdef MQueue behind = None if self.place is None else self.place.behind
        cdef Delivery one
        cdef Delivery* slot
        if behind is None:
            return 0
        self.place.behind = None
        if self.queue is None:
            self.queue = behind if behind.count else None
            return 0
        for priority, lane in (() if behind.lanes is None else behind.lanes):
            while (<DeliveryRing>lane).count:
                (<DeliveryRing>lane).move_front(&one)
                slot = self.queue.push(priority, one.qos)
                slot[0] = one
        return 0

    cdef int pump(self) except -1:
        cdef Delivery* front
        cdef Delivery taken
        cdef Message message
        cdef Publication publication = None
        if self.held and self.link is not None:
            self.resend_held()
        if self.queue is None or self.link is None:
            return 0
        while self.queue.count and not self.link.congested():
            front = self.queue.front()
            if front.qos and not (self.has_room() and (front.qos != 2 or self.place is None or self.is_next_released())):
                break
            self.queue.pop(&taken)
            self.context.gauge(MQUEUE_COUNT, -1)
            message = <Message>taken.message
            if message.expires_ms and message.expires_ms <= self.context.now_ms:
                # [MQTT-3.3.2-5]
                self.context.delivery_dropped(self, message, DELIVERY_DROPPED_EXPIRED, "expired")
                if self.logged:
                    self.context.recorder.dropped(self, &taken, DROPPED_EXPIRED)
            else:
                if publication is None:
                    publication = Publication.__new__(Publication)
                publication.borrow(message)
                ids = <object>taken.ids if taken.ids != NULL else None
                share = <object>taken.share if taken.share != NULL else None
                if taken.qos:
                    if not self.start(publication, taken.qos, taken.retain, ids, share, True) and self.logged:
                        self.context.recorder.dropped(self, &taken, DROPPED_TOO_LARGE)
                else:
                    if self.link.write_publish(publication, 0, taken.retain, False, 0, ids) and self.context.notifications & NOTIFY_DELIVERED:
                        self.context.publish_event(NOTIFY_DELIVERED, self, publication)
                    if self.logged:
                        self.context.recorder.delivered(self, &taken, True)
            message = None
            drop_delivery(&taken)
        if self.queue.count == 0:
            self.queue = None
        return 0

    cdef bint idle_for_replay(self) noexcept:
        return (
            self.link is not None and not self.link.congested() and (self.queue is None or self.queue.count == 0)
            and self.has_room() and (self.place is None or self.place.behind is None)
        )

    # --- acknowledgements -------------------------------------------------------------------------------------------------

    cdef Delivery* in_window(self, uint16_t packet_id) noexcept:
        cdef int index = <int>packet_id - self.first_id
        if self.window is None or packet_id == 0:
            return NULL
        if index < 0:
            index += LAST_PACKET_ID
        return self.window.at(index) if <uint32_t>index < self.window.count else NULL

    cdef uint16_t packet_id_at(self, uint32_t index) noexcept:
        cdef uint32_t packet_id = self.first_id + index
        return <uint16_t>(packet_id if packet_id <= LAST_PACKET_ID else packet_id - LAST_PACKET_ID)

    cdef void complete(self, Delivery* slot) noexcept:
        drop_delivery(slot)
        slot.state = DONE
        self.inflight -= 1
        self.context.gauge(INFLIGHT_COUNT, -1)
        if slot.held:
            slot.held = False
            self.held -= 1
        self.free_front()

    cdef void free_front(self) noexcept:
        while self.window.count and self.window.at(0).state == DONE:
            self.window.pop_front()
            self.first_id = self.first_id + 1 if self.first_id < LAST_PACKET_ID else 1

    cdef int announce_acked(self, Delivery* slot) except -1:
        cdef Publication publication = Publication.__new__(Publication)
        publication.borrow(<Message>slot.message)
        return self.context.publish_event(NOTIFY_ACKED, self, publication)

    cdef bint puback(self, uint16_t packet_id) except -1:
        cdef Delivery* slot = self.in_window(packet_id)
        if slot == NULL or slot.state != AWAITING_PUBACK:
            return False
        self.context.count(MESSAGES_ACKED)
        if self.logged:
            self.context.recorder.acknowledged(self, packet_id, PUBACK, 0)
        if self.context.notifications & NOTIFY_ACKED:
            self.announce_acked(slot)
        if unlikely(self.context.watch):
            self.context.watcher.acknowledged(self, slot)
        if self.context.hooks & HOOK_MESSAGE_ACKED:
            self.context.acked(self, <Message>slot.message)
        self.complete(slot)                # a failure code ends the delivery too [MQTT-4.4.0-2] [MQTT-4.8.2-6]
        self.pump()
        return True

    cdef bint pubrec(self, uint16_t packet_id, uint8_t reason_code) except -1:
        cdef Delivery* slot = self.in_window(packet_id)
        if slot == NULL or (slot.state != AWAITING_PUBREC and slot.state != AWAITING_PUBCOMP):
            return False
        if reason_code >= FAILURE:
            if self.logged:
                self.context.recorder.acknowledged(self, packet_id, PUBREC, reason_code)
            self.complete(slot)
            self.pump()
            return True
        if slot.state == AWAITING_PUBREC:
            if self.logged:
                self.context.recorder.acknowledged(self, packet_id, PUBREC, reason_code)
            if self.context.notifications & NOTIFY_ACKED:
                self.announce_acked(slot)
            if self.context.watch:
                self.context.watcher.acknowledged(self, slot)
            if self.context.hooks & HOOK_MESSAGE_ACKED:
                self.context.acked(self, <Message>slot.message)
            drop_delivery(slot)            # from here on only PUBREL is sent [MQTT-4.3.3-6]
            slot.state = AWAITING_PUBCOMP
            if slot.held:                  # acknowledged before it was sent again
                slot.held = False
                self.held -= 1
        slot.sent_ms = self.context.now_ms
        self.send_pubrel(packet_id)
        return True

    cdef bint pubcomp(self, uint16_t packet_id) except -1:
        cdef Delivery* slot = self.in_window(packet_id)
        if slot == NULL or slot.state != AWAITING_PUBCOMP:
            return self.place is not None and self.place.released and self.answers_release(packet_id)
        self.context.count(MESSAGES_ACKED)
        if self.logged:
            self.context.recorder.acknowledged(self, packet_id, PUBCOMP, 0)
        self.complete(slot)
        self.pump()
        return True

    cdef int awaited(self, uint16_t packet_id) noexcept:
        cdef Delivery* slot = self.in_window(packet_id)
        if slot == NULL:
            return 0
        return PUBACK if slot.state == AWAITING_PUBACK else PUBREC if slot.state == AWAITING_PUBREC \
            else PUBCOMP if slot.state == AWAITING_PUBCOMP else 0

    cdef int send_pubrel(self, uint16_t packet_id) except -1:
        write_ack(self.link.out, PUBREL_FIRST, packet_id, 0, self.link.version)
        self.context.count(PACKETS_SENT)
        self.context.count(PACKETS_PUBREL_SENT)
        self.link.touch()
        if self.context.watch:
            self.context.watcher.acked(self.link, PUBREL_FIRST, packet_id, 0, None)
        return 0

    cdef bint is_next_released(self) except -1:
        """Returns whether the client is known not to hold the next packet id of another session of its client id, on the other side of a
        split of a cluster: it would take a message of QoS 2 with this id for one that it has had [MQTT-4.3.3-10].

        Until then no message of QoS 2 is sent: sent behind its PUBREL on a connection that the client has left, it would be sent again
        without PUBREL. Packet ids are released ahead, so that a client that answers is not waited for at each message.
        """
        cdef Place place = self.place
        cdef uint32_t used = 0 if self.window is None else self.window.count
        if not place.to_release and not place.asked:
            return True
        if 2 * place.answered <= RELEASED_AHEAD:
            while place.to_release and place.asked < RELEASED_AHEAD and used + place.asked < WINDOW_SPAN:
                place.released = True
                self.send_pubrel(self.packet_id_at(used + place.asked))
                place.asked += 1
                place.to_release -= 1
        return place.answered > 0

    cdef bint answers_release(self, uint16_t packet_id) except -1:
        """Takes PUBCOMP of a packet id that is not waited for. The client has read PUBREL of those before it, too."""
        cdef Place place = self.place
        cdef int index = <int>packet_id - self.packet_id_at(0 if self.window is None else self.window.count)
        if index < 0:
            index += LAST_PACKET_ID
        if place.answered <= index < place.asked:
            place.answered = <uint16_t>(index + 1)
            self.pump()
        return True

    # --- QoS 2 from the client ---------------------------------------------------------------------------------------------

    cdef int receive_qos2(self, uint16_t packet_id, bint dup) except -1:
        if self.awaiting_rel is None:
            self.awaiting_rel = {}
        elif packet_id in self.awaiting_rel:
            # 3.x has no reason code for it: each is taken for a repeat.
            return QOS2_REPEAT if dup or self.link.version < 5 else QOS2_IN_USE
        if self.context.max_awaiting_rel and <uint32_t>len(self.awaiting_rel) >= self.context.max_awaiting_rel:
            return QOS2_FULL
        self.awaiting_rel[packet_id] = self.context.now_ms
        if self.context.await_rel_timeout_ms and len(self.awaiting_rel) == 1:
            self.set_deadline()
        return QOS2_NEW

    cdef bint pubrel(self, uint16_t packet_id) except -1:
        if self.awaiting_rel is None or self.awaiting_rel.pop(packet_id, None) is None:
            return False
        if self.logged:
            self.context.recorder.released(self, packet_id, RELEASED_PUBREL)
        return True

    cdef int expire_awaiting_rel(self) except -1:
        cdef uint64_t limit = self.context.await_rel_timeout_ms
        if not limit or not self.awaiting_rel:
            return 0
        for packet_id, received in list(self.awaiting_rel.items()):
            if <uint64_t>received + limit > self.context.now_ms:
                break                      # the dict is in order of arrival
            del self.awaiting_rel[packet_id]
            if self.logged:
                self.context.recorder.released(self, packet_id, RELEASED_TIMEOUT)
            self.context.count(MESSAGES_DROPPED_AWAIT_PUBREL_TIMEOUT)
        return 0

    # --- connections --------------------------------------------------------------------------------------------------------

    cdef int attach(self, ClientOutput link) except -1:
        self.link = link
        self.expires_at_ms = 0
        self.will_at_ms = 0
        self.resend_on_resume()
        self.pump()
        self.set_deadline()
        return 0

    cdef int detach(self) except -1:
        self.link = None
        self.replays = None
        return 0

    cdef int resend_on_resume(self) except -1:
        """PUBLISH with DUP and PUBREL again, in the order of their packet ids [MQTT-4.4.0-1].

        PUBREL is sent at once, PUBLISH up to the Receive Maximum of this connection, which may be lower than that of the previous one
        [MQTT-3.3.4-9]. The rest is held until acknowledgements arrive.
        """
        cdef Delivery* slot
        cdef uint32_t i
        self.held = 0
        if self.window is None:
            return 0
        for i in range(self.window.count):
            slot = self.window.at(i)
            slot.held = slot.state == AWAITING_PUBACK or slot.state == AWAITING_PUBREC
            self.held += slot.held
        for i in range(self.window.count):
            slot = self.window.at(i)
            if slot.state == AWAITING_PUBCOMP:
                self.resend_slot(slot)
            elif slot.held and self.inflight - self.held < self.window_size():
                self.held -= 1
                slot.held = False
                self.resend_slot(slot)
        self.free_front()
        return 0

    cdef int resend_held(self) except -1:
        cdef Delivery* slot
        cdef uint32_t i = 0
        while self.held and i < self.window.count and self.inflight - self.held < self.window_size() \
                and not self.link.congested():
            slot = self.window.at(i)
            if slot.held:
                self.held -= 1
                slot.held = False
                self.resend_slot(slot)
            i += 1
        self.free_front()
        return 0

    cdef int resend_late(self) except -1:
        """Sends again what a 3.x client has not acknowledged within the retry interval."""
        cdef Delivery* slot
        cdef uint32_t i
        if self.window is None:
            return 0
        for i in range(self.window.count):
            slot = self.window.at(i)
            if slot.state != DONE and not slot.held and slot.sent_ms + self.context.retry_interval_ms <= self.context.now_ms:
                self.resend_slot(slot)
        self.free_front()
        return 0

    cdef int resend_slot(self, Delivery* slot) except -1:
        cdef Publication publication
        slot.sent_ms = self.context.now_ms
        if slot.state == AWAITING_PUBCOMP:
            return self.send_pubrel(slot.packet_id)
        publication = Publication.__new__(Publication)
        publication.borrow(<Message>slot.message)
        ids = <object>slot.ids if slot.ids != NULL else None
        if not self.link.write_publish(publication, slot.qos, slot.retain, True, slot.packet_id, ids):  # [MQTT-3.3.1-1]
            if self.logged:
                # The journal has it as refused by the client.
                self.context.recorder.acknowledged(self, slot.packet_id, PUBACK if slot.qos == 1 else PUBREC, PACKET_TOO_LARGE)
            self.drop_slot(slot)
        return 0

    cdef int drop_slot(self, Delivery* slot) except -1:
        """Ends a delivery; the caller, which walks the window, frees its place."""
        drop_delivery(slot)
        slot.state = DONE
        self.inflight -= 1
        self.context.gauge(INFLIGHT_COUNT, -1)
        return 0

    cdef int set_deadline(self) except -1:
        cdef uint64_t due = <uint64_t>-1
        if self.link is None:
            if self.expires_at_ms:
                due = self.expires_at_ms
            if self.will_at_ms and self.will_at_ms < due:
                due = self.will_at_ms
        elif self.context.retry_interval_ms and self.link.version < 5 and self.inflight:
            due = self.context.now_ms + self.context.retry_interval_ms
        if self.context.await_rel_timeout_ms and self.awaiting_rel:
            oldest = next(iter(self.awaiting_rel.values()))
            due = min(due, <uint64_t>oldest + self.context.await_rel_timeout_ms + AWAIT_REL_GRAIN_MS)
        if due == <uint64_t>-1:
            if self.timer is not None:
                self.context.timers.disarm(self.timer)
                self.timer.session = None
                self.timer = None
            return 0
        if self.timer is None:
            self.timer = SessionTimer.__new__(SessionTimer)
            self.timer.session = self
        self.context.timers.arm(self.timer, due)
        return 0

    cdef int on_timer(self) except -1:
        if self.ended:
            return 0
        self.expire_awaiting_rel()
        if self.link is not None:
            if self.context.retry_interval_ms and self.link.version < 5 and not self.link.congested():
                self.resend_late()
        else:
            if self.will_at_ms and self.will_at_ms <= self.context.now_ms:
                self.will_at_ms = 0
                self.context.will_due(self)
            if self.expires_at_ms and self.expires_at_ms <= self.context.now_ms:
                self.context.session_expired(self)
                return 0
        return self.set_deadline()

    cdef list shared_leftovers(self):
        """Returns what another member of a shared group can take: QoS 1 in flight, QoS 1 and 2 queued, as EMQX redispatches them. Never
        QoS 0, and never QoS 2 in flight [MQTT-4.8.2-5]."""
        cdef list found = []
        cdef Delivery taken
        cdef Delivery* slot
        cdef uint32_t i
        self.join_behind()
        if self.window is not None:
            for i in range(self.window.count):
                slot = self.window.at(i)
                if slot.share != NULL and slot.state == AWAITING_PUBACK:
                    found.append((<object>slot.share, <object>slot.message, slot.qos))
        while self.queue is not None and self.queue.count:
            self.queue.pop(&taken)
            self.context.gauge(MQUEUE_COUNT, -1)
            if taken.share != NULL and taken.qos:
                found.append((<object>taken.share, <object>taken.message, taken.qos))
            drop_delivery(&taken)
        return found

    cdef int end(self) except -1:
        self.ended = True
        self.join_behind()
        self.context.gauge(INFLIGHT_COUNT, -<int64_t>self.inflight)
        if self.queue is not None:
            self.context.gauge(MQUEUE_COUNT, -<int64_t>self.queue.count)
        self.inflight = 0
        self.held = 0
        self.window = None
        self.queue = None
        self.awaiting_rel = None
        self.replays = None
        self.share_memory = None
        self.will = None
        self.subscriptions = None
        if self.timer is not None:
            self.context.timers.disarm(self.timer)
            self.timer.session = None
            self.timer = None
        return 0


cdef int deliver_specially(Session session, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1:
    """Delivers a message to a session with look-ups in a database, or one that has another node, or had one.

    What the router does not want in a session of the second kind is left out.
    """
    cdef int taking = TAKEN
    if session.fetching:
        session.context.delivers_live(session, publication)
    if publication.expires_ms and publication.expires_ms < session.context.now_ms:
        session.context.delivery_dropped(session, publication, DELIVERY_DROPPED_EXPIRED, "expired")
        return 0
    if session.place is not None and session.place.watched:
        taking = session.context.takes(session, publication, qos)
    if taking == TAKEN_BEHIND:
        return session.enqueue_behind(publication, qos, retain, ids, share)
    return session.send_or_queue(publication, qos, retain, ids, share) if taking == TAKEN else 0


# A pointer, so that the compiler does not inline it: the other deliveries would pay 16 instructions each.
cdef int (*special_delivery)(Session, Publication, uint8_t, bint, bytes, tuple) except -1
special_delivery = deliver_specially
