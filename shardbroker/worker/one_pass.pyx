"""One pass of the event loop of a worker; see one_pass.pxd.

Everything is bounded per pass: bytes read from one socket, records taken from one ring, sockets accepted, retained messages
replayed. Nothing in here waits for another process: a publish that a full ring has no room for parks its connection, and the loop
goes on draining its own rings, so two workers with full rings cannot block each other.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint32_t

from shardbroker.worker.access_checks cimport AccessChecks
from shardbroker.worker.backpressure cimport Backpressure
from shardbroker.worker.channel cimport CLOSING
from shardbroker.worker.connection cimport Connection
from shardbroker.worker.durability cimport Durability
from shardbroker.worker.inlets cimport Inlets
from shardbroker.worker.intake cimport Intake
from shardbroker.worker.memory cimport MemoryWatch
from shardbroker.worker.outlets cimport RingOutlet, RingOutlets
from shardbroker.worker.rates cimport Quotas
from shardbroker.worker.reporter cimport EVENT_DELAY_MS, Reporter
from shardbroker.worker.turn cimport Turn
from shm.atomic cimport sb_load
from shm.counters cimport DELAYED_COUNT
from shm.epochs cimport WILDCARD_BUCKET, Epochs
from shm.posix cimport (
    CLOCK_MONOTONIC, CLOCK_REALTIME, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, clock_gettime, epoll_event, epoll_wait, read, timespec,
)
from shm.ring cimport Inbox

from shardbroker.worker.features.rewrite import AutoTopics, Rewriting
from shm.destinations import worker_destination

__all__ = ["Worker"]

cdef enum:
    KEPT_BYTES = 268435456                 # free memory at the end of the heap that a busy worker keeps, bytes
    MAPPED_BYTES = 16777216                # an allocation of this size is mapped on its own, bytes
    KEPT_SHARE = 8                         # of the memory limit, if that is less
    CACHE_SHARE = 16                       # of the memory limit, for each generation of the topic cache, if that is less
    FIRST_VISITS = 128                     # of the route table at once: 0.3 ms. Most topics need less than twenty
    TRIM_MS = 10000                        # least time between two times that free memory is given back
    EVENTS = 1024                          # epoll events a pass
    FLUSH_ROUNDS = 4                       # times all sockets are written to in a pass, while their sessions have more for them
    TIMER_FAILURES = 1000                  # after which timers that are left wait for the next pass
    TICK_MS = 64                           # longest wait while timers run: the grain of the wheel
    IDLE_MS = 1000                         # longest wait while nothing is due
    BEHIND_MS = 20                         # wait while the journal is behind: it tries again at once when a client writes, and else then
    RATE_MS = 10                           # between two looks at clients that have sent too much: the grain of their pauses
    RECOVERY_SYNC_S = 60                   # that the disk may take for what a recovery has written


cdef extern from "<malloc.h>" nogil:
    int mallopt(int parameter, int value)
    int malloc_trim(size_t keep)
    int M_TRIM_THRESHOLD, M_MMAP_THRESHOLD


cdef class Worker(Router):
    """topology: shm.topology.Topology; the rest are the shared parts, opened in this process. number: of this worker."""

    def __init__(self, topology, int number, counters, routes, retained, Epochs epochs, registry, Inbox inbox, MemoryWatch memory):
        cdef timespec steady, wall
        settings = topology.settings
        clock_gettime(CLOCK_MONOTONIC, &steady)
        clock_gettime(CLOCK_REALTIME, &wall)
        self.clock_offset_ms = (wall.tv_sec - steady.tv_sec) * 1000 + (wall.tv_nsec - steady.tv_nsec) // 1000000
        Router.__init__(self, settings, wall.tv_sec * 1000 + wall.tv_nsec // 1000000, counters.slot(number), routes, retained, epochs,
                       worker_destination(number), topology.node_id)
        self.topology = topology
        self.number = number
        self.counters_segment = counters
        self.settings_wanted = self.counters_segment.settings_word(number)
        self.capture = [filter.encode() for filter in settings.journal.capture]
        self.change_topics(settings)
        if memory.mark:
            self.cache.weight_limit = min(self.cache.weight_limit, memory.mark // (CACHE_SHARE * topology.workers))
        self.outlets = self.rings = RingOutlets(self, topology, number)
        self.reporter = Reporter(self, self.rings, counters, epochs, registry, self.sessions)
        self.durability = Durability(self, self.rings, inbox, counters, settings)
        self.turn = Turn(self, self.outlets, self.durability)
        self.backpressure = Backpressure(self, self.turn, self.rings, memory)
        self.inlets = Inlets(self, self.rings, self.durability, self.backpressure, inbox, counters.histogram(number, "ring.hop_us"))
        self.intake = Intake(self, self.turn, Quotas(counters, settings.mqtt.limiter))
        self.access_checks = AccessChecks(self, self.turn, counters)
        self.pass_times = counters.histogram(number, "pass_us")
        self.answers = []
        self.turn.listen_to(self.rings.doorbells[number], EPOLLIN)

    # --- the pass -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serves until `draining` is set."""
        cdef int timeout_ms
        # Output buffers come and go with every pass: a heap that shrinks in between spends a third of a fan-out on page faults.
        mallopt(M_TRIM_THRESHOLD, <int>min(<uint64_t>KEPT_BYTES, self.backpressure.memory.mark // (KEPT_SHARE * self.topology.workers) or <uint64_t>KEPT_BYTES))
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        while not self.draining:
            if not self.serving and self.counters_segment.serving:
                self.serve()
            timeout_ms = TICK_MS if self.timers.armed or self.reporter.changes else IDLE_MS
            if self.route_changes and self.routes_due_ms < self.now_ms + <uint64_t>timeout_ms:
                timeout_ms = <int>(self.routes_due_ms - self.now_ms) if self.routes_due_ms > self.now_ms else 0
            if self.reporter.events:
                timeout_ms = min(timeout_ms, <int>EVENT_DELAY_MS)
            if self.turn.limited:
                timeout_ms = min(timeout_ms, <int>RATE_MS)
            if self.turn.dirty or self.turn.busy or self.lookups or self.leaving or self.replays_moved or self.inlets.commands or (
                    self.turn.unread and not self.disk_full) or self.access_checks.late or (
                    self.telling and self.announcer.any_noted):
                timeout_ms = 0
            elif self.replaying or self.retry or self.turn.parked or self.durability.cycle_left or self.answers or not self.serving:
                timeout_ms = 1
            if self.durability.behind:
                timeout_ms = BEHIND_MS
            self.one_pass(timeout_ms)

    def serve(self) -> None:
        """Every worker knows its sessions again, so no message can miss one of them: clients may come."""
        self.serving = True
        self.first_visits = FIRST_VISITS
        for end in self.topology.receiving_ends("handover", self.number):
            self.intake.channels[end] = True
            self.turn.listen_to(end, EPOLLIN)
        self.read_clock()
        if self.started is not None:
            self.started()
            self.started = None

    cpdef int one_pass(self, int timeout_ms) except -1:
        cdef epoll_event events[EVENTS]
        cdef int count
        if timeout_ms and self.inlets.inbox is not None and not self.durability.behind:
            self.inlets.inbox.sleep()
            if self.inlets.lanes_waiting():
                timeout_ms = 0
        with nogil:
            count = epoll_wait(self.turn.epoll, events, EVENTS, timeout_ms)
        if self.inlets.inbox is not None:
            self.inlets.inbox.awake()
        if count < 0:
            if errno != EINTR:
                raise OSError(errno, "epoll_wait")
            count = 0
        if count:
            self.trim_due = True
        elif self.trim_due and timeout_ms >= TICK_MS and self.now_ms >= self.trim_at_ms:
            self.trim_due = False
            self.trim_at_ms = self.now_ms + TRIM_MS
            malloc_trim(0)                 # nothing to do: what a burst has left goes back
        PyErr_CheckSignals()
        self.turn.start_us = self.rings.pass_us = self.read_clock()
        self.turn.share_out(count)
        if sb_load(self.settings_wanted) > self.settings_seen:
            self.take_settings()
        if self.access_checks.is_due():
            self.access_checks.look()      # a ban holds for the next connection, after any time without one
        # What has waited longest comes first.
        if self.lookups:
            self.look_up_some()
        if self.turn.parked:
            self.backpressure.resume_parked()
        if self.turn.busy:
            self.backpressure.resume_busy()
        if self.turn.limited:
            self.backpressure.resume_limited()
        if self.turn.unread and not self.disk_full:
            self.backpressure.resume_unread()
        self.serve_events(events, count)
        self.inlets.drain_lanes()
        self.run_timers()
        if self.retry and self.serving:
            self.run_retries()
        if self.leaving:
            try:
                self.leave_some()
            except Exception as error:
                self.log_failure("subscription not removed", error)
        self.commit(False)
        self.replays_moved = False
        if self.replaying and (self.durability.gate is None or not self.durability.gate.is_retaining()):
            self.begin_step()
            self.replay_some()
        if self.durability.cycle_left is not None:
            self.durability.go_on_with_cycle()
        self.durability.settle()
        self.send_all()
        self.inlets.release_lanes()
        self.flush_sockets()
        if self.inlets.commands or self.answers:
            self.carry_out_commands()
        if self.route_changes or self.retained_changes or self.rings.touched:
            self.commit(False)             # what a lost connection left behind while flushing
            self.durability.settle()
            self.send_all()
        try:
            self.look_around()
        except Exception as error:
            self.log_failure("registry, memory or access not looked at", error)
        self.pass_times.record(self.read_clock() - self.turn.start_us)
        return 0

    cdef int send_all(self) except -1:
        """Other processes see what this pass has written for them."""
        self.rings.commit()
        return self.reporter.commit()

    cdef int serve_events(self, epoll_event* events, int count) except -1:
        """Deals with what epoll has reported, each by itself."""
        cdef int i = 0, fd
        cdef uint64_t rung
        cdef Connection connection = None
        while i < count:
            try:                           # around the loop: it costs nothing where all goes well
                while i < count:
                    fd = events[i].data.fd
                    i += 1
                    connection = <Connection>self.turn.by_fd[fd] if fd < len(self.turn.by_fd) else None
                    if connection is None:
                        if fd == self.rings.doorbells[self.number]:
                            read(fd, &rung, sizeof(rung))
                        elif fd == self.access_checks.fd:
                            self.access_checks.take_verdicts()
                        elif fd in self.intake.channels:
                            self.intake.accept_some(fd)
                        continue
                    if events[i - 1].events & <uint32_t>(EPOLLIN | EPOLLERR | EPOLLHUP):
                        if connection.stops:
                            if events[i - 1].events & <uint32_t>(EPOLLERR | EPOLLHUP):
                                connection.hang()
                        elif connection.interest & <uint32_t>EPOLLIN or events[i - 1].events & <uint32_t>(EPOLLERR | EPOLLHUP):
                            self.budget = self.turn.budget
                            connection.on_readable()
                    if events[i - 1].events & <uint32_t>EPOLLOUT:
                        connection.touch()
            except Exception as error:
                if connection is not None:
                    connection.broken(error)
                else:
                    self.log_failure("verdict or connection from an acceptor lost", error)
        return 0

    cdef int run_timers(self) except -1:
        cdef int failures
        for failures in range(TIMER_FAILURES):
            try:
                return self.timers.advance(self.now_ms)
            except Exception as error:
                if isinstance(self.timers.expiring, Connection):
                    (<Connection>self.timers.expiring).broken(error)
                else:
                    self.log_failure("timer failed", error)
        return 0

    cdef int look_around(self) except -1:
        """What is done now and then."""
        if self.now_ms >= self.reporter.registry_due_ms:
            self.reporter.flush_registry()
        if self.now_ms >= self.backpressure.look_at_ms:
            self.backpressure.look_at_memory()
            if self.access_checks.gate is not None:
                self.access_checks.look()
        return 0

    cdef int flush_sockets(self) except -1:
        cdef list dirty
        cdef int rounds
        for rounds in range(FLUSH_ROUNDS):
            if not self.turn.dirty:
                return 0
            if rounds:
                self.durability.settle()              # what was taken from queues since
            dirty = self.turn.dirty
            self.turn.dirty = []
            self.flush_all(dirty)
        return 0

    cdef int flush_all(self, list dirty) except -1:
        cdef Py_ssize_t i = 0
        cdef Connection connection = None
        while i < len(dirty):
            try:
                while i < len(dirty):
                    connection = <Connection>dirty[i]
                    i += 1
                    connection.dirty = False
                    connection.flush()
            except Exception as error:
                connection.broken(error)
        return 0

    # --- the end of a start --------------------------------------------------------------------------------------------------

    def recover_routes(self) -> None:
        """The routes to this worker become those of the sessions that it has again, without a moment in which one is missing."""
        wanted = [(True, filter, self.own_destination, group, member) for filter, group, member in self.route_changes]
        self.route_changes = {}
        self.routes_due_ms = 0
        self.routes.replace(self.own_destination, wanted)

    def settle_now(self) -> bool:
        """Whether what was recovered stands in the journal. False: the disk refuses."""
        self.read_clock()
        self.durability.settle()
        return not self.durability.behind and (self.durability.gate is None or self.durability.recorder.writer.wait_durable(RECOVERY_SYNC_S))

    # --- commands of the manager ---------------------------------------------------------------------------------------------

    cdef int carry_out_commands(self) except -1:
        """As many as STEP_US allows; those left have their turn in the next pass. An answer leaves once the journal knows of it."""
        cdef bint any = bool(self.inlets.commands)
        self.begin_step()
        while self.inlets.commands:
            try:
                self.answers.append(self.on_command(self.inlets.commands.pop(0)))
            except Exception as error:     # its sender waits until its time is up
                self.log_failure("command not answered", error)
            if self.step_is_over():
                break
        if any:
            self.commit(False)
            self.durability.settle()
            self.send_all()
        return 0 if self.durability.behind else self.send_answers()

    cdef int send_answers(self) except -1:
        cdef RingOutlet outlet = self.reporter.outlet()
        while self.answers:
            if not outlet.lane.put(self.answers[0]):
                return 0
            self.answers.pop(0)
        return outlet.wake()

    cdef int take_settings(self) except -1:
        """Applies the settings in force. After a failure, which is logged, the manager reports this worker as behind."""
        self.settings_seen = sb_load(self.settings_wanted)
        if self.in_force is None or not self.in_force.is_due:
            return 0                       # loaded at the start
        try:
            self.reconfigure(self.in_force.load())
            self.in_force.applied()
        except Exception as error:
            self.log_failure("settings not applied", error)
        return 0

    def reconfigure(self, settings) -> None:
        """Applies all keys that reach workers (config/live.py)."""
        self.configure(settings.mqtt)
        self.retainer = settings.retainer
        self.retained.max_messages = settings.retainer.max_messages
        self.retained.max_bytes = settings.retainer.max_total_bytes
        self.durability.retention = settings.journal.retention
        capture = [filter.encode() for filter in settings.journal.capture]
        if capture != self.capture:
            self.capture = capture
            self.local_epochs[WILDCARD_BUCKET] += 1        # whether a topic is captured stands in its cache entry
        self.change_topics(settings)
        self.delays.settings = settings.delayed
        self.announce_events(settings)
        if self.watcher is not None:
            self.watcher.configure(settings)
        self.access_checks.reconfigure(settings)

    cdef int change_topics(self, settings) except -1:
        """rewrite.rules and auto_subscribe.topics hold from now on; subscriptions that are there stay as they are."""
        rules, topics = settings.rewrite.rules, settings.auto_subscribe.topics
        if rules or self.rewriting is not None:
            self.rewriting = Rewriting(rules) if rules else None
            self.local_epochs[WILDCARD_BUCKET] += 1        # the rule of a topic stands in its cache entry
        self.auto_topics = AutoTopics(topics) if topics else None
        return 0

    # --- what the router asks of the shell -----------------------------------------------------------------------------------

    cdef int connection_failed(self, object channel, object error) except -1:
        return (<Connection>channel).broken(error)

    cdef int queued_by(self, bytes client_id, uint64_t size) except -1:
        return self.backpressure.memory.note(client_id, size) if client_id else 0

    cdef object absent_channel(self):
        cdef Connection connection = Connection.__new__(Connection)
        connection.context = self
        connection.router = self
        connection.turn = self.turn
        connection.state = CLOSING
        connection.closed = True
        connection.listener = ""
        return connection

    cdef int64_t delayed_count(self) except? -1:
        return self.counters_segment.total_of(DELAYED_COUNT)

    def log(self, str level, str text) -> None:
        self.reporter.log(level, text)

    cdef bint hold_retained(self, bint refused, int error) except -1:
        return self.durability.retained_refused(refused, error)
