"""One destination of messages, as the router and the sync gate see it: room_for, put, commit, secured.

    pass:   room_for -> put ... put -> (journal) -> commit                 the destination reads what was put
    later:  secured(end() of that pass)                                    the destination has it on its disk

Kinds of destinations are in shm/destinations.pxd, the outlets of a worker in outlets.pxd.
"""
from libc.stdint cimport int64_t, uint64_t

from shardbroker.pubsub.message cimport Publication
from shm.destinations cimport WORKER, kind_of, number_of
from shm.records cimport RecordHeader

cdef enum:
    NO_ROOM = -1                           # in place of a position
    LANE_BITS = 64                         # of a set of destinations: those that share a bit are waited for without need

cdef inline uint64_t lane_bit(long destination) noexcept:
    # Workers from the one end and nodes from the other, so that they share bits only where there are many of them.
    cdef int number = number_of(destination) % LANE_BITS
    return <uint64_t>1 << (number if kind_of(destination) == WORKER else LANE_BITS - 1 - number)


cdef class Outlet:
    cdef readonly long destination
    cdef uint64_t bit                      # lane_bit(destination)

    # Whether there is room for records of `size` bytes in all.
    cdef bint room_for(self, uint64_t size) except -1
    # Writes a record that is not visible yet. Returns the position under which the journal knows it, or NO_ROOM.
    cdef int64_t put(self, RecordHeader* header, Publication publication, bytes group, bytes filter) except -2
    # Makes visible what was put, unless the sync gate holds it back.
    cdef int commit(self) except -1
    # The same up to an earlier end().
    cdef int commit_to(self, uint64_t end) except -1
    # The end of what was put.
    cdef uint64_t end(self) except? 0
    # Whether everything up to an end() is on the disk of the destination. False: its doorbell rings once it is.
    cdef bint secured(self, uint64_t end) except -1
    # Positions count within this identity: a new ring or journal has another one.
    cdef uint64_t identity(self) noexcept
