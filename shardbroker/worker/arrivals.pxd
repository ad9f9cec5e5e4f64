"""How far this worker has dealt with the streams of messages from other nodes.

    Inlets.on_arrival() -> take()        a record is new, or was sent again and is dropped
    Durability.settle() -> write()       one block of the journal: what changed, and the deliveries that it covers
    a cycle, a start    -> write_all()   every position

A stream is the ring of one worker of another node to this node, known by the ring's identity. Its positions only grow.

Invariants: a position is in the journal not later than the effects of the records before it, and not without them; of a stream that
had nothing for this worker since the last block the journal may have an older one.
"""
from cython cimport final
from libc.stdint cimport uint64_t

from shardbroker.journal.recorder cimport JournalRecorder


@final
cdef class Stream:
    cdef uint64_t origin                   # node id
    cdef uint64_t identity                 # of the ring there
    cdef uint64_t position                 # behind the last record that was dealt with
    cdef bint changed                      # since the last block of the journal


@final
cdef class StreamPositions:
    cdef dict streams                      # (origin, identity) -> Stream
    cdef Stream last                       # the one that had the last record
    cdef list changed                      # Streams to be written, with those that are over
    cdef set over                          # Streams of them that are over

    cdef Stream stream_of(self, uint64_t origin, uint64_t identity)
    cdef int move(self, Stream stream, uint64_t position) except -1
    # Forgets the streams of a node that are over, which are all but these.
    cdef int keep(self, uint64_t origin, set identities) except -1
    cdef int write(self, JournalRecorder recorder) except -1
    cdef int write_all(self, JournalRecorder recorder) except -1
