"""The load engine: every client of a load process in one thread on one epoll.

One pass: publish what the window, the acknowledgements and the rate allow -> Clients.turn_once.

    payload = | due time, ns (8) | MARK (4) | run (4) | publisher (4) | sequence number (4) | filling |     machine byte order

The due time is from CLOCK_MONOTONIC, but from CLOCK_REALTIME for `pub` and `sub`, which may run on two machines.

Clients 0..publishers-1 publish, followed by the subscribers, then the others. `ids` are their numbers in the whole plan, which
several processes may share. A publisher with more than OUT_MAX unsent bytes waits, so memory is bounded by the plan.
"""

import time
import zlib

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from perf.clients cimport CLOSED, READY, SUBSCRIBED, SUBSCRIBING, Client, Clients, monotonic_ns
from perf.histogram cimport Histogram
from perf.share cimport Share, Totals
from perf.timer cimport TFD_CLOEXEC, TFD_NONBLOCK, TFD_TIMER_ABSTIME, itimerspec, timerfd_create, timerfd_settime
from perf.tracker cimport Tracker, tracker_free, tracker_init, tracker_see
from shm.posix cimport CLOCK_MONOTONIC, EPOLL_CTL_ADD, EPOLLIN, close, epoll_ctl, epoll_event, read

from perf import wire
from perf.clients import LoadError
from perf.plan import HELD

__all__ = ["Engine", "LoadError"]

cdef enum:
    OUT_MAX = 262144                       # unsent bytes of a publisher, above which it waits
    BURST = 64                             # messages of one publisher in a row
    TIMER = -1                             # in place of a client's number
    MARK = 0x50425331                      # marks a stamped payload
    STAMP = 24                             # bytes at the head of a payload: plan.PAYLOAD_MIN
    SLEEP_MAX_MS = 100
    TICK_NS = 200000                       # above 5,000 messages a second, those of one tick are due together
    REPORT_NS = 200000000                    # interval between two progress reports of a run
    FOREIGN_WINDOW = 1024                  # sub: history for distinguishing late from duplicate, messages of one publisher
    FOREIGN_MAX = 1000000                  # sub: pairs of subscriber and publisher that are tracked

cdef enum Check:
    OWN = 0                                # a subscriber gets all messages of one publisher
    GROUP = 1                              # all subscribers together get each message once
    FOREIGN = 2                            # messages of any publisher

STALL_S = 3.0
"""Seconds without any message or acknowledgement after which all messages under way count as lost."""
STALLS_MAX = 3
"""Number of such stalls after which the run ends."""
SETTLE_S = 0.05
"""Seconds to wait for duplicates after every message has arrived."""
STORE_S = 30.0
"""Seconds that the broker may take to store the messages of `retained`."""
FLUSH_S = 5.0
"""Seconds that `pub` waits for acknowledgements after its last message."""


cdef struct Publisher:
    uint32_t seq                           # next sequence number = messages published
    uint32_t inflight                      # unacknowledged
    uint32_t inflight_max
    int64_t forgiven                       # deliveries no longer waited for
    uint16_t packet_id
    bint queued                            # is in the queue of publishers that may publish
    bint gone


cdef class Stream:
    """Messages that one subscriber of `sub` got from one publisher."""
    cdef Tracker tracker
    cdef uint32_t first                    # first sequence number seen

    def __dealloc__(self):
        tracker_free(&self.tracker)


