"""The reading end of rings to a peer: records as slices of ring memory, which become frames without a copy.

    records in a slice:   u32 size | u32 reserved | payload, padded to 8 bytes          as in the ring (shm/ring.pxd)
                          u32 FILLER | u32 0 | u64 bytes                                a gap: positions advance by `bytes`

A slice ends where its ring wraps around, so it is one piece of memory. A gap takes the place of records that were dropped.
A spilled record (shm/records.pxd) is the only one of its slice; its contents are in a file.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shm.ring cimport FILLER, RECORD_HEADER, Inbox, Ring, padded

cdef enum:
    GAP_BYTES = 16

cdef packed struct RecordPrefix:
    uint32_t size
    uint32_t reserved

cdef packed struct Gap:
    uint32_t size                          # FILLER
    uint32_t zero
    uint64_t bytes

cdef struct Walk:
    const uint8_t* at
    const uint8_t* stop
    uint64_t position                      # behind the record that step() has returned

# Returns the next record and its size; NULL at the end. Only for memory that is trusted or was checked.
cdef inline const uint8_t* step(Walk* walk, uint32_t* size) noexcept:
    cdef const uint8_t* record
    cdef uint32_t found
    while walk.at < walk.stop:
        found = (<const RecordPrefix*>walk.at).size
        if found == <uint32_t>FILLER:
            walk.position += (<const Gap*>walk.at).bytes
            walk.at += <int>GAP_BYTES
            continue
        record = walk.at + <int>RECORD_HEADER
        walk.at += padded(found)
        walk.position += padded(found)
        size[0] = found
        return record
    return NULL


cdef class Slice:
    cdef object owner                      # keeps the memory alive
    cdef const uint8_t* data
    cdef readonly uint64_t size            # bytes
    cdef readonly uint64_t first           # position at which it begins
    cdef readonly uint64_t end             # position behind the last record
    cdef readonly object file              # Path of the contents of its only record, if that is spilled; else None

    cdef Walk walk(self) noexcept

cdef Slice new_slice(object owner, const uint8_t* data, uint64_t size, uint64_t first, uint64_t end, object file)


cdef class PeerRing:
    cdef readonly int lane
    cdef readonly uint64_t identity
    cdef readonly uint64_t capacity
    cdef Ring ring
    cdef int doorbell                      # of the worker; -1: a ring without a producer
    cdef object spill_dir
    cdef object files                      # deque of (position, Path): spilled records between released and walked
    cdef uint64_t walked
    cdef uint64_t seen                     # head when fresh() was called last

    cdef int note_files(self, uint64_t position) except -1
    cdef int wake(self) except -1


cdef class PeerInbox:
    cdef readonly list rings               # PeerRing per worker
    cdef Inbox inbox

    cdef bint fresh_c(self) noexcept
