"""Commands of the manager, carried out between two passes for at most STEP_US, and their answers."""
from cython cimport final

from shardbroker.worker.durability cimport Durability
from shardbroker.worker.inlets cimport Inlets
from shardbroker.worker.router cimport Router


@final
cdef class CommandQueue:
    cdef Router router
    cdef Durability durability
    cdef Inlets inlets                     # its `commands` are those that have arrived
    cdef public object execute             # commands.Commands: callable(record) -> answer; Python, as its handlers are
    cdef list answers                      # records that the manager's ring had no room for yet

    # Carries out as many as one step allows; the rest follows in the next pass.
    cdef int run(self) except -1
    # Called once the effects of the pass are committed; the answers wait while the journal does not have them.
    cdef int send_answers(self) except -1
