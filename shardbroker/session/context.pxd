"""What all sessions of a worker share: counters, clock, timers, and by inheritance the settings `mqtt.*` (mqtt_settings.pxd)."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.session.journaling cimport Recorder
from shardbroker.session.mqtt_settings cimport MqttSettings
from shardbroker.session.overflow cimport QueueOverflow
from shardbroker.session.timers cimport TimerWheel
from shardbroker.session.watcher cimport Watcher


cdef enum EventFlag:                       # worker.event_messages.EVENTS, in this order
    NOTIFY_CONNECTED = 1
    NOTIFY_DISCONNECTED = 2
    NOTIFY_SUBSCRIBED = 4
    NOTIFY_UNSUBSCRIBED = 8
    NOTIFY_DELIVERED = 16
    NOTIFY_ACKED = 32
    NOTIFY_DROPPED = 64


cdef class WorkerContext(MqttSettings):
    cdef uint64_t* counters                # by shm Counter; the worker's slot, or memory of our own
    cdef uint64_t* own_counters            # NULL: they are in a slot
    cdef object counters_owner
    cdef uint32_t hooks                    # points that have callbacks, see hooks/masks.pxd; `hooked` calls them
    cdef object hooked                     # shardbroker.worker.hook_dispatch.HookDispatcher; None: no callbacks
    cdef uint64_t now_ms                   # Unix ms on a steady clock: set once per pass by the shell
    cdef TimerWheel timers
    cdef Recorder recorder                 # None: sessions end with this process
    cdef int memory_level                  # see worker/memory.pxd; 0: enough memory
    cdef uint8_t notifications                   # EventFlags of events that are published as messages; 0: none
    cdef QueueOverflow overflow            # None: full queues drop their oldest message
    cdef bint disk_full                    # max_pending_bytes wait for a disk that refuses: nothing that adds to them is accepted
    cdef uint32_t watch                    # bits of session/watcher.pxd; 0: single messages are not observed
    cdef readonly Watcher watcher          # the observers of these
    cdef int64_t budget                    # units of work left in this turn: a packet or a delivery is one
    cdef int64_t clock_offset_ns           # Unix ns - CLOCK_MONOTONIC ns at the start
    cdef uint64_t step_end_us              # see begin_step(); 0: a step has no time limit, as in the simulator
    cdef readonly bint serving             # all workers are ready: clients are accepted
    cdef uint64_t failures_s               # second of the newest log line about a failure, and how many there were in it
    cdef uint32_t failures_logged

    # Sets now_ms; returns CLOCK_MONOTONIC in µs.
    cdef uint64_t read_clock(self) noexcept
    # A step of a pass, such as accepting connections, ends after STEP_US; the rest of its work waits for the next pass.
    cdef void begin_step(self) noexcept
    cdef bint step_is_over(self) noexcept
    cdef inline void count(self, int counter) noexcept:
        self.counters[counter] += 1
    cdef inline void gauge(self, int counter, int64_t change) noexcept:
        self.counters[counter] += <uint64_t>change

    # Outside of protocol.feed(), an exception in the work for a single message, session or connection must not end the worker: it is
    # reported here, and the rest of the work continues. A message that is lost with it is counted.
    cdef int drop_failed(self, str work, bytes topic, object error) except -1
    # Likewise, and no message is lost; `what` is a list of key=value.
    cdef int log_failure(self, str what, object error) except -1

    # A message is refused, or lost: a destination of its topic has no outlet (worker/outlets.pxd).
    cdef void count_unroutable(self) noexcept

    # One subscriber, a Session or its ClientOutput, does not get a message, a Publication or a Message; counted under `counter`, too.
    cdef int delivery_dropped(self, object whom, object what, int counter, str reason) except -1
    # Called only if the hook has callbacks.
    cdef int delivered(self, object link, object publication, int qos, bint retain) except -1
    cdef int acked(self, object session, object message) except -1

    # Effects of a session's deadlines; the router, which owns the sessions, implements them.
    cdef int will_due(self, object session) except -1
    cdef int session_expired(self, object session) except -1
    # Publishes one of NOTIFY_DELIVERED, NOTIFY_ACKED (`subscriber`: a session), NOTIFY_DROPPED (its publisher, or None) about this message. The
    # caller has checked `notifications`.
    cdef int publish_event(self, int event, object subscriber, Publication publication) except -1
    # Delayed messages have waited long enough.
    cdef int messages_due(self) except -1
    # What becomes of a message for a Session with Place.watched: a Taking of session/place.pxd.
    cdef int takes(self, object session, Publication publication, int qos) except -1
    # A message is delivered to a session with look-ups in databases.
    cdef int delivers_live(self, object session, Publication publication) except -1
    # A session with look-ups in databases has no subscription to this filter any more; None: it has ended.
    cdef int ends_lookups(self, object session, bytes wire_filter) except -1
    # A client has added so many bytes to a queue while memory is short.
    cdef int queued_by(self, bytes client_id, uint64_t size) except -1
