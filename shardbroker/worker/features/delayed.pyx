"""Delayed messages; see delayed.pxd."""

from bisect import bisect_right
from heapq import heapify, heappop, heappush
from itertools import islice

from shardbroker.mqtt.spec cimport TOPIC_NAME_INVALID
from shm.counters cimport DELAYED_COUNT

from shardbroker.mqtt.errors import MqttError

__all__ = ["DELAYED", "Delays", "parse_delayed"]

DELAYED = b"$delayed/"

DELAY_MAX_S = 42949670
"""Longest delay, and largest distance of a due time from now, seconds; larger numbers are Unix seconds. As in EMQX."""

DIGITS_MAX = 20
"""Digits of the number: more than any Unix second has."""

BATCH = 256
"""Messages that are due and published in one pass."""

SLACK = 1024
"""Entries of deleted messages that may remain in the lists."""


def parse_delayed(bytes topic not None, uint64_t now_ms) -> tuple[int, bytes]:
    """Splits a topic that begins with DELAYED into due time, Unix ms, and topic. Raises MqttError 0x90."""
    seconds, _, real = topic[len(DELAYED):].partition(b"/")
    if not seconds.isdigit() or len(seconds) > DIGITS_MAX:
        raise MqttError(TOPIC_NAME_INVALID, f"topic: must be $delayed/SECONDS/TOPIC, got {topic[:100].decode(errors='replace')}")
    if not real:
        raise MqttError(TOPIC_NAME_INVALID, "topic after $delayed/SECONDS/ is missing")
    number = int(seconds)
    if number < DELAY_MAX_S:
        return now_ms + number * 1000, real
    if abs(number - <object>(now_ms // 1000)) > DELAY_MAX_S:
        raise MqttError(
            TOPIC_NAME_INVALID, f"$delayed: delay must be less than {DELAY_MAX_S} seconds, got {number}")
    return max(number * 1000, <object>now_ms), real


cdef bytes id_of(Message message):
    return message.id_high.to_bytes(8, "big") + message.id_low.to_bytes(8, "big")


cdef class Delays(Timed):
    """The delayed messages of a worker. context: its clock, timers and counters; messages_due() is called when some are due."""

    def __init__(self, WorkerContext context not None, settings) -> None:
        self.context = context
        self.settings = settings
        self.waiting = {}
        self.orders = {}
        self.heap = []
        self.arrivals = []

    cdef int add(self, Deferred deferred) except -1:
        self.last += 1
        deferred.order = self.last
        self.waiting[deferred.order] = deferred
        self.orders[id_of(deferred.message)] = deferred.order
        self.arrivals.append(deferred.order)
        heappush(self.heap, (deferred.at_ms, deferred.order))
        self.context.gauge(DELAYED_COUNT, 1)
        self.context.timers.arm(self, self.heap[0][0])
        return 0

    cdef bint has(self, Deferred deferred) except -1:
        return self.waiting.get(deferred.order) is deferred

    cdef int remove(self, Deferred deferred) except -1:
        if self.waiting.pop(deferred.order, None) is not None:
            self.orders.pop(id_of(deferred.message), None)
            self.context.gauge(DELAYED_COUNT, -1)
            self.compact()
        return 0

    cdef int compact(self) except -1:
        """Rebuilds the lists once most of their entries are stale."""
        if len(self.arrivals) > 2 * len(self.waiting) + SLACK:
            self.arrivals = list(self.waiting)
        if len(self.heap) > 2 * len(self.waiting) + SLACK:
            self.heap = [entry for entry in self.heap if entry[1] in self.waiting]
            heapify(self.heap)
        return 0

    cdef int expire(self, uint64_t now_ms) except -1:
        return self.context.messages_due()

    cdef int take_due(self, list retry) except -1:
        while self.heap and len(retry) < BATCH:
            if self.heap[0][0] > self.context.now_ms:
                self.context.timers.arm(self, self.heap[0][0])
                break
            deferred = self.waiting.get(heappop(self.heap)[1])
            if deferred is not None:
                retry.append(deferred)
        return 0

    def find(self, bytes id not None) -> Deferred | None:
        """Returns the delayed message with this message id, or None."""
        return self.waiting.get(self.orders.get(id))

    def page(self, uint64_t after, int limit) -> list[Deferred]:
        """Returns delayed messages after this order of arrival, at most `limit`."""
        cdef list found = []
        for order in islice(self.arrivals, bisect_right(self.arrivals, after), None):
            deferred = self.waiting.get(order)
            if deferred is not None:
                found.append(deferred)
                if len(found) == limit:
                    break
        return found
