"""Counters and gauges of all processes in one segment; see counters.pxd.

    header page: magic, slots     then per slot:  | state, heartbeat (one line) | values | histograms |   padded to pages

A slot has one writer, its process. Readers add the slots up; they may see a count a moment old, never a torn one.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t
from libc.string cimport memset

from shm.atomic cimport sb_load, sb_store

from enum import IntEnum

from shm import segment

__all__ = ["GAUGES", "NAMES", "RETAINED", "CounterSlot", "Counters", "ProcessState"]

cdef enum:
    PAGE = 4096
    LINE = 64


class ProcessState(IntEnum):
    """What a process says of itself; the supervisor says DOWN for one that died."""

    DOWN = 0
    STARTING = 1
    READY = 2
    DRAINING = 3


NAMES = (
    "bytes.received", "bytes.sent", "packets.received", "packets.sent", "packets.connect.received", "packets.connack.sent",
    "packets.connack.error", "packets.publish.received", "packets.publish.sent", "packets.publish.error",
    "packets.puback.received", "packets.puback.sent", "packets.puback.missed", "packets.pubrec.received",
    "packets.pubrec.sent", "packets.pubrec.missed", "packets.pubrel.received", "packets.pubrel.sent",
    "packets.pubrel.missed", "packets.pubcomp.received", "packets.pubcomp.sent", "packets.pubcomp.missed",
    "packets.subscribe.received", "packets.subscribe.error", "packets.suback.sent", "packets.unsubscribe.received",
    "packets.unsuback.sent", "packets.pingreq.received", "packets.pingresp.sent", "packets.disconnect.received",
    "packets.disconnect.sent", "packets.auth.received", "messages.received", "messages.sent", "messages.qos0.received",
    "messages.qos1.received", "messages.qos2.received", "messages.qos0.sent", "messages.qos1.sent", "messages.qos2.sent",
    "messages.acked", "messages.forward", "messages.dropped", "messages.dropped.no_subscribers",
    "messages.dropped.await_pubrel_timeout", "messages.dropped.receive_maximum", "delivery.dropped",
    "delivery.dropped.no_local", "delivery.dropped.too_large", "delivery.dropped.qos0_msg", "delivery.dropped.queue_full",
    "delivery.dropped.expired", "client.connected", "client.disconnected", "client.closed.malformed",
    "client.closed.protocol_error", "client.closed.too_large", "client.closed.idle_timeout", "client.closed.keepalive",
    "client.closed.not_connect", "client.closed.refused", "client.closed.reset", "session.created", "session.resumed",
    "session.takenover", "session.discarded", "session.terminated", "events.dropped", "connections.count",
    "sessions.count", "subscriptions.count", "subscriptions.shared.count", "subscribers.count", "retained.count",
    "inflight.count", "mqueue.count",
)
"""Dotted names of the counters, in the order of the enum `Counter`."""

GAUGES = NAMES[CONNECTIONS_COUNT:]
"""The ones that go down as well: they start at 0 again with their process."""

cdef uint64_t SLOT_BYTES = (LINE + COUNTER_MAX * 8 + PAGE - 1) // PAGE * PAGE


cdef class CounterSlot:
    """The counters of one process, to be written by that process alone."""

    def add(self, int counter, int64_t change=1) -> None:
        """Slow path for Python processes."""
        self.values[counter] += <uint64_t>change


cdef class Counters:
    """All slots of a running broker."""

    cdef uint8_t* base
    cdef object mapping
    cdef readonly str name
    cdef readonly int slots

    @staticmethod
    def create(str name not None, int slots) -> Counters:
        """A new segment with `slots` zeroed slots."""
        cdef Counters counters = Counters.__new__(Counters)
        counters.map(name, segment.create(name, PAGE + slots * SLOT_BYTES))
        (<uint64_t*>counters.base)[0] = <uint64_t>slots
        counters.slots = slots
        return counters

    @staticmethod
    def attach(str name not None) -> Counters:
        """The segment that the supervisor created."""
        cdef Counters counters = Counters.__new__(Counters)
        counters.map(name, segment.attach(name))
        counters.slots = <int>(<uint64_t*>counters.base)[0]
        return counters

    cdef int map(self, str name, object mapping) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(mapping, &view, PyBUF_WRITABLE)
        self.base = <uint8_t*>view.buf
        PyBuffer_Release(&view)
        self.mapping = mapping
        self.name = name
        return 0

    cdef uint64_t* at(self, int slot) except NULL:
        if not 0 <= slot < self.slots:
            raise IndexError(f"counter slot {slot}, there are {self.slots}")
        return <uint64_t*>(self.base + PAGE + <uint64_t>slot * SLOT_BYTES)

    def slot(self, int number) -> CounterSlot:
        """The slot of process `number`."""
        cdef CounterSlot slot = CounterSlot.__new__(CounterSlot)
        slot.values = <uint64_t*>(<uint8_t*>self.at(number) + LINE)
        slot.owner = self.mapping
        return slot

    def reset_gauges(self, int number) -> None:
        """A process that starts again has no connections yet."""
        memset(<uint8_t*>self.at(number) + LINE + CONNECTIONS_COUNT * 8, 0, (COUNTER_MAX - CONNECTIONS_COUNT) * 8)

    def state(self, int number) -> int:
        """The ProcessState of a process."""
        return <int>sb_load(self.at(number))

    def set_state(self, int number, int state) -> None:
        sb_store(self.at(number), <uint64_t>state)

    def of(self, int number) -> dict:
        """Counters of one process by dotted name."""
        cdef uint64_t* values = <uint64_t*>(<uint8_t*>self.at(number) + LINE)
        return {name: <int64_t>values[i] for i, name in enumerate(NAMES)}

    def totals(self) -> dict:
        """Counters summed over all processes, by dotted name."""
        cdef list sums = [0] * <int>COUNTER_MAX
        cdef uint64_t* values
        cdef int number, i
        for number in range(self.slots):
            values = <uint64_t*>(<uint8_t*>self.at(number) + LINE)
            for i in range(COUNTER_MAX):
                sums[i] += <int64_t>values[i]
        return dict(zip(NAMES, sums, strict=True))

    def unlink(self) -> None:
        segment.unlink(self.name)


RETAINED = <int>RETAINED_COUNT
"""Number of the gauge `retained.count`, which the manager keeps."""
