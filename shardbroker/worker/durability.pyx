"""The journal of a worker, a block per pass; see durability.pxd."""

import time
from collections import deque
from contextlib import suppress
from threading import Thread

from cython cimport final
from libc.stdint cimport uint8_t
from shardbroker.session.session cimport Session
from shardbroker.worker.disk cimport DISK_AGAIN, DISK_WITHOUT
from shardbroker.worker.deferred cimport Deferred
from shardbroker.worker.outlets cimport StoreOutlet
from shm.counters cimport JOURNAL_HOLD_EXCEEDED, JOURNAL_WRITE_MS
from shm.ring cimport Ring

from shardbroker.journal import apply_retention, set_recovery_start
from shardbroker.journal.holds import held_from, needed_from, read_holds
from shardbroker.journal.retention import age_limit_us
from shardbroker.logs.phrases import log_line

__all__ = ["RETENTION_THREAD", "Durability"]

RETENTION_THREAD = "journal-retention"
"""Name of the thread that removes old segments."""

cdef enum:
    CYCLE_BYTES_A_PASS = 65536             # bytes of sessions written again in a pass
    HOLD_PROBLEMS = 16                     # lines a cycle about holds that cannot be read
    RECOVERY_SYNC_S = 60                   # that the disk may take for what a recovery has written


