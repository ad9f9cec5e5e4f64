"""The subscriptions of one worker: filter -> subscriptions. Matching is done by the route table, not by this one."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication


cdef enum Option:                          # bits of the options byte, MQTT 5.0 §3.8.3.1
    OPTION_QOS = 0x03
    OPTION_NO_LOCAL = 0x04
    OPTION_RETAIN_AS_PUBLISHED = 0x08
    OPTION_RETAIN_HANDLING = 0x30
    OPTION_RETAIN_IF_NEW = 0x10
    OPTION_FLAGS = 0x3C                    # all bits except the QoS
    OPTION_EXCLUSIVE = 0x40                # internal: no other session may hold this filter
    OPTION_FETCHING = 0x80                 # internal: not all messages of a database were delivered, see worker/features/lookups.pxd


cdef class Subscriber:
    """A target of deliveries; `session.Session` is one."""
    cdef readonly uint64_t key             # number of this session, unique on the node while it lives
    cdef readonly bytes client_id

    # Delivers one message to this subscriber. `ids` are encoded Subscription Identifier properties or None; `share` is the (group,
    # filter) that chose this subscriber, or None.
    cdef int deliver(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1


cdef class Subscription:
    cdef readonly Subscriber subscriber
    cdef readonly bytes filter             # without $share/<group>/
    cdef readonly bytes group              # None: not shared
    cdef readonly bytes wire_filter        # as subscribed, without $exclusive/; mostly the same object as `filter`
    cdef readonly uint8_t qos
    cdef uint8_t flags                     # Option; one byte, as there may be ten million subscriptions
    cdef readonly uint32_t identifier      # 0: none


cdef class ReplaySubscription(Subscription):
    """To what journals have, `$replay/<period>/<filter>` or a stream: no message leads to it, see worker/features/replay.pxd."""
    cdef readonly uint64_t start_us        # Unix µs, from which on messages are sent of a journal without a position
    cdef readonly uint64_t end_us          # Unix µs, all ones: it goes on with what is published
    cdef readonly dict positions           # number of a journal -> position behind what was delivered of it
    cdef readonly dict incarnations        # number of a journal -> incarnation of its segment with that position; 0: not known
    cdef readonly bint over                # everything up to `end_us` was delivered
    # While it runs:
    cdef readonly uint64_t number          # of this run; 0: it does not run
    cdef bint starting                     # it waits for its turn to begin
    cdef object waiting                    # deque of (Message or None, journal, position, incarnation, end?, bytes), received and not delivered
    cdef uint64_t records_done             # delivered, and not returned as credit
    cdef uint64_t bytes_done

    # Goes on where the subscription `previous` to the same filter is.
    cdef int adopt(self, ReplaySubscription previous) except -1


# A subscription of the class that its filter needs. Raises MqttError for a replay without a valid period.
cdef Subscription new_subscription(bytes wire_filter, uint64_t now_us)


cdef class SubscriptionTable:
    cdef dict filters                      # filter -> Subscription, or {session key: Subscription} from the second on
    cdef dict shared                       # (group, filter) -> {session key: Subscription}
    cdef readonly size_t count

    # Adds or replaces a subscription. Returns whether it is the first local one of its filter (plain) or a new member (shared).
    cdef bint add(self, Subscription subscription) except -1
    # Removes a subscription. Returns whether its filter has no local one left (plain), or the member was removed (shared).
    cdef bint remove(self, Subscription subscription) except -1
    cdef Subscription shared_member(self, bytes group, bytes filter, uint64_t key)
