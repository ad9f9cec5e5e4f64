"""A disk that does not take the journal; see disk.pxd."""

from shardbroker.journal.writer cimport Writer
from shm.counters cimport (
    JOURNAL_ERRNO_COUNT, JOURNAL_GIVEN_UP, JOURNAL_NOT_CAPTURED, JOURNAL_PENDING_COUNT, JOURNAL_REFUSED, JOURNAL_STAGE_COUNT,
    CounterSlot,
)

__all__ = ["DiskWatch"]


cdef class DiskWatch:
    """durability: section of the settings. slot: the worker's counters."""

    def __init__(self, durability, CounterSlot slot not None):
        self.goes_on = durability.on_disk_error == "continue"
        self.limit = durability.max_pending_bytes
        self.counters = slot.values

    cdef int look(self, JournalRecorder recorder) except -1:
        cdef Writer writer = recorder.writer
        if writer.error and not self.refused:
            self.counters[<int>JOURNAL_REFUSED] += 1
            if self.stage == DISK_WELL:
                self.since_us = writer.now_us
        self.refused = writer.error != 0
        if writer.error:
            self.error = writer.error
        self.stage = self.next_stage(recorder)
        if self.stage == DISK_WITHOUT:
            self.miss(recorder.take_captured())
        self.counters[<int>JOURNAL_GIVEN_UP] += writer.given_up - self.given_up
        self.given_up = writer.given_up
        self.counters[<int>JOURNAL_PENDING_COUNT] = writer.end - writer.start
        self.counters[<int>JOURNAL_ERRNO_COUNT] = <uint64_t>writer.error
        self.counters[<int>JOURNAL_STAGE_COUNT] = <uint64_t>self.stage
        return self.stage

    cdef int next_stage(self, JournalRecorder recorder) except -1:
        cdef Writer writer = recorder.writer
        if writer.without:
            return DISK_WITHOUT
        if self.stage == DISK_WITHOUT:
            # The pass in which the disk took a segment was thrown away as well.
            self.miss(recorder.take_captured())
            return DISK_AGAIN
        if self.goes_on and writer.error and writer.is_full() and writer.give_up():
            self.written_anew = False
            self.miss(recorder.take_captured())
            return DISK_WITHOUT if writer.without else DISK_AGAIN
        if self.stage == DISK_AGAIN:
            if not self.written_anew or writer.durable < writer.next_sequence:
                return DISK_AGAIN
            self.missed = 0
            self.written_anew = False
        if writer.is_full():
            return DISK_LIMIT
        return DISK_WAITS if writer.error else DISK_WELL

    cdef int miss(self, uint64_t count) except -1:
        self.missed += count
        self.counters[<int>JOURNAL_NOT_CAPTURED] += count
        return 0

    cdef int through(self, JournalRecorder recorder) except -1:
        if self.missed:
            recorder.not_captured(self.missed, self.since_us, self.error)
        self.written_anew = True
        return 0
