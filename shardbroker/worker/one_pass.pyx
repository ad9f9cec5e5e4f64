"""One pass of the event loop of a worker; see one_pass.pxd.

Everything is bounded per pass: bytes read from one socket, records taken from one ring, sockets accepted, retained messages
replayed. Nothing in here waits for another process: a publish that a full ring has no room for parks its connection, and the loop
continues to drain its own rings, so two workers with full rings cannot block each other.
"""

from cython cimport final
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t, uint64_t

from shardbroker.worker.connection cimport Connection
from shardbroker.worker.reporter cimport EVENT_DELAY_MS
from shm.atomic cimport sb_load
from shm.posix cimport EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLOUT, epoll_event, epoll_wait, read

import time

from shardbroker.logs.phrases import log_line

__all__ = ["Worker"]

HOLD_S = 0.001
"""Between two looks whether all workers are ready, with clients that wait for that."""

cdef enum:
    FIRST_VISITS = 128                     # of the route table at once: 0.3 ms. Most topics need less than twenty
    EVENTS = 1024                          # epoll events a pass
    FLUSH_ROUNDS = 4                       # times all sockets are written to in a pass, while their sessions have more for them
    TIMER_FAILURES = 1000                  # after which timers that are left wait for the next pass
    TICK_MS = 64                           # longest wait while timers run: the grain of the wheel
    IDLE_MS = 1000                         # longest wait while nothing is due
    BEHIND_MS = 20                         # wait while the journal is behind: it tries again at once when a client writes, and else then
    STUCK_MS = 20                          # between two tries to send to a process flows that does not read
    RATE_MS = 10                           # between two looks at clients that have sent too much: the grain of their pauses


