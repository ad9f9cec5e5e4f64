"""Commands of the manager; see command_queue.pxd."""

from cython cimport final

from shardbroker.worker.outlets cimport RingOutlet

from shardbroker.logs.phrases import log_line

__all__ = ["CommandQueue"]


@final
cdef class CommandQueue:
    def __init__(self, Router router not None, Durability durability not None, Inlets inlets not None):
        self.router = router
        self.durability = durability
        self.inlets = inlets
        self.answers = []

    cdef int run(self) except -1:
        self.router.begin_step()
        while self.inlets.commands:
            try:
                self.answers.append(self.execute(self.inlets.commands.pop(0)))
            except Exception as error:     # the manager waits for this answer until its time limit
                self.router.log_failure(log_line("command not answered"), error)
            if self.router.step_is_over():
                break
        return 0

    cdef int send_answers(self) except -1:
        cdef RingOutlet outlet
        if self.durability.behind:
            return 0                       # the journal does not have their effects yet
        outlet = self.router.reporter.outlet()
        while self.answers:
            if not outlet.lane.put(self.answers[0]):
                return 0
            self.answers.pop(0)
        return outlet.wake()
