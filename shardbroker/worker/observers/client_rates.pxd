"""Client rates: messages and bytes of each client, counted in windows while a command asks for them."""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.pubsub.message cimport Publication
from shardbroker.worker.observers.observer cimport Observer


@final
cdef class ClientCount:
    """Counts of one client in one window."""
    cdef uint64_t messages_in, bytes_in, messages_out, bytes_out


@final
cdef class ClientRates(Observer):
    cdef dict window                       # client id -> ClientCount
    cdef dict previous                     # the window before it, which is complete; None: no window is complete yet
    cdef uint64_t began_ms, lasted_ms      # begin of the window; duration of the previous one
    cdef uint64_t asked_ms                 # time of the last command
    cdef uint64_t left_out                 # clients beyond CLIENTS_MAX

    cdef void sent(self, bytes client_id, Publication publication) noexcept
    cdef void routed(self, Publication publication) noexcept
    cdef void tick(self) noexcept
    # None: the window has no room for a further client.
    cdef ClientCount count_of(self, bytes client_id)
    cdef int rotate(self) except -1
