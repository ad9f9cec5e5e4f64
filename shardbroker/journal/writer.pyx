"""Writes a journal; see writer.pxd. The format is in docs/journal-format.md."""

import contextlib
import os
import sys
import time

import cython
from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.errno cimport EDQUOT, EFBIG, EINTR, EIO, ENOSPC, EPERM, EACCES, EROFS, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove, memset

from shardbroker.journal.checksum import crc32
from shardbroker.journal.layout import SegmentHeader, segment_name
from shm.atomic cimport sb_load, sb_store
from shm.posix cimport CLOCK_MONOTONIC_COARSE, clock_gettime, timespec

__all__ = ["Writer"]

cdef extern from "<pthread.h>" nogil:
    int pthread_create(unsigned long* thread, void* attributes, void* (*run)(void*) noexcept nogil, void* argument)
    int pthread_join(unsigned long thread, void** result)

cdef extern from "<signal.h>" nogil:
    ctypedef struct sigset_t:
        pass
    int sigfillset(sigset_t* signals)
    int pthread_sigmask(int how, const sigset_t* signals, sigset_t* previous)
    int SIG_SETMASK

cdef extern from "<semaphore.h>" nogil:
    int sem_init(sem_t* semaphore, int shared, unsigned int value)
    int sem_post(sem_t* semaphore)
    int sem_wait(sem_t* semaphore)
    int sem_destroy(sem_t* semaphore)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    int fdatasync(int fd)
    int fsync(int fd)
    int ftruncate(int fd, long size)
    ssize_t pwrite(int fd, const void* data, size_t size, long offset)
    ssize_t write(int fd, const void* data, size_t size)

cdef enum SyncState:
    IDLE = 0
    REQUESTED = 1
    DONE = 2

cdef enum:
    SEGMENT_HEADER = 64
    BLOCK_HEADER = 48
    FIRST_CAPACITY = 1 << 18               # bytes: some thousand small records
    RETRY_US = 100_000                     # interval of retries while the disk fails

SEGMENT_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
PENDING_MAX = 64 << 20
"""Bytes that may wait for the disk before the worker must stop reading."""

if sys.byteorder != "little":
    raise ImportError("journals are written on little-endian machines only")


cdef void* sync_loop(void* argument) noexcept nogil:
    """The loop of the syncing thread. It uses no Python, and only the fields of the job."""
    cdef SyncJob* job = <SyncJob*>argument
    cdef uint64_t one = 1
    cdef int error
    while True:
        while sem_wait(&job.wake) != 0:
            pass                           # EINTR
        if job.stop:
            return NULL
        error = 0
        if job.previous_fd >= 0 and fdatasync(job.previous_fd) != 0:
            error = errno
        if error == 0 and job.fd >= 0 and fdatasync(job.fd) != 0:
            error = errno
        if error == 0 and job.directory_fd >= 0 and fsync(job.directory_fd) != 0:
            error = errno
        job.error = error
        sb_store(&job.state, DONE)
        if job.bell >= 0:
            write(job.bell, &one, sizeof(one))


