"""The recorders: one writes records of sessions into any buffer, and the one of a worker writes into the worker's journal.

So that old segments can go, the state of every session is written again from time to time, some sessions a pass: a cycle.

    | ... | session A | B's changes | session B | A's changes | session C | CHECKPOINT | ...
          ^ keep_from: once the cycle is through, nothing before it is needed

A message is written once per cycle, before the first record that refers to it. The records: docs/journal-format.md.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from shardbroker.journal.buffer cimport RecordBuffer
from shardbroker.journal.writer cimport Writer
from shardbroker.pubsub.message cimport Message, Publication
from shardbroker.pubsub.subscriptions cimport Subscriber
from shardbroker.session.journaling cimport Recorder


cdef class BufferRecorder(Recorder):
    cdef RecordBuffer buffer

    # Writes a message before the first record that refers to it; here before each.
    cdef int message(self, Message message) except -1
    # Before each record of a session: names it where the buffer has no name of it yet.
    cdef int name(self, Subscriber session) except -1
    cdef int open(self, int kind, Subscriber session, int version, uint64_t expiry_ms, dict details) except -1
    cdef int add(self, kind, dict fields) except -1


cdef class JournalRecorder(BufferRecorder):
    cdef readonly Writer writer            # `buffer`, by its own type
    cdef readonly uint32_t cycle           # from 1 on
    cdef uint64_t division                 # number of the division of sessions (shm/partitions.py) of which the worker is one; 0: unknown
    # Captured messages that may not be safe yet: those below the mark, and those behind it. Once what is below it is safe, the
    # others take their place.
    cdef uint64_t captured_mark, captured_below, captured_behind
    cdef uint8_t fed                       # CAPTURED, FED: such messages or events were written since settle() has rung for the last one

    # The whole state of a session that the journal knows: what was written of it before is not needed any more.
    cdef int snapshot(self, Subscriber session) except -1
    # Records of a ring up to this position were dealt with.
    cdef int consumed(self, uint64_t rings, uint64_t producer, uint64_t position, bytes weights) except -1
    # Records of a stream of another node up to this position were dealt with; `over`: the stream has ended.
    cdef int arrived_from(self, uint64_t origin, uint64_t stream, uint64_t position, bint over) except -1
    # What block this ends was written when everything below `durable` was on the disk.
    cdef int synced(self) except -1
    # So many messages were to be captured, and are in no block that was written or will be; the count begins again.
    cdef uint64_t take_captured(self) noexcept
    cdef int not_captured(self, uint64_t count, uint64_t from_us, int error) except -1
