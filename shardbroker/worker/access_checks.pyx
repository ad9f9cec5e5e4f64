"""Answers of the access gate; see access_checks.pxd."""

from cython cimport final
from libc.stdint cimport uint32_t

from shardbroker.worker.channel cimport CONNECTED
from shardbroker.worker.connection cimport Connection
from shm.posix cimport EPOLLIN

from shardbroker.logs.phrases import log_line
from shardbroker.worker.authorization import Authorization
from shardbroker.worker.login import Login

__all__ = ["AccessChecks"]


cdef tuple checked_by(settings):
    return settings.auth, settings.acl, settings.auto_subscribe, settings.flapping_detect, settings.exhook


@final
cdef class AccessChecks:
    def __init__(self, Router router not None, Turn turn not None, Counters counters not None):
        self.router = router
        self.turn = turn
        self.counters = counters
        self.fd = -1
        self.rechecking = []

    def begin(self, gate, settings) -> None:
        """Starts to check clients and their actions. gate: shardbroker.access.auth_client.AuthClient with these settings."""
        self.settings = checked_by(settings)
        self.gate = self.router.access_gate = gate
        self.router.auth, self.router.acl = gate.auth, gate.acl
        self.router.login_type, self.router.access_type = Login, Authorization
        self.fd = gate.fileno()
        self.seen = self.counters.access_generation_c()
        self.router.access_generation = self.rules_generation()
        self.turn.make_place(self.fd)
        self.turn.listen_to(self.fd, EPOLLIN)

    cdef uint32_t rules_generation(self) noexcept:
        return <uint32_t>(self.seen >> 32) + self.changes

    def reconfigure(self, settings) -> None:
        """Applies the settings of access control. If they differ, all connections are checked again."""
        sections = checked_by(settings)
        if self.gate is None or sections == self.settings:
            return
        self.settings = sections
        self.changes += 1
        self.look()

    cdef int take_results(self) except -1:
        """Delivers results for at most STEP_US: the end of a login costs as much as hundreds of messages."""
        self.router.begin_step()
        for waiter, result in self.gate.take_results():
            self.deliver_result(waiter, result)
            if self.router.step_is_over():
                break
        return 0

    cdef int deliver_result(self, waiter, result) except -1:
        self.router.budget = self.turn.budget
        try:
            waiter.on_result(result)
        except Exception as error:
            self.router.log_failure(log_line("authorization result lost"), error)
        return 0

    cdef int look(self) except -1:
        """Handles timeouts, and checks connections again after a change of rules or bans."""
        cdef Connection connection
        self.late = False
        self.router.begin_step()
        for waiter, result in self.gate.overdue():
            self.deliver_result(waiter, result)
            if self.router.step_is_over():
                self.late = True           # a dead back end makes many late at once
                break
        if self.counters.access_generation_c() != self.seen or self.router.access_generation != self.rules_generation():
            self.seen = self.counters.access_generation_c()
            self.rules_moved = self.router.access_generation != self.rules_generation() or (self.rechecking and self.rules_moved)
            self.router.access_generation = self.rules_generation()
            self.gate.reload(self.rules_moved)
            self.router.auth, self.router.acl = self.gate.auth, self.gate.acl
            self.rechecking = [connection for connection in self.turn.by_fd if connection is not None]
        if self.rechecking:
            self.router.begin_step()
            while self.rechecking and not self.router.step_is_over():
                connection = <Connection>self.rechecking.pop()
                if connection.fd >= 0 and connection.state == CONNECTED:
                    try:
                        connection.recheck(self.rules_moved)
                    except Exception as error:     # it must not continue with rights it may have lost
                        connection.broken(error)
        return 0

    cdef bint is_due(self) noexcept:
        return self.fd >= 0 and (self.late or self.counters.access_generation_c() != self.seen)
