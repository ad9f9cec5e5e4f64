"""The subscription table of one worker; see subscriptions.pxd."""

from shardbroker.mqtt.topics import OF_JOURNALS, STREAM
from shardbroker.pubsub.periods import FOREVER, parse_period

__all__ = ["ReplaySubscription", "Subscriber", "Subscription", "SubscriptionTable"]


cdef class Subscriber:
    cdef int deliver(self, Publication publication, uint8_t qos, bint retain, bytes ids, tuple share) except -1:
        raise NotImplementedError("Subscriber.deliver")


cdef class Subscription:
    """One subscription of one session: its filter and options (MQTT 5.0 §3.8.3.1)."""

    def options(self) -> dict[str, int]:
        """Returns the options under EMQX's names."""
        return {
            "qos": self.qos, "nl": int(self.flags & OPTION_NO_LOCAL != 0), "rap": int(self.flags & OPTION_RETAIN_AS_PUBLISHED != 0),
            "rh": (self.flags & OPTION_RETAIN_HANDLING) >> 4,
        }


cdef class ReplaySubscription(Subscription):
    """A subscription to what journals have."""

    def __cinit__(self):
        self.end_us = <uint64_t>FOREVER
        self.positions = {}
        self.incarnations = {}

    cdef int adopt(self, ReplaySubscription previous) except -1:
        self.start_us, self.end_us, self.positions, self.over = previous.start_us, previous.end_us, previous.positions, previous.over
        self.incarnations = previous.incarnations
        self.number, self.waiting = previous.number, previous.waiting
        self.records_done, self.bytes_done = previous.records_done, previous.bytes_done
        previous.number = 0
        return 0


cdef Subscription new_subscription(bytes wire_filter, uint64_t now_us):
    cdef ReplaySubscription replay
    if not wire_filter.startswith(OF_JOURNALS):
        return Subscription.__new__(Subscription)
    replay = ReplaySubscription.__new__(ReplaySubscription)
    if wire_filter.startswith(STREAM):
        replay.start_us = now_us           # unless the property of the SUBSCRIBE says something else
    else:
        kind, _, rest = wire_filter.partition(b"/")
        replay.start_us, replay.end_us = parse_period(rest.partition(b"/")[0], now_us, kind.decode() + "/<period>")
    return replay


cdef class SubscriptionTable:
    def __cinit__(self):
        self.filters = {}
        self.shared = {}

    cdef bint add(self, Subscription subscription) except -1:
        cdef dict members
        cdef bint is_new
        if subscription.group is not None:
            members = <dict>self.shared.setdefault((subscription.group, subscription.filter), {})
            is_new = subscription.subscriber.key not in members
            self.count += is_new
            members[subscription.subscriber.key] = subscription
            return is_new
        present = self.filters.get(subscription.filter)
        if present is None:
            self.filters[subscription.filter] = subscription
            self.count += 1
            return True
        if isinstance(present, Subscription):
            if (<Subscription>present).subscriber is subscription.subscriber:
                self.filters[subscription.filter] = subscription
                return False
            present = {(<Subscription>present).subscriber.key: present}
            self.filters[subscription.filter] = present
        members = <dict>present
        self.count += subscription.subscriber.key not in members
        members[subscription.subscriber.key] = subscription
        return False

    cdef bint remove(self, Subscription subscription) except -1:
        cdef dict members
        if subscription.group is not None:
            key = (subscription.group, subscription.filter)
            members = <dict>self.shared.get(key)
            if members is None or members.pop(subscription.subscriber.key, None) is None:
                return False
            self.count -= 1
            if not members:
                del self.shared[key]
            return True
        present = self.filters.get(subscription.filter)
        if present is None:
            return False
        if isinstance(present, Subscription):
            if (<Subscription>present).subscriber is not subscription.subscriber:
                return False
            del self.filters[subscription.filter]
            self.count -= 1
            return True
        members = <dict>present
        if members.pop(subscription.subscriber.key, None) is None:
            return False
        self.count -= 1
        if not members:
            del self.filters[subscription.filter]
            return True
        return False

    cdef Subscription shared_member(self, bytes group, bytes filter, uint64_t key):
        members = self.shared.get((group, filter))
        return None if members is None else (<dict>members).get(key)
