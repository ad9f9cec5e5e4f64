"""New connections: a socket that an acceptor hands over becomes a Connection, and what was read of it is dealt with."""
from cython cimport final
from acceptor.handover cimport Handover
from shardbroker.worker.rates cimport Quotas
from shardbroker.worker.router cimport Router
from shardbroker.worker.turn cimport Turn


@final
cdef class Intake:
    cdef Router router
    cdef Turn turn
    cdef Quotas quotas
    # Descriptor of the worker's end of a channel -> True: from an acceptor; or a callable that reads it, see Worker.listen_for().
    cdef dict channels
    cdef public object mounted_connection  # makes the Connection of a client below a mount point, see mountpoint.pyx

    # As many as a step allows.
    cdef int accept_some(self, int channel) except -1
    cdef int take_over(self, Handover handover) except -1
