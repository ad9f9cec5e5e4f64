"""The writer of one worker's journal: it puts records into blocks, writes blocks to the disk, and tracks how far they are safe.

    data                                                                        capacity
     |  start            whole     written               closed            end      |
     |    |<-- waits for  -->|<-- a block partly   -->|<-- blocks to  -->|<-- open -->|<-- free -->|
     |    |    the sync      |    written             |    be written    |   block    |

    records      durable <= written_end <= next_sequence

Invariants: start <= whole <= written <= closed <= end <= capacity. start, whole, closed: block boundaries. Bytes below `start`
are no longer needed; without syncing start == whole. The open block is empty (end == closed) or begins with room for its header.
A block leaves the buffer only when it is as safe as the level of durability requires, so that until then it can be written again.

A pointer from `room` stays valid until the next call on the writer. No call blocks but the write itself, and the opening of a
segment: a thread of its own does the syncing, without Python.

Errors of the disk are a state, never an exception: blocks wait in memory, each `flush` retries them from `retry_at_us` on, and
`full` makes the worker stop reading from publishers. Alternatively the worker drops the waiting blocks (`give_up`) and continues
without a journal: further records are dropped too, until the disk accepts a new segment.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.journal.buffer cimport RecordBuffer

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass

cdef enum WriterState:
    WRITING = 0
    DISK_FULL = 1                          # ENOSPC, EDQUOT, EFBIG
    READ_ONLY = 2                          # EROFS, EACCES, EPERM
    DISK_ERROR = 3                         # EIO and all others
    CLOSED = 4

# As in docs/journal-format.md; little-endian, as all supported machines.
cdef packed struct BlockHeaderC:
    uint8_t magic[4]
    uint32_t checksum, length, count
    uint64_t first_sequence, time_us, incarnation
    uint8_t codec, zero
    uint16_t zero_too
    uint32_t raw_length

# Shared by the loop and the syncing thread. The thread owns it while state is `REQUESTED`.
cdef struct SyncJob:
    sem_t wake
    uint64_t state                         # SyncState, atomic
    int fd, previous_fd, directory_fd      # -1: none
    int bell                               # eventfd that is written at the end of a sync, -1: none
    int error                              # errno, 0: all is on the disk
    bint stop


cdef class Writer(RecordBuffer):
    cdef size_t start, whole, written      # offsets, bytes
    cdef readonly size_t segment_bytes     # size at which a segment is followed by a new one
    cdef readonly size_t pending_max       # unsafe bytes at which `full` is set
    cdef readonly uint64_t written_end     # position up to which complete blocks were handed to the kernel
    cdef readonly uint64_t durable         # position up to which records are safe
    cdef readonly uint64_t incarnation
    cdef readonly uint32_t segment         # number of the segment of the open block: when it changes, sessions must be named again
    cdef readonly uint64_t now_us          # of the last seal
    cdef readonly WriterState state
    cdef readonly int error                # errno of the last failure; 0 while all is well
    cdef readonly uint64_t failed_since_us
    cdef readonly uint64_t failures        # number of failed calls since the start
    cdef readonly bint without             # nothing is written: records are dropped at the end of their pass
    cdef readonly uint64_t given_up        # number of records dropped since the start
    cdef readonly uint64_t bytes_written, blocks_written, syncs
    cdef uint64_t write_ms                 # time spent in writing since the last call of take_write_ms()
    cdef uint64_t retry_at_us
    cdef int fd                            # -1: the next flush opens a segment
    cdef int directory_fd
    cdef uint64_t offset                   # in the segment, of data[written]
    cdef uint64_t whole_offset             # in the segment, of data[whole]
    cdef object path                       # of the open segment
    cdef uint64_t first_sequence, previous_end
    cdef readonly object directory         # Path
    cdef uint16_t worker, workers, node_id
    cdef SyncJob* job                      # NULL: no syncing
    cdef unsigned long thread
    cdef int unsynced_fd                   # the segment before this one, to be synced and closed; -1: none
    cdef bint new_name                     # the directory must be synced too
    cdef size_t syncing_bytes                # bytes made safe by the sync under way: data[start : start + syncing_bytes]
    cdef uint64_t asked_end

    # Returns the bytes of all records added since the start, in the buffer or written.
    cdef inline uint64_t pending_bytes(self) noexcept:
        return self.bytes_written + (self.end - self.written)

    cdef inline bint is_full(self) noexcept:
        return self.end - self.start >= self.pending_max

    cdef inline uint64_t take_write_ms(self) noexcept:
        cdef uint64_t spent = self.write_ms
        self.write_ms = 0
        return spent

    cdef uint64_t seal_c(self, uint64_t now_us) except? 0xFFFFFFFFFFFFFFFF

    cdef int close_block(self) except -1
    cdef int flush_c(self) except -1
    cdef int write_out(self) except -1
    cdef void count_whole(self) noexcept
    cdef void drop_safe(self, size_t at) noexcept
    cdef bint open_segment(self) except -1
    cdef bint leave_segment(self) noexcept
    cdef int fail(self, int error) except -1
    cdef void well(self) noexcept
    cdef int start_over(self) except -1
    # Drops all records that are not safe. Returns False if the syncing thread still uses some of them: to be called again.
    cdef bint give_up(self) except -1
    cdef int throw_away(self) except -1
    cdef int take_sync(self) except -1
    cdef int request_sync(self) except -1
    cdef int start_thread(self, int bell) except -1
    cdef void stop_thread(self) noexcept
