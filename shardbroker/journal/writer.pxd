"""The writer of one worker's journal: records into a block, blocks to the disk, and how far they are safe.

    data                                                                        capacity
     |  start            whole     written               closed            end      |
     |    |<-- waits for  -->|<-- a block partly   -->|<-- blocks to  -->|<-- open -->|<-- free -->|
     |    |    the sync      |    written             |    be written    |   block    |

    records      durable <= written_end <= next_sequence

Invariants: start <= whole <= written <= closed <= end <= capacity. start, whole and closed are at block boundaries. Below `start`
nothing is needed any more; without syncing start == whole. The open block is empty (end == closed) or begins with room for its header.
A block leaves the buffer only when it is as safe as the level of durability asks, so that it can be written again elsewhere.

A pointer from `room` stays valid until the next call on the writer. Nothing here blocks but the write itself, and the opening of a
segment: syncing is done by a thread of its own, without Python.

Errors of the disk are a state, never an exception: blocks wait in memory, each `flush` tries again from `retry_at_us` on, and
`full` tells the worker to stop reading from publishers. Or it gives up what waits (`give_up`) and goes on without: then what is
appended is thrown away too, until the disk takes a new segment.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "<semaphore.h>" nogil:
    ctypedef struct sem_t:
        pass

cdef enum WriterState:
    WRITING = 0
    DISK_FULL = 1                          # ENOSPC, EDQUOT, EFBIG
    READ_ONLY = 2                          # EROFS, EACCES, EPERM
    DISK_ERROR = 3                         # EIO and everything else
    CLOSED = 4

# As in docs/journal-format.md; little-endian, as are all machines this runs on.
cdef packed struct BlockHeaderC:
    uint8_t magic[4]
    uint32_t checksum, length, count
    uint64_t first_sequence, time_us, incarnation
    uint8_t codec, zero
    uint16_t zero_too
    uint32_t raw_length

# What the loop and the syncing thread share. The thread owns it while state is ASKED.
cdef struct SyncJob:
    sem_t wake
    uint64_t state                         # SyncState, atomic
    int fd, previous_fd, directory_fd      # -1: none
    int bell                               # eventfd that is written when done, -1: none
    int error                              # errno, 0: all is on the disk
    bint stop


cdef class Writer:
    cdef uint8_t* data
    cdef size_t start, whole, written, closed, end, capacity        # bytes
    cdef uint32_t count                    # records in the open block
    cdef size_t block_bytes                # an open block this large is closed
    cdef readonly size_t segment_bytes     # a segment this large is followed by a new one
    cdef readonly size_t pending_max       # bytes not yet safe, from which on `full` is set
    cdef readonly uint64_t next_sequence   # of the next record
    cdef readonly uint64_t written_end     # position up to which complete blocks were handed to the kernel
    cdef readonly uint64_t durable         # position up to which records are safe
    cdef readonly uint64_t incarnation
    cdef readonly uint32_t segment         # number of the one that the open block goes to: when it has changed, sessions are named again
    cdef readonly uint64_t now_us          # of the last seal
    cdef readonly WriterState state
    cdef readonly int error                # errno of the last failure; 0 while all is well
    cdef readonly uint64_t failed_since_us
    cdef readonly uint64_t failures        # calls that failed, ever
    cdef readonly bint without             # nothing is written: records are thrown away at the end of their pass
    cdef readonly uint64_t given_up        # records that were thrown away, ever
    cdef readonly uint64_t bytes_written, blocks_written, syncs
    cdef uint64_t write_ms                 # spent in writing since take_write_ms() was called last
    cdef uint64_t retry_at_us
    cdef int fd                            # -1: the next flush opens a segment
    cdef int directory_fd
    cdef uint64_t offset                   # in the segment, where data[written] belongs
    cdef uint64_t whole_offset             # in the segment, where data[whole] belongs
    cdef object path                       # of the segment being written
    cdef uint64_t first_sequence, previous_end
    cdef readonly object directory         # Path
    cdef uint16_t worker, workers, node_id
    cdef SyncJob* job                      # NULL: no syncing
    cdef unsigned long thread
    cdef int unsynced_fd                   # segment before this one, to be synced and closed; -1: none
    cdef bint new_name                     # the directory is to be synced too
    cdef size_t asked_bytes                # what the sync under way makes safe: data[start : start + asked_bytes]
    cdef uint64_t asked_end

    # Room for a record of at most `size` bytes; `commit` with where it really ended. MemoryError is all that can be raised.
    cdef inline uint8_t* room(self, size_t size) except NULL:
        if self.count and self.end + size <= self.capacity and self.end - self.closed < self.block_bytes:
            return self.data + self.end
        return self.make_room(size)

    cdef inline void commit(self, uint8_t* end) noexcept:
        self.end = end - self.data
        self.count += 1
        self.next_sequence += 1

    # Bytes of records that were ever added, as far as they are in the buffer or written.
    cdef inline uint64_t pending_bytes(self) noexcept:
        return self.bytes_written + (self.end - self.written)

    cdef inline bint is_full(self) noexcept:
        return self.end - self.start >= self.pending_max

    cdef inline uint64_t take_write_ms(self) noexcept:
        cdef uint64_t spent = self.write_ms
        self.write_ms = 0
        return spent

    cdef int add(self, const void* record, size_t size) except -1
    cdef uint64_t seal_c(self, uint64_t now_us) except? 0xFFFFFFFFFFFFFFFF

    cdef uint8_t* make_room(self, size_t size) except NULL
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
    # Lets go of all that is not safe. False: the syncing thread still has some of it, so later.
    cdef bint give_up(self) except -1
    cdef int throw_away(self) except -1
    cdef int take_sync(self) except -1
    cdef int ask_sync(self) except -1
    cdef int start_thread(self, int bell) except -1
    cdef void stop_thread(self) noexcept
