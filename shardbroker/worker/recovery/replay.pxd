"""Journals of workers -> sessions of this worker, and what the journals know of rings and of messages under way.

Invariant: each session of `by_key` is in the tables of the worker. Everything is kept until `clear`.
"""
from libc.stdint cimport uint64_t

from shardbroker.session.image cimport SessionReader
from shardbroker.session.session cimport Session
from shardbroker.worker.one_pass cimport Worker
from shardbroker.worker.router cimport Router

# Marks in the producer of a CONSUMED record: a worker has taken its part of a ring that all workers take.
cdef enum:
    TAKER_SHIFT = 16                       # of the worker's number plus one
    TAKERS_SHIFT = 32                      # of the number of workers, beside it
    ONE_MESSAGE = 0xFFFF                   # in place of a producer: not a ring was taken, but the deferred message with the id position | rings


cdef class Replay(SessionReader):
    cdef Worker worker
    cdef Router router                     # of the worker
    cdef readonly object owns              # client id -> whether it is this worker's
    cdef dict by_key                       # session number in the journal -> Session
    cdef set with_connection               # Sessions without an end of their last connection
    cdef uint64_t newest_key               # session number: the greatest that this worker has given, as far as journals have it
    # Several journals, after the number of workers changed.
    cdef int source                        # worker whose journal is being read
    cdef dict homes                        # session key -> worker whose journal knows it best; None: there is one journal only
    cdef set in_memory                     # Sessions that end with their connection: they came from a process, not from a journal
    cdef dict last_seen                    # session key -> µs of its last record in that journal
    cdef dict origins                      # session key -> worker whose journal it is from
    cdef readonly dict places              # session key -> Place: of sessions of a cluster
    cdef set elsewhere                     # keys of sessions that another worker has
    cdef list foreign                      # session numbers and client ids of this journal that belong to other workers now
    # Rings, and messages under way.
    cdef readonly dict consumed            # (rings, producer) -> position
    cdef dict notes                        # the same with takers' marks -> (position, weights): as the journal has it
    cdef dict takers                       # rings, or (high, low) of a message -> (worker, Division) that took it at a start that was killed
    cdef dict streams                      # source -> (origin, identity) -> position: messages of other nodes, see worker/arrivals.pxd
    cdef dict forwarded                    # worker -> (rings, destination) -> block, records of messages for it that may never have left
    cdef dict deferred                     # (worker, number) -> record of a message that waits for room in a ring or for its time
    cdef readonly uint64_t division        # number of the division whose deferred messages count; 0: all do
    cdef set stale                         # numbers of this journal's deferred messages that do not count
    # The reading itself.
    cdef readonly list damage              # journal.Damage found on the way
    cdef readonly uint64_t records, bytes
    cdef uint64_t block                    # first sequence of the block being read

    cdef int take_items(self, object block, dict handlers) except -1
    cdef int beat(self) except -1          # the supervisor sees that there is progress
    cdef Session open(self, list item, bint new)
    cdef int forget(self, Session session) except -1      # the session has ended, and nothing of it is left
    # Enters a session under its client id, or takes it out: one that is not owned leaves the client id to another session.
    cdef int enter(self, Session session) except -1
    cdef int leave(self, Session session) except -1


# Whether a deferred message is for the subscribers of one worker, which may be with several workers now.
cdef bint is_for_members(list item)
# Whether a forwarded message is kept on record until the journal of its destination has it.
cdef bint until_arrived(list item)