@cython.final
cdef class Writer:
    """Appends records to the journal in `directory`; made by `shardbroker.journal.open_journal`.

    directory_fd: the directory, locked; `close` closes and so unlocks it.
    sync: group commit; `durable` then follows fdatasync, else the write to the kernel. bell: an eventfd that is written at the end
    of a sync, so that the loop wakes and seals again; -1: none. first_sequence and previous_end: see the format.
    """

    def __cinit__(self):
        self.fd = self.directory_fd = self.unsynced_fd = -1

    def __init__(
        self, directory, int directory_fd, uint64_t incarnation, uint64_t first_sequence, uint64_t previous_end, *, uint16_t worker=0,
        uint16_t workers=1, uint16_t node_id=0, size_t segment_bytes=SEGMENT_BYTES, size_t block_bytes=BLOCK_BYTES,
        size_t pending_max=PENDING_MAX, bint sync=False, int bell=-1,
    ):
        self.directory = directory
        self.incarnation = incarnation
        self.first_sequence = self.next_sequence = self.written_end = self.durable = first_sequence
        self.previous_end = previous_end
        self.worker = worker
        self.workers = workers
        self.node_id = node_id
        self.segment_bytes = segment_bytes
        self.block_bytes = block_bytes
        self.pending_max = pending_max
        self.directory_fd = directory_fd
        self.grow(FIRST_CAPACITY)
        if sync:
            self.start_thread(bell)

    def __dealloc__(self):
        self.stop_thread()
        for fd in (self.fd, self.unsynced_fd, self.directory_fd):
            if fd >= 0:
                close(fd)

    # --- what Python sees -------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Returns the number of bytes that are not as safe as required."""
        return self.end - self.start

    @property
    def full(self) -> bool:
        """Returns whether so much waits for the disk that the worker must stop reading from publishers."""
        return self.is_full()

    @property
    def problem(self) -> str | None:
        """Returns a description of the disk's failure for a log line, or None."""
        if self.error == 0:
            return None
        return (
            f"journal {self.directory}: {os.strerror(self.error)}; {self.end - self.start} bytes wait, "
            f"safe up to {self.durable} of {self.next_sequence}"
        )

    def append(self, bytes record not None) -> int:
        """Adds an encoded record to the open block; returns its sequence."""
        self.add(PyBytes_AS_STRING(record), <size_t>PyBytes_GET_SIZE(record))
        return self.next_sequence - 1

    def seal(self, uint64_t now_us) -> int:
        """Ends the block, writes all closed blocks, and returns `durable`.

        To be called in every pass, and on a timer while `state` is not WRITING or a sync is outstanding.
        """
        return self.seal_c(now_us)

    def end_segment(self) -> bool:
        """Closes the open segment, so that readers may read all of it; the next block opens another one.

        Returns True if no sealed block is in an open segment. Returns False while blocks wait for the disk: to be called again.
        """
        if self.fd < 0:
            return self.written == self.closed
        if self.written < self.closed or self.offset <= SEGMENT_HEADER:
            return False
        return self.leave_segment()

    def wait_durable(self, double timeout_s) -> bool:
        """Seals, and waits until all records are safe; for the end of a drain. Returns False on timeout."""
        cdef uint64_t target = self.next_sequence
        deadline = time.monotonic() + timeout_s
        while self.seal_c(<uint64_t>(time.time() * 1e6)) < target:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0002)
        return True

    def close(self, double timeout_s=5.0) -> bool:
        """Makes all records safe if possible in time, and closes the writer.

        Returns False if records above `durable` may be lost.
        """
        if self.state == CLOSED:
            return self.durable == self.next_sequence
        safe = self.wait_durable(timeout_s)
        self.stop_thread()
        for fd in (self.fd, self.unsynced_fd, self.directory_fd):
            if fd >= 0:
                close(fd)
        self.fd = self.unsynced_fd = self.directory_fd = -1
        self.state = CLOSED
        return safe

    # --- records and blocks -------------------------------------------------------------------------------------------------

    cdef uint8_t* make_room(self, size_t size) except NULL:
        cdef size_t need
        if self.state == CLOSED:
            raise ValueError("the journal is closed")
        if self.count and self.end - self.closed >= self.block_bytes:
            self.close_block()
        need = size + (BLOCK_HEADER if self.end == self.closed else 0)
        # Moved down only if that frees at least as much as it moves. A slow disk would else cause repeated moves.
        if self.end + need > self.capacity and self.start >= self.end - self.start:
            memmove(self.data, self.data + self.start, self.end - self.start)
            self.whole -= self.start
            self.written -= self.start
            self.closed -= self.start
            self.end -= self.start
            self.start = 0
        if self.end + need > self.capacity:
            self.grow(max(self.capacity * 2, self.end + need))
        if self.end == self.closed:
            self.end += BLOCK_HEADER
        return self.data + self.end

    cdef int close_block(self) except -1:
        cdef BlockHeaderC* header = <BlockHeaderC*>(self.data + self.closed)
        cdef size_t size = self.end - self.closed
        if self.count == 0:
            self.end = self.closed         # room was reserved and not used
            return 0
        memset(header, 0, BLOCK_HEADER)
        memcpy(header.magic, b"\xb1\x0cSB", 4)
        header.length = header.raw_length = <uint32_t>(size - BLOCK_HEADER)
        header.count = self.count
        header.first_sequence = self.next_sequence - self.count
        header.time_us = self.now_us
        header.incarnation = self.incarnation
        header.checksum = crc32(PyMemoryView_FromMemory(<char*>header + 8, size - 8, PyBUF_READ))
        self.closed = self.end
        self.count = 0
        return 0

    cdef uint64_t seal_c(self, uint64_t now_us) except? 0xFFFFFFFFFFFFFFFF:
        if self.state == CLOSED:
            return self.durable
        if now_us > self.now_us:
            self.now_us = now_us
        if self.without:
            self.throw_away()
            return self.durable
        if self.end != self.closed:
            self.close_block()
        if self.end != self.start or self.unsynced_fd >= 0:
            self.flush_c()
        return self.durable

    # --- the disk -----------------------------------------------------------------------------------------------------------

    cdef int flush_c(self) except -1:
        if self.job != NULL:
            self.take_sync()
        if self.error and self.now_us < self.retry_at_us:
            return 0
        if self.written < self.closed:
            self.write_out()
        if self.job != NULL:
            self.request_sync()
        return 0

    cdef int write_out(self) except -1:
        cdef ssize_t size
        cdef int failed = 0
        cdef timespec begin, end
        if self.fd < 0 and not self.open_segment():
            return 0
        # Its resolution is some ms, which is exact on average, and it costs almost nothing.
        clock_gettime(CLOCK_MONOTONIC_COARSE, &begin)
        while self.written < self.closed:
            size = pwrite(self.fd, self.data + self.written, self.closed - self.written, <long>self.offset)
            if size < 0 and errno == EINTR:
                continue
            if size <= 0:
                failed = errno if size < 0 else EIO
                break
            self.written += size
            self.offset += size
            self.bytes_written += size
        clock_gettime(CLOCK_MONOTONIC_COARSE, &end)
        self.write_ms += (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) // 1000000
        self.count_whole()
        if self.job == NULL:
            self.durable = self.written_end
            self.drop_safe(self.whole)
        if failed:
            return self.fail(failed)
        if self.job == NULL:
            self.well()
        if self.offset >= self.segment_bytes:
            self.leave_segment()
        return 0

    cdef bint leave_segment(self) noexcept:
        """Makes the next block open a new segment. Returns False while the one before is not synced yet."""
        if self.unsynced_fd >= 0:
            return False
        if self.job == NULL:
            close(self.fd)
        else:
            self.unsynced_fd = self.fd
        self.fd = -1
        self.segment += 1
        return True

    cdef void count_whole(self) noexcept:
        """Moves `whole` over the blocks that are written completely."""
        cdef BlockHeaderC* header
        cdef size_t size
        while self.whole < self.written:
            header = <BlockHeaderC*>(self.data + self.whole)
            size = BLOCK_HEADER + header.length
            if self.whole + size > self.written:
                break
            self.whole += size
            self.whole_offset += size
            self.written_end = header.first_sequence + header.count
            self.blocks_written += 1

    cdef void drop_safe(self, size_t at) noexcept:
        """Drops the bytes below `at`; once empty, a buffer that was enlarged for one message shrinks."""
        cdef uint8_t* smaller
        self.start = at
        if self.start < self.end:
            return
        self.start = self.whole = self.written = self.closed = self.end = 0
        if self.capacity > 8 * FIRST_CAPACITY:
            smaller = <uint8_t*>realloc(self.data, FIRST_CAPACITY)
            if smaller != NULL:
                self.data = smaller
                self.capacity = FIRST_CAPACITY

    cdef bint open_segment(self) except -1:
        cdef bytes header
        cdef ssize_t size
        cdef int error
        path = self.directory / segment_name(self.written_end)
        previous = self.previous_end if self.written_end == self.first_sequence else self.written_end
        try:
            with contextlib.suppress(FileNotFoundError):
                # Only a segment of this writer without a safe block can have this name.
                os.rename(path, f"{path}.failed")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            self.fail(problem.errno or EIO)
            return False
        header = SegmentHeader(
            self.incarnation, self.written_end, previous, self.now_us, self.worker, self.workers, self.node_id
        ).pack()
        size = pwrite(fd, PyBytes_AS_STRING(header), SEGMENT_HEADER, 0)
        if size != SEGMENT_HEADER:
            error = errno if size < 0 else ENOSPC
            close(fd)
            with contextlib.suppress(OSError):
                os.unlink(path)
            self.fail(error)
            return False
        self.fd = fd
        self.path = path
        self.offset = self.whole_offset = SEGMENT_HEADER
        self.new_name = True
        return True

    cdef int fail(self, int error) except -1:
        if self.error == 0:
            self.failed_since_us = self.now_us
        self.error = error
        self.failures += 1
        self.retry_at_us = self.now_us + RETRY_US
        if error in (ENOSPC, EDQUOT, EFBIG):
            self.state = DISK_FULL
        elif error in (EROFS, EACCES, EPERM):
            self.state = READ_ONLY
        else:
            self.state = DISK_ERROR
        if self.fd < 0 or (self.job != NULL and sb_load(&self.job.state) == REQUESTED):
            return 0                       # the thread still uses the descriptor
        # After a full disk, writing continues in this segment. One of the maximum file size, or on a failing disk, is left.
        if self.state == DISK_ERROR or (error == EFBIG and self.whole_offset > SEGMENT_HEADER):
            self.start_over()
        return 0

    cdef void well(self) noexcept:
        self.error = 0
        self.failed_since_us = 0
        self.state = WRITING

    cdef int start_over(self) except -1:
        """Leaves the segment; its records that are not safe are written again, to a new one."""
        cdef int64_t offset = <int64_t>self.whole_offset - <int64_t>(self.whole - self.start)
        if self.fd >= 0:
            if offset >= SEGMENT_HEADER:
                ftruncate(self.fd, offset)  # if it fails, readers find the same records twice and skip one copy
            else:
                # Nothing in it is safe, and the new segment begins before it.
                with contextlib.suppress(OSError):
                    os.rename(self.path, f"{self.path}.failed")
            close(self.fd)
            self.fd = -1
        if self.unsynced_fd >= 0:
            close(self.unsynced_fd)
            self.unsynced_fd = -1
        self.written = self.whole = self.start
        self.written_end = self.durable
        self.segment += 1
        return 0

    cdef bint give_up(self) except -1:
        if self.job != NULL:
            self.take_sync()
            if sb_load(&self.job.state) == REQUESTED:
                return False
        self.start_over()
        self.without = True
        self.throw_away()
        return True

    cdef int throw_away(self) except -1:
        """Drops the records. Their numbers were never visible: the next records get them."""
        self.given_up += self.next_sequence - self.written_end
        self.next_sequence = self.written_end
        self.count = 0
        self.end = self.start
        self.drop_safe(self.start)
        if self.now_us >= self.retry_at_us and self.open_segment():
            self.without = False
            self.segment += 1              # sessions named meanwhile are not named in it
        return 0

    # --- syncing ------------------------------------------------------------------------------------------------------------

    cdef int take_sync(self) except -1:
        """Takes the result of the syncing thread."""
        if sb_load(&self.job.state) != DONE:
            return 0
        sb_store(&self.job.state, IDLE)
        if self.job.error:
            # The kernel no longer knows that these pages are not on the disk: a second fdatasync would report success.
            self.fail(self.job.error)
            if self.whole != self.start or self.unsynced_fd >= 0:
                self.start_over()
            return 0
        self.syncs += 1
        self.durable = self.asked_end
        if self.job.previous_fd >= 0:
            close(self.unsynced_fd)
            self.unsynced_fd = -1
        self.drop_safe(self.start + self.syncing_bytes)
        self.well()
        return 0

    cdef int request_sync(self) except -1:
        if sb_load(&self.job.state) != IDLE or (self.whole == self.start and self.unsynced_fd < 0):
            return 0
        self.job.fd = self.fd
        self.job.previous_fd = self.unsynced_fd
        self.job.directory_fd = self.directory_fd if self.new_name else -1
        self.new_name = False
        self.syncing_bytes = self.whole - self.start
        self.asked_end = self.written_end
        sb_store(&self.job.state, REQUESTED)
        sem_post(&self.job.wake)
        return 0

    cdef int start_thread(self, int bell) except -1:
        cdef sigset_t every
        cdef sigset_t before
        cdef int error
        self.job = <SyncJob*>calloc(1, sizeof(SyncJob))
        if self.job == NULL:
            raise MemoryError("no memory for a journal's thread")
        self.job.bell = bell
        sem_init(&self.job.wake, 0, 0)
        # A signal delivered to this thread would not wake the loop from its epoll_wait.
        sigfillset(&every)
        pthread_sigmask(SIG_SETMASK, &every, &before)
        error = pthread_create(&self.thread, NULL, sync_loop, self.job)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
        if error:
            free(self.job)
            self.job = NULL
            raise OSError(error, "no thread for a journal")
        return 0

    cdef void stop_thread(self) noexcept:
        if self.job == NULL:
            return
        self.job.stop = True
        sem_post(&self.job.wake)
        pthread_join(self.thread, NULL)
        sem_destroy(&self.job.wake)
        free(self.job)
        self.job = NULL