@final
cdef class Durability:
    """counters: shm.counters.Counters. settings: of the whole broker."""

    def __init__(self, Router router not None, RingOutlets rings not None, Inbox inbox, counters, settings):
        self.router = router
        self.rings = rings
        self.inbox = inbox
        self.drained = []
        self.arrivals = {}
        self.streams = StreamPositions()
        self.retention = settings.journal.retention
        self.hold_problems = deque(maxlen=<int>HOLD_PROBLEMS)
        self.counted = counters.slot(rings.number)
        self.cycle_bytes = self.cycle_due_bytes = settings.journal.cycle_bytes
        self.disk = router.retaining.disk = DiskWatch(settings.durability, counters.slot(rings.number))

    def wake(self, int process, Inbox inbox not None) -> None:
        """Rings for a process flows at the end of each pass with a message or event for rules."""
        self.reader_process, self.reader = process, inbox

    def keep_journal(self, JournalRecorder recorder not None, uint64_t old_bytes, dict arrivals not None) -> None:
        """Starts to record sessions. old_bytes, arrivals: what the journal contains already."""
        self.recorder = self.router.recorder = recorder
        self.arrivals = arrivals
        self.cycle_due_bytes = self.cycle_bytes - min(old_bytes, self.cycle_bytes)

    def guard_outputs(self) -> None:
        """Level `machine`: the journal syncs, and nothing leaves before that. What was recovered is on the disk."""
        cdef Ring ring
        self.router.retaining.store.incarnation = self.recorder.writer.incarnation
        self.rings.store = StoreOutlet(self.recorder, self.router.retaining.store)
        self.gate = self.rings.gate = SyncGate(
            self.recorder.writer, self.rings.store, self.rings.by_process, self.rings.nodes, self.rings.doorbells, self.rings.workers)
        for producer, ring in enumerate(self.inbox.lanes):
            if ring.secure(ring.taken()):
                self.rings.ring(producer)

    def save_sessions(self) -> None:
        """Writes every session into this journal: some were recovered from the journals of other workers."""
        self.recorder.next_cycle()         # the messages are in other journals too
        self.streams.write_all(self.recorder)
        for session in (*self.router.sessions.values(), *self.leaving()):
            self.recorder.snapshot(<Session>session)
        for deferred in (*self.router.retries.all(), *self.router.retries.delays.waiting.values()):
            self.router.retries.record(<Deferred>deferred)

    cdef list leaving(self):
        """Returns the sessions that another node of the cluster has, or gets."""
        return [] if self.router.claims is None else self.router.claims.leaving()

    cdef int settle(self) except -1:
        """Writes the effects of this pass as one block of the journal: all of it has happened, or nothing."""
        cdef Writer writer
        if self.recorder is None:
            if self.streams.changed:
                self.streams.write(None)
            return self.router.exclusive.release_durable(0, 0) if self.router.exclusive.releasing else 0
        writer = self.recorder.writer
        if self.gate is not None:
            self.settle_synced(writer)
            return self.release_exclusive(writer) if self.router.exclusive.releasing else 0
        if writer.next_sequence != writer.durable or self.disk.stage:
            if not self.behind:           # else it is in the block that waits
                self.write_consumed()
            self.cycle_if_due()
            writer.seal_c(self.router.now_ms * 1000)
            self.router.gauge(JOURNAL_WRITE_MS, writer.take_write_ms())
            if self.recorder.fed:
                self.ring_reader()
            if writer.error or self.disk.stage or writer.is_full():
                self.watch_disk()
        self.behind = writer.durable < writer.next_sequence and not (self.disk.goes_on and writer.error)
        if self.router.retaining.is_behind():
            self.behind = True            # retained messages must not be acknowledged either
        return self.release_exclusive(writer) if self.router.exclusive.releasing else 0

    cdef int ring_reader(self) except -1:
        cdef uint8_t written = self.recorder.fed
        self.recorder.fed = 0
        if self.reader is not None and self.reader.must_ring_for(written):
            self.rings.ring(self.reader_process)
        return 0

    cdef int release_exclusive(self, Writer writer) except -1:
        """Releases exclusive subscriptions whose end is in the journal."""
        cdef uint64_t durable = writer.durable
        if self.disk.goes_on and writer.error:
            durable = writer.next_sequence     # nothing waits for this disk
        return self.router.exclusive.release_durable(writer.next_sequence, durable)

    cdef int settle_synced(self, Writer writer) except -1:
        """The same at level `machine`: a sync is requested, and output that is on the disk is released."""
        if writer.next_sequence != self.settled or self.note_consumed:
            self.note_consumed = False
            self.write_consumed()
            self.recorder.synced()
            self.settled = writer.next_sequence
            self.cycle_if_due()
        if writer.next_sequence != writer.durable:
            writer.seal_c(self.router.now_ms * 1000)
            self.router.gauge(JOURNAL_WRITE_MS, writer.take_write_ms())
            if self.recorder.fed:
                self.ring_reader()
        if writer.error or self.disk.stage or writer.is_full():
            self.watch_disk()
        self.behind = writer.error != 0 or writer.is_full()
        return self.gate.advance()

    cdef int write_consumed(self) except -1:
        """Records how far rings were read, so that a successor skips the records of this pass."""
        cdef Ring ring
        for producer, ring, inbox in self.drained:
            self.recorder.consumed((<Inbox>inbox).identity, producer, ring.taken(), None)
        if self.streams.changed:
            self.streams.write(self.recorder)
        return 0

    cdef int cycle_if_due(self) except -1:
        """Begins no cycle before the worker serves: until then only the recovery knows messages for other workers in the journal."""
        if self.recorder.writer.bytes_written >= self.cycle_due_bytes and self.cycle_left is None and self.router.serving:
            return self.begin_cycle()
        return 0

    cdef int begin_cycle(self) except -1:
        self.recorder.next_cycle()
        self.cycle_from = self.recorder.writer.next_sequence
        self.cycle_left = [*self.router.sessions.values(), *self.leaving(), *self.router.retries.delays.waiting.values()]
        return self.write_arrivals()

    cdef int write_arrivals(self) except -1:
        """Records how far rings were read, including older ones, for a successor and, after a power cut, for producers."""
        cdef Ring ring
        for (rings, producer), (position, weights) in self.arrivals.items():
            self.recorder.consumed(rings, producer, position, weights)
        for producer, ring in enumerate(self.inbox.lanes):
            self.recorder.consumed(self.inbox.identity, producer, ring.taken(), None)
        return self.streams.write_all(self.recorder)

    cdef int save_again(self, object left) except -1:
        """Writes one session or delayed message in its current state."""
        if isinstance(left, Session):
            return self.recorder.snapshot(<Session>left)
        return self.router.retries.record(<Deferred>left) if self.router.retries.delays.has(<Deferred>left) else 0

    cdef int watch_disk(self) except -1:
        """Updates the stage of a disk that does not take the journal, or did not until now."""
        cdef int stage = self.disk.look(self.recorder)
        if stage == DISK_WITHOUT:
            self.cycle_left = None
        elif stage == DISK_AGAIN and self.router.serving and self.cycle_left is None and not self.disk.written_anew:
            self.begin_cycle()
        return self.router.retaining.check_disk()

    cdef int take_snapshots(self) except -1:
        """Writes some more sessions; once all are written, older segments can be removed."""
        cdef Writer writer = self.recorder.writer
        cdef uint64_t begin = writer.pending_bytes(), end
        if self.behind:
            return 0
        while self.cycle_left and writer.pending_bytes() - begin < <uint64_t>CYCLE_BYTES_A_PASS:
            self.save_again(self.cycle_left.pop())
        if not self.cycle_left:
            self.cycle_left = None
            for deferred in self.router.retries.all():
                self.router.retries.record(<Deferred>deferred)
            position = self.cycle_from
            self.recorder.checkpoint(position)
            if self.disk.stage:
                self.disk.through(self.recorder)
            # Before it is settled, or the next cycle would begin there.
            end = writer.pending_bytes()
            self.cycle_due_bytes = end + max(self.cycle_bytes, 2 * (end - min(end, self.cycle_due_bytes)))
            self.settle()
            if self.gate is not None:
                # Messages forwarded before the cycle are needed in the journal until they have arrived.
                self.gate.when_arrived(lambda: self.forget_older(position))
            elif writer.durable == writer.next_sequence:
                self.forget_older(position)
        return 0

    def forget_older(self, position) -> None:
        """Removes what precedes this position of the journal, in a thread."""
        while self.hold_problems:          # of the cycle before: a thread cannot write into the ring to the manager
            consumer, reason = self.hold_problems.popleft()
            self.router.log("warning", log_line("hold not readable", consumer=consumer, reason=reason))
        arguments = (
            self.recorder.writer.directory, position, self.retention.age, self.retention.bytes, self.gate is not None, self.hold_problems,
            self.counted)
        Thread(target=forget, args=arguments, name=RETENTION_THREAD).start()

    cdef int go_on_with_cycle(self) except -1:
        try:
            self.take_snapshots()
        except Exception as error:         # nothing of the journal may be removed: the next cycle tries again
            self.cycle_left = None
            self.cycle_due_bytes = self.recorder.writer.bytes_written + self.cycle_bytes
            self.router.log_failure(log_line("journal cycle abandoned"), error)
        return 0

    def settle_now(self) -> bool:
        """Returns whether everything recovered is in the journal. False: the disk refuses."""
        self.router.read_clock()
        self.settle()
        return not self.behind and (self.gate is None or self.recorder.writer.wait_durable(RECOVERY_SYNC_S))

    cdef bint is_settled(self) except -1:
        """Returns whether the disk has everything up to now."""
        return not self.behind and (self.gate is None or self.gate.is_safe())

    def close(self, double timeout_s) -> None:
        """Writes the journal to its end, if the disk takes it in this time."""
        if self.gate is not None:
            if self.gate.all_arrived():
                self.recorder.arrived()      # the next start need not look into other workers' rings
            self.router.retaining.store.close()
        if self.recorder is not None:
            self.recorder.writer.close(timeout_s)


def forget(directory, keep_from, age_s, most_bytes, sync, problems, counted) -> None:
    """Removes what precedes this position of a journal, which what follows repeats, and no consumer holds. It takes the disk some ms."""
    with suppress(OSError):                # the next one tries again
        set_recovery_start(directory, keep_from, sync=sync)        # before anything is removed
        holds = read_holds(directory.parent.parent)
        problems.extend((hold.consumer, hold.problem) for hold in holds if hold.problem)
        now_ms = time.time_ns() // 1_000_000
        keep_from = min(keep_from, held_from(holds, directory, now_ms))
        removed = apply_retention(directory, keep_from, now_ms * 1000, age_limit_us(age_s), most_bytes)
        needed = needed_from(holds, directory.name, now_ms)
        # No other thread of this process changes this counter: the next cycle begins long after.
        counted.add(<int>JOURNAL_HOLD_EXCEEDED, sum([segment.end > needed for segment in removed]))