cdef class Engine(Clients):
    """The clients of one plan, or of one process's share. Call connect(), prepare(), run() once, clear(), close()."""

    cdef int process, timer
    cdef int publishers, subscribers, others, qos, check
    cdef uint32_t quota, window, payload, receivers, run_number, source_count
    cdef bint stamped, crosses, publishing, interrupted
    cdef uint32_t* ids                     # by client: its number in the whole plan
    cdef Publisher* sources
    cdef Tracker* trackers                 # OWN: by subscriber. GROUP: by publisher of the plan
    cdef int tracker_count
    cdef uint32_t* orders                  # GROUP: subscriber after subscriber, by publisher: the next number expected
    cdef uint64_t group_disordered
    cdef dict streams                      # FOREIGN: (subscriber, run, publisher) -> Stream
    cdef uint64_t* last_keys               # FOREIGN: of each subscriber, the stream of the message before
    cdef void** last_streams
    cdef list heads                        # by publisher: PUBLISH up to the payload, one per topic
    cdef int32_t* queue                    # ring of publishers that may publish; each at most once
    cdef int queue_head, queue_size
    cdef list changers                     # churn: by other client: its SUBSCRIBE and its UNSUBSCRIBE
    cdef int32_t* idle                     # churn: clients that wait for their next change
    cdef int idle_count
    cdef bint changing
    cdef uint64_t changes, change_interval_ns
    cdef uint64_t slice_ns, slice_began_ns, slice_delivered, pauses_ns
    cdef bint pausing                      # churn: in this slice nothing changes
    cdef list slices                       # churn: (pausing, ns, deliveries) of each slice that is over
    cdef Share share
    cdef Totals* totals
    cdef uint64_t* delivered_of            # by publisher of the plan: first copies received in this process
    cdef object tick
    cdef uint64_t report_ns, wall_ns
    cdef uint64_t progress_ns, progress_sum, started_ns, last_ns, interval_ns, turn
    cdef uint64_t published, delivered, unique, bytes_in, misrouted, refused, acked
    cdef int stalls, served
    cdef readonly Histogram latency, changing_time

    def __cinit__(self):
        self.timer = -1

    def __init__(self, plan, str host, int port, Share share=None, int process=0, tick=None):
        """`tick`, if given, is called a few times a second."""
        cdef int i
        Clients.__init__(self, plan, host, port)
        self.share = share if share is not None else Share(1, plan.publishers)
        self.process = process
        self.totals = &self.share.totals[process]
        self.delivered_of = self.share.delivered + <size_t>process * <size_t>self.share.publishers
        self.tick = tick
        ids = [[n for n in range(count) if plan.owner_of(kind, n) == process]
               for kind, count in (("p", plan.publishers), ("s", plan.subscribers), ("o", plan.others))]
        self.publishers, self.subscribers, self.others = map(len, ids)
        self.allocate_clients(self.publishers + self.subscribers + self.others)
        self.qos = plan.qos
        self.quota = plan.quota
        self.window = plan.window
        self.payload = plan.payload if plan.message is None else 0
        self.receivers = plan.receivers
        self.stamped = plan.stamped
        self.crosses = plan.crosses
        self.run_number = zlib.crc32(plan.run.encode())
        self.source_count = plan.publishers
        self.check = FOREIGN if plan.scenario == "sub" else GROUP if plan.scenario == "fanin" else OWN
        if plan.scenario in ("pub", "sub"):
            self.wall_ns = time.time_ns() - time.monotonic_ns()
        if plan.rate and self.publishers:
            self.interval_ns = max(1, <uint64_t>(1e9 / plan.rate * plan.publishers / self.publishers))
        self.change_interval_ns = <uint64_t>(1e9 / plan.change_rate * plan.processes) if plan.change_rate else 0
        self.changing = plan.scenario == "churn"
        self.slice_ns = <uint64_t>plan.change_slice * 1000000
        self.slices = []
        self.latency = Histogram()
        self.changing_time = Histogram()
        self.streams = {}
        self.allocate()
        for i, number in enumerate(ids[0] + ids[1] + ids[2]):
            self.ids[i] = number
        for i in range(self.tracker_count):
            tracker_init(&self.trackers[i], plan.topics if plan.scenario == "retained" else self.window)
        for i in range(self.publishers):
            self.sources[i].inflight_max = plan.inflight
        self.heads = [self.heads_of(number) for number in ids[0]]
        self.changers = [self.changes_of(number) for number in ids[2] if self.changing]

    def heads_of(self, number) -> list:
        plan = self.plan
        if plan.message is None:
            return [wire.publish_head(topic, plan.qos, plan.payload, plan.version, plan.keeps) for topic in plan.topics_of(number)]
        message = plan.message_of(number)
        return [wire.publish_head(topic, plan.qos, len(message), plan.version, plan.keeps) + message
                for topic in plan.topics_of(number)]

    def changes_of(self, number) -> tuple:
        filters = self.plan.filters_of_other(number)
        return wire.subscribe(filters, self.qos, self.version), wire.unsubscribe(filters, self.version)

    cdef int allocate(self) except -1:
        self.tracker_count = 0 if self.check == FOREIGN else self.source_count if self.check == GROUP else self.subscribers
        # One more than needed, so that no allocation has size 0.
        self.ids = <uint32_t*>calloc(self.count + 1, sizeof(uint32_t))
        self.sources = <Publisher*>calloc(self.publishers + 1, sizeof(Publisher))
        self.trackers = <Tracker*>calloc(self.tracker_count + 1, sizeof(Tracker))
        self.queue = <int32_t*>calloc(self.publishers + 1, sizeof(int32_t))
        self.idle = <int32_t*>calloc(self.others + 1, sizeof(int32_t))
        self.last_keys = <uint64_t*>calloc(self.subscribers + 1, sizeof(uint64_t))
        self.last_streams = <void**>calloc(self.subscribers + 1, sizeof(void*))
        self.orders = <uint32_t*>calloc(<size_t>self.subscribers * self.source_count + 1 if self.check == GROUP else 1, sizeof(uint32_t))
        if not (self.ids and self.sources and self.trackers and self.queue and self.idle and self.last_keys
                and self.last_streams and self.orders):
            raise MemoryError
        return 0

    def __dealloc__(self):
        cdef int i
        if self.trackers != NULL:
            for i in range(self.tracker_count):
                tracker_free(&self.trackers[i])
        for pointer in (<size_t>self.ids, <size_t>self.sources, <size_t>self.trackers, <size_t>self.queue, <size_t>self.idle,
                        <size_t>self.last_keys, <size_t>self.last_streams, <size_t>self.orders):
            free(<void*><size_t>pointer)
        if self.timer >= 0:
            close(self.timer)

    # --- opening --------------------------------------------------------------------------------------------------------------

    cdef str kind_of(self, int number):
        return "p" if number < self.publishers else "s" if number < self.publishers + self.subscribers else "o"

    def greeting(self, int number) -> bytes:
        plan = self.plan
        kind, place = self.kind_of(number), self.ids[number]
        return wire.connect(plan.id_of(kind, place), plan.version, plan.clean, plan.keepalive, plan.user_of(kind, place),
                            plan.password, plan.session_expiry)

    cdef int accepted(self, int number, const uint8_t* body, size_t size) except -1:
        cdef Client* client = &self.clients[number]
        if number >= self.publishers:
            kind = self.kind_of(number)
            if kind == "s":
                filters = self.plan.filters_of(self.ids[number]) if self.plan.scenario != "retained" else ()
            else:
                filters = self.plan.filters_of_other(self.ids[number]) if not self.changing else ()
            if not filters:
                return self.ready(number)
            client.state = SUBSCRIBING
            return self.put_bytes(number, wire.subscribe(filters, self.qos, self.version))
        if self.version == 5:
            # [MQTT-3.3.4-7]. The length before the properties has one byte, two if they are long.
            properties = PyBytes_FromStringAndSize(<const char*>body, size)[4 if size > 2 and body[2] & 0x80 else 3:]
            self.sources[number].inflight_max = min(self.sources[number].inflight_max, <uint32_t>wire.receive_maximum(properties))
        return self.ready(number)

    cdef int has_gone(self, int number) except -1:
        if number < self.publishers:
            self.sources[number].gone = True
        return 0

    def prepare(self) -> None:
        """retained: publishes the retained messages. Raises LoadError, OSError."""
        if self.plan.scenario == "retained" and self.publishers:
            self.store(self.heads[0], True)

    def clear(self) -> None:
        """retained: removes the retained messages."""
        if self.plan.scenario == "retained" and self.publishers and not self.sources[0].gone:
            self.store([wire.publish_head(topic, 0, 0, self.version, True) for topic in self.plan.topics_of(0)], False)

    def store(self, list packets, bint stamped) -> None:
        """Publishes packets through the first client and waits until the broker has processed them all."""
        cdef uint64_t pongs = self.pongs + 1
        cdef uint64_t until = monotonic_ns() + <uint64_t>(STORE_S * 1e9)
        for head in packets:
            while stamped and not self.has_room(0):
                self.store_pass(until)
            self.publish(0, monotonic_ns()) if stamped else self.put_bytes(0, head)
        # The broker answers the PINGREQ after the packets before it.
        self.put_bytes(0, wire.PINGREQ)
        while self.pongs < pongs or (stamped and self.qos and self.acked < self.published):
            self.store_pass(until)

    cdef int store_pass(self, uint64_t until) except -1:
        self.turn_once(SLEEP_MAX_MS)
        if self.now_ns > until or self.sources[0].gone:
            raise LoadError("the broker did not take all messages that it is to retain")
        return 0

    # --- the run --------------------------------------------------------------------------------------------------------------

    def run(self) -> dict:
        """Publishes all messages, waits for all deliveries, and returns `results`. Raises OSError, LoadError."""
        cpu = time.process_time()
        self.started_ns = self.now_ns = self.progress_ns = self.last_ns = monotonic_ns()
        try:
            if self.plan.scenario == "retained":
                self.serve_retained()
            else:
                self.publish_all()
        except KeyboardInterrupt:
            self.interrupted = True
            self.now_ns = monotonic_ns()
        self.totals.finished = 1
        self.report_now()
        return self.results(time.process_time() - cpu)

    cdef int publish_all(self) except -1:
        cdef uint64_t until, settle = 0, flush_until = 0
        cdef int number
        cdef bint held = self.plan.scenario in HELD
        cdef bint is_pub = self.plan.scenario == "pub"
        if self.interval_ns:
            self.start_timer()
        until = self.started_ns + <uint64_t>(self.plan.seconds * 1e9) if self.plan.seconds else <uint64_t>-1
        self.publishing = self.publishers > 0
        self.totals.finished = not self.publishing
        for number in range(self.publishers):
            self.may_publish(number)
        if self.changing:
            for number in range(self.others):
                self.idle[number] = self.publishers + self.subscribers + number
            self.idle_count = self.others
        while True:
            if self.publishing:
                if self.crosses:
                    for number in range(self.publishers):
                        self.may_publish(number)
                self.publish_paced() if self.interval_ns else self.publish_ready()
                if self.now_ns >= until or self.published >= <uint64_t>self.quota * self.publishers or self.gone >= <uint64_t>self.count:
                    self.publishing = False
                    self.totals.finished = 1
            if self.changing:
                self.change_due()
            self.ping_due()
            self.turn_once(self.wait_ms(settle != 0, until))
            if held:
                if self.now_ns >= until or self.gone + self.failed >= <uint64_t>self.count:
                    return 0
            elif is_pub and not self.publishing:
                # `pub` counts no deliveries: it ends when all is sent and acknowledged.
                flush_until = flush_until or self.now_ns + <uint64_t>(FLUSH_S * 1e9)
                if self.now_ns >= flush_until or not self.unsent and not self.dirty_count and (self.qos == 0 or self.acked >= self.published):
                    return 0
            elif not is_pub and self.over(&settle):
                return 0

    cdef int wait_ms(self, bint settling, uint64_t until) noexcept:
        """Returns how long the next pass may wait, ms."""
        if self.publishing and self.queue_size and not self.interval_ns:
            return 0
        if self.crosses or self.idle_count or settling:
            return 1
        if until < self.now_ns + <uint64_t>SLEEP_MAX_MS * 1000000:
            return 1 + <int>((until - self.now_ns) // 1000000) if until > self.now_ns else 5
        return SLEEP_MAX_MS

    cdef bint over(self, uint64_t* settle) except -1:
        """Returns whether the run is over: all messages have arrived and the wait for duplicates is over, or it has stalled."""
        cdef bint complete = self.complete()
        if complete and not self.others_publish():
            settle[0] = settle[0] or self.now_ns + <uint64_t>(SETTLE_S * 1e9)
            return self.now_ns >= settle[0]
        if complete:
            self.progress_ns = self.now_ns   # nothing is under way, so silence is no stall
        elif self.now_ns - self.progress_ns > <uint64_t>(STALL_S * 1e9):
            return not self.give_up()
        return False

    cdef bint others_publish(self) noexcept:
        cdef int i
        for i in range(self.share.processes):
            if not self.share.totals[i].finished:
                return True
        return False

    cdef bint complete(self) noexcept:
        cdef uint64_t published = 0, unique = 0, acked = 0
        cdef int i
        self.totals.published, self.totals.unique, self.totals.acked = self.published, self.unique, self.acked
        for i in range(self.share.processes):
            published += self.share.totals[i].published
            unique += self.share.totals[i].unique
            acked += self.share.totals[i].acked
        if unique + acked != self.progress_sum:
            self.progress_sum = unique + acked
            self.progress_ns = self.now_ns
        return unique >= published * self.receivers and (self.qos == 0 or acked >= published)

    cdef bint give_up(self) except -1:
        """Handles a stall; False if the run is over."""
        cdef Publisher* source
        cdef int number
        self.stalls += 1
        if not self.others_publish() or self.stalls >= STALLS_MAX:
            return False
        for number in range(self.publishers):
            source = &self.sources[number]
            source.forgiven = <int64_t>source.seq * self.receivers - <int64_t>self.delivered_to(number)
            source.inflight = 0
            self.may_publish(number)
        self.progress_ns = self.now_ns
        return True

    cdef int report(self) except -1:
        if self.now_ns >= self.report_ns:
            self.report_ns = self.now_ns + REPORT_NS
            self.report_now()
        return 0

    cdef int report_now(self) except -1:
        cdef Totals* totals = self.totals
        totals.opened, totals.failed, totals.gone = self.opened, self.failed, self.gone
        totals.published, totals.acked = self.published, self.acked
        totals.delivered, totals.unique, totals.changes = self.delivered, self.unique, self.changes
        totals.p99_ns = self.latency.percentile(99)
        if self.tick is not None:
            self.tick()
        return 0

    def results(self, double own_cpu_s) -> dict:
        """Returns counts of messages, seconds from the first PUBLISH to the last delivery, latency; to be summed over processes."""
        cdef uint64_t duplicates = 0, disordered = 0, lost = 0
        cdef int number
        cdef Stream stream
        for number in range(self.tracker_count):
            duplicates += self.trackers[number].duplicates
            if self.check == OWN and self.plan.scenario != "retained":
                disordered += self.trackers[number].disordered
        for stream in self.streams.values():
            duplicates += stream.tracker.duplicates
            disordered += stream.tracker.disordered
            if stream.tracker.next - stream.first > stream.tracker.unique:
                lost += stream.tracker.next - stream.first - stream.tracker.unique
        last = self.now_ns if not self.receivers and self.plan.scenario != "retained" else self.last_ns
        return {
            "opened": self.opened,
            "failed": self.failed,
            "reason": self.reason,
            "published": self.published if self.plan.scenario != "retained" else 0,
            "acknowledged": self.acked,
            "delivered": self.delivered,
            "unique": self.unique,
            "gaps": lost,
            "expected": <uint64_t>self.served * self.plan.topics if self.plan.scenario == "retained" else None,
            "duplicates": duplicates,
            "disordered": disordered + self.group_disordered,
            "misrouted": self.misrouted,
            "refused": self.refused,
            "disconnected": self.gone,
            "stalls": self.stalls,
            "changes": self.changes,
            "slices": self.slices,
            "interrupted": self.interrupted,
            "bytes": self.bytes_in,
            "started_ns": self.started_ns,
            "last_ns": last,
            "latency": self.latency,
            "opening": self.opening,
            "changing": self.changing_time,
            "own_cpu_s": own_cpu_s,
            "own_connect_cpu_s": self.connect_cpu_s,
            "connect_s": self.connect_s,
        }

    cdef int start_timer(self) except -1:
        """Starts a timer that fires when a message is due."""
        cdef epoll_event event
        cdef itimerspec ticks
        cdef uint64_t interval = max(self.interval_ns, <uint64_t>TICK_NS)
        cdef uint64_t first = self.started_ns + interval
        ticks.it_interval.tv_sec = interval // 1000000000
        ticks.it_interval.tv_nsec = interval % 1000000000
        ticks.it_value.tv_sec = first // 1000000000
        ticks.it_value.tv_nsec = first % 1000000000
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        event.events = EPOLLIN
        event.data.u64 = <uint64_t>TIMER
        if self.timer < 0 or timerfd_settime(self.timer, TFD_TIMER_ABSTIME, &ticks, NULL) < 0 \
                or epoll_ctl(self.epoll, EPOLL_CTL_ADD, self.timer, &event) < 0:
            raise OSError(errno, "timerfd")
        return 0

    cdef int ticked(self) except -1:
        cdef uint64_t ticks
        read(self.timer, &ticks, sizeof(ticks))   # a timer that is not read does not fire again
        return 0

    # --- publishing -----------------------------------------------------------------------------------------------------------

    cdef uint64_t delivered_to(self, int number) noexcept:
        """Returns the number of first copies of this publisher's messages at all its subscribers."""
        cdef uint32_t place = self.ids[number]
        cdef uint64_t delivered = 0
        cdef int i
        if not self.crosses:
            return self.delivered_of[place]
        for i in range(self.share.processes):
            delivered += self.share.delivered[<size_t>i * self.source_count + place]
        return delivered

    cdef bint has_room(self, int number) noexcept:
        cdef Publisher* source = &self.sources[number]
        if (source.seq >= self.quota or source.gone or (self.qos and source.inflight >= source.inflight_max)
                or self.clients[number].size - self.clients[number].sent >= OUT_MAX or self.clients[number].state != READY):
            return False
        return not self.receivers or (<int64_t>source.seq * self.receivers - source.forgiven - <int64_t>self.delivered_to(number)
                                      < <int64_t>self.window * self.receivers)

    cdef void may_publish(self, int number) noexcept:
        """Queues a publisher that may be able to publish again."""
        cdef int tail
        if self.sources[number].queued or not self.has_room(number):
            return
        tail = self.queue_head + self.queue_size
        self.queue[tail if tail < self.publishers else tail - self.publishers] = number
        self.queue_size += 1
        self.sources[number].queued = True

    cdef int publish_ready(self) except -1:
        """Gives each publisher in the queue one turn."""
        cdef int turns = self.queue_size, number, _
        cdef uint64_t stamp = monotonic_ns()
        self.now_ns = stamp
        while turns:
            turns -= 1
            number = self.queue[self.queue_head]
            self.queue_head = self.queue_head + 1 if self.queue_head + 1 < self.publishers else 0
            self.queue_size -= 1
            self.sources[number].queued = False
            for _ in range(<int>BURST):
                if not self.has_room(number):
                    break
                self.publish(number, stamp)
            self.may_publish(number)
        return 0

    cdef int publish_paced(self) except -1:
        """Publishes all due messages, publishers in turn; one without room delays the others, which latency includes."""
        cdef uint64_t due
        cdef int number
        self.now_ns = monotonic_ns()
        while True:
            due = self.turn * self.interval_ns
            if self.interval_ns < TICK_NS:
                due = (due + TICK_NS - 1) // TICK_NS * TICK_NS
            due += self.started_ns
            number = <int>(self.turn % <uint64_t>self.publishers)
            if due > self.now_ns:
                return 0
            if not self.has_room(number):
                if not self.sources[number].gone and self.sources[number].seq < self.quota and self.clients[number].state != CLOSED:
                    return 0               # an acknowledgement or a delivery will wake the loop
            else:
                self.publish(number, due)
            self.turn += 1
            if self.published >= <uint64_t>self.quota * self.publishers:
                return 0

    cdef int publish(self, int number, uint64_t stamp) except -1:
        cdef Publisher* source = &self.sources[number]
        cdef list heads = <list>self.heads[number]
        cdef bytes head = <bytes>heads[source.seq % <uint32_t>len(heads)]
        cdef size_t head_size = PyBytes_GET_SIZE(head)
        cdef uint32_t words[4]
        cdef size_t id_at = 2
        cdef uint8_t* target = self.room(number, head_size + self.payload)
        memcpy(target, PyBytes_AS_STRING(head), head_size)
        if self.qos:
            source.packet_id = source.packet_id + 1 if source.packet_id < 65535 else 1
            while target[id_at - 1] & 0x80:
                id_at += 1
            id_at += 2 + ((<size_t>target[id_at] << 8) | target[id_at + 1])
            target[id_at] = source.packet_id >> 8
            target[id_at + 1] = source.packet_id & 0xFF
            source.inflight += 1
        target += head_size
        if self.stamped:
            stamp += self.wall_ns
            words[0] = MARK
            words[1] = self.run_number
            words[2] = self.ids[number]
            words[3] = source.seq
            memcpy(target, &stamp, 8)
            memcpy(target + 8, words, 16)
            memset(target + STAMP, 0x78, self.payload - STAMP)
        else:
            memset(target, 0x78, self.payload)
        source.seq += 1
        self.share.seqs[self.ids[number]] = source.seq
        self.published += 1
        return 0

    cdef int emptied(self, int number) except -1:
        if number < self.publishers and self.publishing:
            self.may_publish(number)
        return 0

    # --- changing subscriptions ---------------------------------------------------------------------------------------------------

    cdef int change_due(self) except -1:
        """Lets clients change as many subscriptions as are due."""
        cdef int number
        cdef uint64_t due = <uint64_t>-1
        if not self.publishing:
            return 0
        if self.slice_ns:
            self.end_slice()
            if self.pausing:
                return 0
        if self.change_interval_ns:
            due = (self.now_ns - self.started_ns - self.pauses_ns) // self.change_interval_ns + 1
        while self.idle_count and self.changes + (self.others - self.idle_count) < due:
            self.idle_count -= 1
            number = self.idle[self.idle_count]
            subscribe, unsubscribe = self.changers[number - self.publishers - self.subscribers]
            if self.clients[number].state == SUBSCRIBED:
                self.put_bytes(number, unsubscribe)
            elif self.clients[number].state == READY:
                self.put_bytes(number, subscribe)
            self.clients[number].since_ns = monotonic_ns()
        return 0

    cdef int end_slice(self) except -1:
        """Ends the slice if it is over, and begins one of the other kind."""
        cdef uint64_t took_ns
        if not self.slice_began_ns:
            self.slice_began_ns, self.slice_delivered = self.now_ns, self.unique
        took_ns = self.now_ns - self.slice_began_ns
        if took_ns < self.slice_ns:
            return 0
        self.slices.append((self.pausing, took_ns, self.unique - self.slice_delivered))
        if self.pausing:
            self.pauses_ns += took_ns
        self.pausing = not self.pausing
        self.slice_began_ns, self.slice_delivered = self.now_ns, self.unique
        return 0

    cdef int changed(self, int number) except -1:
        """Handles SUBACK or UNSUBACK of a client of churn."""
        cdef Client* client = &self.clients[number]
        self.changing_time.add(self.now_ns - client.since_ns)
        self.changes += 1
        client.state = READY if client.state == SUBSCRIBED else SUBSCRIBED
        self.idle[self.idle_count] = number
        self.idle_count += 1
        return 0

    # --- retained messages -----------------------------------------------------------------------------------------------------

    cdef int serve_retained(self) except -1:
        """Subscribes the clients, at most a window of them at a time, and waits for all retained messages of each."""
        cdef int upcoming = self.publishers, end = self.publishers + self.subscribers, first = self.publishers
        cdef uint64_t until = self.started_ns + <uint64_t>(self.plan.seconds * 1e9), settle = 0
        self.served = 0
        while True:
            while upcoming < end and upcoming - first - <int>self.completed() < <int>self.window and self.now_ns < until:
                self.clients[upcoming].since_ns = monotonic_ns()
                self.put_bytes(upcoming, wire.subscribe(self.plan.filters_of(self.ids[upcoming]), self.qos, self.version))
                upcoming += 1
                self.served += 1
            self.turn_once(5 if settle else SLEEP_MAX_MS)
            if <int>self.completed() >= self.served and (upcoming == end or self.now_ns >= until):
                settle = settle or self.now_ns + <uint64_t>(SETTLE_S * 1e9)
                if self.now_ns >= settle:
                    return 0
            elif self.now_ns - self.progress_ns > <uint64_t>(STALL_S * 1e9):
                self.stalls += 1
                return 0

    cdef uint64_t completed(self) noexcept:
        """Returns the number of subscribers that have all messages."""
        return self.latency.count

    # --- input --------------------------------------------------------------------------------------------------------------------

    cdef int take_message(self, int number, uint8_t first, const uint8_t* body, size_t size) except -1:
        cdef int subscriber = number - self.publishers
        cdef uint8_t qos = (first >> 1) & 3
        cdef size_t at = 2, properties = 0
        cdef int shift = 0
        cdef uint64_t stamp, now
        cdef uint32_t words[4]
        if size >= 2:
            at += (<size_t>body[0] << 8) | body[1]
        if qos and at + 2 <= size:
            self.put_ack(number, 0x40 if qos == 1 else 0x50, body + at)
            at += 2
        if self.version == 5:
            while at < size:
                properties |= <size_t>(body[at] & 0x7F) << shift
                shift += 7
                at += 1
                if not body[at - 1] & 0x80 or shift > 21:
                    break
            at += properties
        self.delivered += 1
        self.bytes_in += size
        self.last_ns = self.progress_ns = self.now_ns
        words[0] = 0
        if at + STAMP <= size:
            memcpy(&stamp, body + at, 8)
            memcpy(words, body + at + 8, 16)
        if self.check == FOREIGN:
            if words[0] == MARK:
                now = self.now_ns + self.wall_ns
                self.latency.add(now - stamp if now > stamp else 0)
                self.follow(subscriber, words[1], words[2], words[3])
            return 0
        if (words[0] != MARK or words[1] != self.run_number or words[2] >= self.source_count or subscriber < 0
                or subscriber >= self.subscribers or words[3] >= self.share.seqs[words[2]]):
            self.misrouted += 1
            return 0
        if self.check == GROUP:
            return self.take_shared(subscriber, words[2], words[3], stamp)
        if words[2] != self.ids[number] % self.source_count:
            self.misrouted += 1
            return 0
        if not self.receivers:
            return self.take_retained(number, words[3])
        self.latency.add(self.now_ns - stamp if self.now_ns > stamp else 0)
        if tracker_see(&self.trackers[subscriber], words[3]):
            self.first_copy(words[2])
        return 0

    cdef void first_copy(self, uint32_t place) noexcept:
        self.unique += 1
        self.delivered_of[place] += 1
        if self.publishing and not self.crosses:
            # The publisher belongs to this process: owner_of.
            self.may_publish(<int>(place // <uint32_t>self.share.processes))

    cdef int take_shared(self, int subscriber, uint32_t place, uint32_t seq, uint64_t stamp) except -1:
        """Checks a message of a shared group: each member's messages of a publisher are in order, and all members together get each
        once."""
        cdef uint32_t* order = &self.orders[<size_t>subscriber * self.source_count + place]
        self.latency.add(self.now_ns - stamp if self.now_ns > stamp else 0)
        if tracker_see(&self.trackers[place], seq):
            self.group_disordered += seq < order[0]
            self.first_copy(place)
        order[0] = max(order[0], seq + 1)
        return 0

    cdef int take_retained(self, int number, uint32_t seq) except -1:
        """Checks a retained message. Latency is from SUBSCRIBE to the last message. The broker may send topics in any order."""
        cdef Tracker* tracker = &self.trackers[number - self.publishers]
        if tracker_see(tracker, seq):
            self.unique += 1
            if tracker.unique == <uint64_t>self.plan.topics:
                self.latency.add(self.now_ns - self.clients[number].since_ns)
        return 0

    cdef int follow(self, int subscriber, uint32_t run, uint32_t place, uint32_t seq) except -1:
        """Checks a stamped message of some publisher: gaps in its numbers are losses, as far as this subscriber can know."""
        cdef uint64_t key = (<uint64_t>run << 32) | place
        cdef Stream stream
        if self.last_streams[subscriber] != NULL and self.last_keys[subscriber] == key:
            stream = <Stream>self.last_streams[subscriber]
        else:
            stream = self.streams.get((subscriber, key))
            if stream is None:
                if len(self.streams) >= FOREIGN_MAX:
                    return 0
                stream = self.streams[subscriber, key] = Stream()
                tracker_init(&stream.tracker, FOREIGN_WINDOW, FOREIGN_WINDOW)
                stream.tracker.low = seq - min(seq, <uint32_t>FOREIGN_WINDOW - 1)  # earlier messages may be missing or late
                stream.tracker.next = stream.first = seq
            self.last_keys[subscriber] = key
            self.last_streams[subscriber] = <void*>stream
        self.unique += tracker_see(&stream.tracker, seq)
        return 0

    cdef int take_answer(self, int number, uint8_t first, const uint8_t* body, size_t size) except -1:
        cdef uint8_t kind = first >> 4
        cdef bint failed = self.version == 5 and size >= 3 and body[2] >= 0x80
        if size < 2:
            return 0
        if kind == 4 or kind == 7 or kind == 5 and failed:
            self.acknowledged(number, failed)
        elif kind == 5:
            self.put_ack(number, 0x62, body)
        elif kind == 6:
            self.put_ack(number, 0x70, body)
        elif kind == 9 or kind == 11:
            self.subscribed(number, kind, body, size)
        return 0

    cdef int subscribed(self, int number, uint8_t kind, const uint8_t* body, size_t size) except -1:
        cdef int codes = len(self.plan.topic) if self.plan.topic else 1
        cdef size_t at
        if kind == 9:
            for at in range(size - codes if size > <size_t>codes + 1 else 2, size):
                if body[at] >= 0x80:
                    return self.lose(number, f"SUBACK with reason code {body[at]:#04x}")
        if self.changing and number >= self.publishers + self.subscribers:
            return self.changed(number)
        if self.clients[number].state == SUBSCRIBING:
            return self.ready(number)
        return 0

    cdef int acknowledged(self, int number, bint failed) except -1:
        cdef Publisher* source = &self.sources[number]
        if number >= self.publishers:
            return 0
        self.progress_ns = self.now_ns
        self.acked += 1
        self.refused += failed
        if source.inflight:
            source.inflight -= 1
        if self.publishing:
            self.may_publish(number)
        return 0