@final
cdef class Worker:
    """worker.assembly.assemble() creates one."""

    # --- the pass -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serves until `draining` is set."""
        self.memory.keep_heap()
        self.reporter.outlet()             # opened now: a log line must not need a descriptor, of which none may be left
        while not self.draining:
            if self.holds_clients and not self.router.serving and not self.router.counters_segment.serving:
                time.sleep(HOLD_S)         # a message of a client would miss the sessions of workers that are not ready yet
                continue
            self.one_pass(self.next_wait_ms())

    def join_sessions(self, cluster) -> None:
        """Takes messages about sessions from now on. cluster: shardbroker.worker.cluster_sessions.ClusterSessions."""
        self.cluster = cluster
        self.turn.make_place(cluster.fileno())
        self.turn.listen_to(cluster.fileno(), EPOLLIN)

    cdef int next_wait_ms(self) except -1:
        """Returns how long the next pass may wait for something to do."""
        cdef Router router = self.router
        cdef int wait_ms = router.due_in_ms(TICK_MS if router.timers.armed or self.reporter.changes else IDLE_MS)
        if self.reporter.events:
            wait_ms = min(wait_ms, <int>EVENT_DELAY_MS)
        if self.turn.limited:
            wait_ms = min(wait_ms, <int>RATE_MS)
        if self.cluster is not None and router.serving:
            wait_ms = min(wait_ms, <int>self.cluster.wait_ms)
        if router.journal_replays.stuck:
            wait_ms = min(wait_ms, <int>STUCK_MS)
        if self.turn.dirty or self.turn.busy or router.resolver.waiting or router.subscriptions.leaving or router.replays.moved or router.journal_replays.moved or router.lookups.moved or (
                self.inlets.commands) or (self.turn.unread and not router.disk_full) or self.access_checks.late or (
                router.notifications and router.announcer.any_noted):
            wait_ms = 0
        elif router.replays.sessions or router.retries.waiting or router.retries.unresolved_count or self.turn.parked or self.durability.cycle_left or self.command_queue.answers or (
                not router.serving):
            wait_ms = 1
        return BEHIND_MS if self.durability.behind else wait_ms

    def hold_subacks(self, int link) -> None:
        """Holds SUBACKs until other nodes have their routes. link: the end of the channel to link-0."""
        self.router.subacks.wait_for_peers(link)
        self.turn.make_place(link)
        self.turn.listen_to(link, EPOLLIN)

    def listen_for(self, int fd, react) -> None:
        """Calls `react(fd)` when the descriptor is readable."""
        self.turn.make_place(fd)
        self.intake.channels[fd] = react
        self.turn.listen_to(fd, EPOLLIN)

    def serve(self) -> None:
        """Opens the worker to clients. All workers have recovered their sessions, so no message can miss one of them."""
        self.router.serving = True
        self.router.resolver.first_visits = FIRST_VISITS
        for end in self.topology.receiving_ends("handover", self.number):
            self.intake.channels[end] = True
            self.turn.listen_to(end, EPOLLIN)
        self.router.read_clock()
        if self.started is not None:
            self.started()
            self.started = None

    cpdef int one_pass(self, int timeout_ms) except -1:
        cdef epoll_event events[EVENTS]
        cdef int count
        cdef bint ran
        cdef Router router = self.router
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
        self.memory.trim_when_idle(count > 0, timeout_ms >= TICK_MS, router.now_ms)
        PyErr_CheckSignals()
        if not router.serving and router.counters_segment.serving:
            self.serve()                   # behind the sleep: commands put since it began must not be dropped
        self.turn.start_us = self.rings.pass_us = router.read_clock()
        self.turn.share_out(count)
        if sb_load(self.settings_wanted) > self.settings_seen:
            self.take_settings()
        if self.access_checks.is_due():
            self.access_checks.look()      # a ban holds for the next connection, after any time without one
        # What has waited longest comes first.
        if router.resolver.waiting:
            router.resolver.go_on()
        if self.turn.parked:
            self.backpressure.resume_parked()
        if self.turn.busy:
            self.backpressure.resume_busy()
        if self.turn.limited:
            self.backpressure.resume_limited()
        if self.turn.unread and not router.disk_full:
            self.backpressure.resume_unread()
        self.serve_events(events, count)
        self.inlets.drain_lanes()
        self.run_timers()
        if router.retries.waiting and router.serving:
            router.run_retries()
        if router.subscriptions.leaving:
            router.subscriptions.go_on()
        if self.cluster is not None and router.serving:
            self.cluster.due()
        router.commit(False)
        router.replays.moved = False
        if router.replays.sessions and (self.durability.gate is None or not self.durability.gate.is_retaining()):
            router.begin_step()
            router.replays.go_on()
        if router.journal_replays.active and router.serving and not self.durability.behind and (
                self.durability.gate is None or not self.durability.gate.is_retaining()):
            router.begin_step()
            router.journal_replays.go_on()
        if router.lookups.active and router.serving and not self.durability.behind and (
                self.durability.gate is None or not self.durability.gate.is_retaining()):
            router.begin_step()
            router.lookups.go_on()
        if self.durability.cycle_left is not None:
            self.durability.go_on_with_cycle()
        self.settle_and_send()
        self.inlets.release_lanes()
        self.flush_sockets()
        ran = bool(self.inlets.commands)
        if ran:
            self.command_queue.run()
        if ran or router.route_changes.changes or router.retaining.changes or self.rings.touched:
            router.commit(False)           # effects of commands, and what a lost connection left behind while flushing
            self.settle_and_send()
        if self.command_queue.answers:
            self.command_queue.send_answers()
        try:
            self.look_around()
        except Exception as error:
            router.log_failure(log_line("periodic work failed"), error)
        self.pass_times.record(router.read_clock() - self.turn.start_us)
        return 0

    cdef int settle_and_send(self) except -1:
        """The journal gets the effects of this pass; then other processes see what it has written for them."""
        self.durability.settle()
        self.rings.commit()
        if self.cluster is not None:
            self.cluster.flush()
        return self.reporter.commit()

    cdef int serve_events(self, epoll_event* events, int count) except -1:
        """Deals with what epoll has reported, each by itself."""
        cdef int i = 0, fd
        cdef uint64_t rung
        cdef Connection connection = None
        while i < count:
            try:                           # around the loop: no cost without an exception
                while i < count:
                    fd = events[i].data.fd
                    i += 1
                    connection = <Connection>self.turn.by_fd[fd] if fd < len(self.turn.by_fd) else None
                    if connection is None:
                        if fd == self.rings.doorbells[self.number]:
                            read(fd, &rung, sizeof(rung))
                        elif fd == self.access_checks.fd:
                            self.access_checks.take_results()
                        elif fd == self.router.subacks.link:
                            self.router.subacks.take_answers()
                        elif self.cluster is not None and fd == self.cluster.fileno():
                            self.cluster.receive()
                        elif self.router.journal_replays.fileno_of(fd):
                            self.router.journal_replays.receive(fd)
                        elif fd in self.intake.channels:
                            self.intake.accept_some(fd)
                        continue
                    if events[i - 1].events & <uint32_t>(EPOLLIN | EPOLLERR | EPOLLHUP):
                        if connection.stops:
                            if events[i - 1].events & <uint32_t>(EPOLLERR | EPOLLHUP):
                                connection.hang()
                        elif connection.interest & <uint32_t>EPOLLIN or events[i - 1].events & <uint32_t>(EPOLLERR | EPOLLHUP):
                            self.router.budget = self.turn.budget
                            connection.on_readable()
                    if events[i - 1].events & <uint32_t>EPOLLOUT:
                        connection.touch()
            except Exception as error:
                if connection is not None:
                    connection.broken(error)
                else:
                    self.router.log_failure(log_line("authorization result or connection lost"), error)
        return 0

    cdef int run_timers(self) except -1:
        cdef int _
        for _ in range(TIMER_FAILURES):
            try:
                return self.router.timers.advance(self.router.now_ms)
            except Exception as error:
                if isinstance(self.router.timers.expiring, Connection):
                    (<Connection>self.router.timers.expiring).broken(error)
                else:
                    self.router.log_failure(log_line("timer failed"), error)
        return 0

    cdef int look_around(self) except -1:
        """What is done now and then."""
        if self.router.now_ms >= self.reporter.registry_due_ms:
            self.reporter.flush_registry()
        if self.router.now_ms >= self.backpressure.look_at_ms:
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

    # --- settings -------------------------------------------------------------------------------------------------------------

    cdef int take_settings(self) except -1:
        """Applies the settings in force. After a failure, which is logged, the manager reports this worker as behind."""
        self.settings_seen = sb_load(self.settings_wanted)
        if self.in_force is None or not self.in_force.is_due:
            return 0                       # loaded at the start
        try:
            self.reconfigure(self.in_force.load())
            self.in_force.applied()
        except Exception as error:
            self.router.log_failure(log_line("settings not applied"), error)
        return 0

    def reconfigure(self, settings) -> None:
        """Applies all keys that reach workers (config/live.py)."""
        self.router.apply_settings(settings)
        self.push_back.configure(settings)
        self.durability.retention = settings.journal.retention
        self.access_checks.reconfigure(settings)
