"""A reader that follows one worker's journal while it is written, and continues at a place that it has returned before.

    segment A                        segment B
    | block | block | block |        | block | block | block | ...
                    ^ place: segment, offset, position

The position decides, and counts in records (docs/journal-format.md); segment and offset only save a search. A consumer stores the
place behind what it has dealt with. Whatever happens to the journal meanwhile, no record is returned twice, and each record that
is missing is in a Damage:

- The end of the newest segment looks torn while its worker writes, and after a kill until a worker starts again: it is no damage
  before a later segment exists.
- A segment that retention has removed is lost from the position on. One that is open is still read to its end.
- A segment that was repaired meanwhile is searched for the position, as offsets in it have changed.
- A new incarnation has higher positions than any that a power cut took back, even if they were followed before.
- A journal that was set aside because there are fewer workers precedes that of a later worker of the same number.
"""
from libc.stdint cimport uint8_t, uint64_t

from shardbroker.journal.decode cimport Wanted
from shardbroker.journal.writer cimport BlockHeaderC


cdef class Batch:
    """The wanted records of one block."""
    cdef readonly uint64_t segment, end    # the segment, and the offset behind the block
    cdef readonly uint64_t end_sequence    # one past the last record of the block, wanted or not
    cdef readonly uint64_t time_us         # of all records of the block
    cdef readonly list records             # (sequence, kind, field, ...) each


cdef class Follower:
    cdef readonly object directory
    cdef readonly bint at_end              # the last read() returned everything that there was
    cdef Wanted wanted
    cdef size_t read_bytes                 # of one read()
    cdef object path                       # of the open segment
    cdef object file                       # the same, open; None: none is
    cdef int fd
    cdef uint64_t segment, offset, position
    cdef uint64_t incarnation              # of the open segment
    cdef bint started                      # `position` counts: records missing before the next segment are lost
    cdef bint seeking                      # a damage before `position` was dealt with before
    cdef object unreadable                 # Damage: no block of the open segment can be found; else None
    cdef uint64_t searched                 # size of the segment when no valid block followed `offset`
    cdef dict listed                       # first sequence -> path of the segments, when the directories had these times of change
    cdef tuple listed_ns                   # of the journal and of its parent; None: to be listed again
    cdef uint8_t* data
    cdef size_t capacity, size             # bytes; data[:size] are those from `offset` on

    cdef bint advance(self, list found) except -1
    cdef int fill(self, size_t least) except -1
    cdef size_t next_bytes(self) noexcept
    cdef int take_blocks(self, list found) except -1
    cdef bint is_whole(self, const BlockHeaderC* header, size_t left) except -1
    cdef int take(self, const BlockHeaderC* header, uint64_t end, list found) except -1
    cdef list decoded(self, const BlockHeaderC* header)
