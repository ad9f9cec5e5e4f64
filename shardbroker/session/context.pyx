"""What all sessions of a worker share; see context.pxd."""

from libc.stdlib cimport calloc, free

from shardbroker.hooks.masks cimport HOOK_DELIVERY_DROPPED
from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.session.place cimport TAKEN
from shm.counters cimport COUNTER_MAX, DELIVERY_DROPPED, MESSAGES_DROPPED, MESSAGES_DROPPED_FAILED, MESSAGES_DROPPED_UNROUTABLE, CounterSlot
from shm.posix cimport CLOCK_MONOTONIC, clock_gettime, timespec

from shardbroker.logs.phrases import log_line, shown

__all__ = ["WorkerContext"]

cdef enum:
    STEP_US = 1000                         # for one step of a pass, µs
    FAILURES_A_SECOND = 10                 # log lines about work that failed
    TOPIC_SHOWN = 200                      # most characters of a topic in such a line

UNBOUNDED = 1 << 62
"""Budget without a shell: a shell with many connections sets the budget before the turn of each."""


cdef class WorkerContext(MqttSettings):
    """Settings, clock, counters and timers that all sessions of a worker share.

    settings: the section `mqtt` of the configuration.
    slot: the worker's counter slot; None counts in private memory, as the simulator does.
    """

    def __init__(self, settings, uint64_t now_ms, CounterSlot slot=None):
        if slot is None:
            self.counters = self.own_counters = <uint64_t*>calloc(COUNTER_MAX, sizeof(uint64_t))
        else:
            self.counters = slot.values
            self.counters_owner = slot
        self.now_ms = now_ms
        self.timers = TimerWheel(now_ms)
        self.configure(settings)
        self.budget = UNBOUNDED

    def __dealloc__(self):
        free(self.own_counters)            # no Python object may be used here: the collector may have cleared it

    def log(self, str level, str text) -> None:
        """Writes a line into the log; has no effect without a shell."""

    cdef int drop_failed(self, str work, bytes topic, object error) except -1:
        self.count(MESSAGES_DROPPED)
        self.count(MESSAGES_DROPPED_FAILED)
        return self.log_failure(log_line("message dropped", work=work, topic=topic[:<int>TOPIC_SHOWN]), error)

    cdef void count_unroutable(self) noexcept:
        self.count(MESSAGES_DROPPED)
        self.count(MESSAGES_DROPPED_UNROUTABLE)

    cdef int log_failure(self, str what, object error) except -1:
        if self.now_ms // 1000 != self.failures_s:
            self.failures_s = self.now_ms // 1000
            self.failures_logged = 0
        self.failures_logged += 1
        if self.failures_logged <= <uint32_t>FAILURES_A_SECOND:
            self.log("error", f"{what} reason={shown(f'{type(error).__name__}: {error}')}")
        return 0

    cdef uint64_t read_clock(self) noexcept:
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        self.now_ms = <uint64_t>(now.tv_sec * 1000000000 + now.tv_nsec + self.clock_offset_ns) // 1000000
        return <uint64_t>(now.tv_sec * 1000000 + now.tv_nsec // 1000)

    cdef void begin_step(self) noexcept:
        self.step_end_us = self.read_clock() + STEP_US

    cdef bint step_is_over(self) noexcept:
        return self.step_end_us != 0 and self.read_clock() > self.step_end_us

    cdef int delivery_dropped(self, object whom, object what, int counter, str reason) except -1:
        self.count(DELIVERY_DROPPED)
        self.count(counter)
        if self.watch:
            if isinstance(what, Message):
                self.watcher.dropped(whom, (<Message>what).block, (<Message>what).topic_size, reason)
            else:
                self.watcher.dropped(whom, (<Publication>what).topic, (<Publication>what).topic_size, reason)
        if self.hooks & HOOK_DELIVERY_DROPPED:
            self.hooked.delivery_dropped(whom, what, reason)
        return 0

    cdef int delivered(self, object link, object publication, int qos, bint retain) except -1:
        self.hooked.delivered(link, publication, qos, retain)
        return 0

    cdef int acked(self, object session, object message) except -1:
        self.hooked.acked(session, message)
        return 0

    cdef int will_due(self, object session) except -1:
        raise NotImplementedError("WorkerContext.will_due")

    cdef int session_expired(self, object session) except -1:
        raise NotImplementedError("WorkerContext.session_expired")

    cdef int publish_event(self, int event, object subscriber, Publication publication) except -1:
        raise NotImplementedError("WorkerContext.publish_event")

    cdef int messages_due(self) except -1:
        raise NotImplementedError("WorkerContext.messages_due")

    cdef int takes(self, object session, Publication publication, int qos) except -1:
        return TAKEN

    cdef int delivers_live(self, object session, Publication publication) except -1:
        return 0

    cdef int ends_lookups(self, object session, bytes wire_filter) except -1:
        return 0

    cdef int queued_by(self, bytes client_id, uint64_t size) except -1:
        return 0
