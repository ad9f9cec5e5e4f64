"""One client's session: subscriptions, inflight window, queue, QoS 2 state, will, deadlines. No socket, no clock.

    deliver() -> [ window has room? ] -- yes --> inflight window --> PUBLISH on the link
                        | no                        ^
                        v                           | pump(): acknowledgement, drained socket, resumed session
                     MQueue ------------------------+

The window is a ring of deliveries with consecutive packet ids, so the slot of a packet id is found by subtraction. A delivery that is
acknowledged out of turn stays as a hole until it is at the front.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.subscriptions cimport Subscriber, Subscription
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.delivery cimport Delivery, DeliveryRing
from shardbroker.session.client_output cimport ClientOutput
from shardbroker.session.mqueue cimport MQueue
from shardbroker.session.place cimport Place
from shardbroker.session.timers cimport Timed

cdef enum Qos2Arrival:
    QOS2_NEW = 0                           # publish it, PUBREC
    QOS2_REPEAT = 1                        # published before: PUBREC only [MQTT-4.3.3-10]
    QOS2_IN_USE = 2                        # not marked as a repeat: PUBREC 0x91
    QOS2_FULL = 3                          # max_awaiting_rel reached: DISCONNECT 0x93


cdef class SessionTimer(Timed):
    cdef Session session


cdef class Will:
    cdef Message message
    cdef uint32_t delay_s
    cdef uint32_t expiry_s                 # Message Expiry Interval of the will
    cdef bint has_expiry
    cdef dict origin                       # its client, see Authorization.of_will(); None: recovered from a journal of an older version


cdef class Session(Subscriber):
    cdef WorkerContext context
    cdef ClientOutput link                         # None while the client is away
    cdef object subscriptions              # None, one Subscription, or filter as subscribed -> Subscription from the second on
    cdef DeliveryRing window
    # Small fields lie together: there may be a million sessions.
    cdef uint16_t first_id                 # packet id of the window's first slot
    cdef uint16_t inflight                 # deliveries in the window that are not DONE
    cdef uint16_t held                     # of these, those that wait for Receive Maximum before they are sent again
    cdef uint8_t ended
    cdef uint8_t logged                    # its changes are recorded in the journal
    cdef uint8_t registered                # has an entry in the client registry
    cdef uint8_t known                     # the journal has it: `logged`, or because of its will
    cdef uint8_t replaying                 # it has, or had, a ReplaySubscription
    cdef uint8_t fetching                  # look-ups in databases are not finished, see worker/features/lookups.pxd
    cdef uint32_t named_in                 # segment of the journal that has its name, counted from 1
    cdef MQueue queue
    cdef dict awaiting_rel                 # packet id -> ms of its arrival; None: empty
    cdef Will will
    cdef dict share_memory                 # round robin turns and sticky members of this publisher; None until needed
    cdef uint64_t expiry_ms                # Session Expiry Interval; all ones: never
    cdef uint64_t expires_at_ms            # while the client is away
    cdef uint64_t will_at_ms               # while its will waits for the delay to pass
    cdef SessionTimer timer
    cdef object replays                    # retained messages still to be sent, see pubsub.retained; usually None
    cdef uint64_t created_ms
    cdef readonly Place place              # None: this node is in no cluster

    cdef Subscription find_subscription(self, bytes wire_filter)
    cdef int put_subscription(self, Subscription subscription) except -1      # adds or replaces
    cdef Subscription pop_subscription(self, bytes wire_filter)               # None: no such subscription
    cdef list all_subscriptions(self)
    cdef size_t subscription_count(self) except? 0
    cdef uint32_t window_size(self) noexcept
    cdef int attach(self, ClientOutput link) except -1            # after CONNACK: sends again what was not acknowledged [MQTT-4.4.0-1]
    cdef int detach(self) except -1
    cdef int enqueue_behind(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1
    cdef int join_behind(self) except -1                  # what Place.behind has follows the queue; nothing is held any more
    cdef int pump(self) except -1                         # moves deliveries from the queue to the window and the client
    cdef bint idle_for_replay(self) noexcept              # the queue is empty: a retained message may be added
    # Acknowledgements of the client. False: no such packet id in that state.
    cdef bint puback(self, uint16_t packet_id) except -1
    cdef bint pubrec(self, uint16_t packet_id, uint8_t reason_code) except -1
    cdef bint pubcomp(self, uint16_t packet_id) except -1
    cdef int awaited(self, uint16_t packet_id) noexcept    # packet type that its message waits for; 0: no such message
    cdef int announce_acked(self, Delivery* slot) except -1
    # QoS 2 from the client.
    cdef int receive_qos2(self, uint16_t packet_id, bint dup) except -1       # the caller records what is new
    cdef bint pubrel(self, uint16_t packet_id) except -1
    cdef int set_deadline(self) except -1
    cdef int end(self) except -1                          # releases everything; the owner has removed it from its tables
    cdef list shared_leftovers(self)                      # (share, Message, qos) for other members of their groups

    cdef Delivery* in_window(self, uint16_t packet_id) noexcept
    cdef uint16_t packet_id_at(self, uint32_t index) noexcept             # of the window's slot, which may be a hole
    cdef int send_or_queue(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1
    cdef bint start(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share, bint from_queue) except -1
    cdef int enqueue(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1
    cdef int drop_oldest(self) except -1
    cdef void complete(self, Delivery* slot) noexcept
    cdef bint has_room(self) noexcept
    cdef int send_pubrel(self, uint16_t packet_id) except -1
    cdef bint is_next_released(self) except -1
    cdef bint answers_release(self, uint16_t packet_id) except -1
    cdef int resend_on_resume(self) except -1
    cdef int resend_held(self) except -1
    cdef int resend_late(self) except -1
    cdef int resend_slot(self, Delivery* slot) except -1
    cdef int drop_slot(self, Delivery* slot) except -1
    cdef int push_slot(self, Message message, uint16_t packet_id, uint8_t qos, bint retain, bytes ids, tuple share) except -1
    cdef void free_front(self) noexcept
    cdef int expire_awaiting_rel(self) except -1
    cdef int on_timer(self) except -1
