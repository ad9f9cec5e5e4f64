"""What a worker does about a disk that does not take its journal: durability.on_disk_error, durability.max_pending_bytes.

    hold:       WELL -> WAITS -----------------> LIMIT --------> WELL           all is written as soon as the disk takes it
    continue:   WELL -> WAITS -> (WELL) -> WITHOUT -> AGAIN ---> WELL           waiting records are given up; sessions are rewritten
                        ^ refused          ^ max_pending_bytes wait

LIMIT is also reached by a disk that is too slow for its syncs. The manager derives the alarm from the counters.
"""
from libc.stdint cimport uint64_t

from shardbroker.journal.recorder cimport JournalRecorder

cdef enum DiskStage:
    DISK_WELL = 0
    DISK_WAITS = 1                         # what is to be written waits in memory
    DISK_LIMIT = 2                         # as much as may: who adds to it is not read
    DISK_WITHOUT = 3                       # nothing is written
    DISK_AGAIN = 4                         # it takes writes: every session is being rewritten


cdef class DiskWatch:
    cdef readonly bint goes_on             # durability.on_disk_error = continue
    cdef readonly size_t limit             # bytes
    cdef readonly int stage
    cdef uint64_t* counters
    cdef uint64_t since_us                 # when it began to refuse, Unix µs
    cdef int error                         # errno of the last refusal
    cdef bint refused                      # in the pass before
    cdef uint64_t missed                   # messages that were to be captured and were given up
    cdef uint64_t given_up                 # of Writer.given_up: already counted
    cdef bint written_anew                 # all sessions are in the journal, if that is safe

    # After each pass while anything is wrong; the stage.
    cdef int look(self, JournalRecorder recorder) except -1
    # Every session has been rewritten.
    cdef int through(self, JournalRecorder recorder) except -1
    cdef int next_stage(self, JournalRecorder recorder) except -1
    cdef int miss(self, uint64_t count) except -1
