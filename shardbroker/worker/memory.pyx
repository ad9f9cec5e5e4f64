"""The memory watch of a worker; see memory.pxd."""

import os

from libc.stdint cimport uint64_t

from shm.counters cimport MEMORY_BYTES_COUNT, OVERLOAD_LEVEL_COUNT, CounterSlot
from shm.posix cimport CLOCK_MONOTONIC, clock_gettime, timespec

__all__ = ["MemoryWatch", "memory_share"]

cdef extern from "<unistd.h>" nogil:
    ssize_t pread(int fd, void* buffer, size_t size, long offset)
    long sysconf(int name)
    int _SC_PAGESIZE

cdef extern from "<malloc.h>" nogil:
    int malloc_trim(size_t keep)
    int mallopt(int parameter, int value)
    int M_TRIM_THRESHOLD, M_MMAP_THRESHOLD

cdef extern from "<stdlib.h>" nogil:
    unsigned long strtoul(const char* text, char** end, int base)

cdef enum:
    PAUSE_AT = 80                          # percent of the mark
    CALM_UNDER = 70
    REFUSE_AT = 90
    PAUSE_UNDER = 80                       # where new sessions are let in again
    RENEW_MS = 500                         # how often the report of a greedy publisher is repeated to its worker
    TIDY_MS = 10000                        # how often free memory is given back by a worker that is never idle
    TIDY_SHORT_MS = 1000                   # the same while memory is short
    TRIM_MS = 50                           # least time between two times that it is
    TRIM_SHARE = 100                       # giving back may take a hundredth of the time: a fragmented heap needs 150 ms for it
    IDLE_TRIM_MS = 10000                   # least time between two times that an idle worker gives free memory back
    KEPT_BYTES = 268435456                 # free memory at the end of the heap that a busy worker keeps, bytes
    KEPT_SHARE = 8                         # of the memory limit, if that is less
    MAPPED_BYTES = 16777216                # an allocation of this size is mapped on its own, bytes
    WORTH_TRIMMING = 16777216              # memory above that of the start from which it is tried while memory is not short, bytes

OTHER_PROCESS_BYTES = 16 << 20
"""Memory of a process that holds no messages: the supervisor, and those of roles.py that are no workers."""


def memory_share(topology, uint64_t mark) -> int:
    """Returns the part of the mark that all workers together may take: the other processes and the rings are subtracted first."""
    if not mark:
        return 0
    others = 1 + len(topology.always_there) - topology.workers         # the supervisor has no place
    rings = topology.processes ** 2 * topology.ring_bytes // 2
    return max(mark - min(mark, others * OTHER_PROCESS_BYTES + rings), mark // 4)


def file_bytes(path) -> int:
    """Returns the bytes that a file takes on disk; 0 if it does not exist."""
    try:
        return os.stat(path).st_blocks * 512
    except FileNotFoundError:
        return 0


def inherited_bytes() -> int:
    """Returns the anonymous memory that this process shares with others since its fork, less its part of it.

    Returns 0 where the kernel does not report it.
    """
    try:
        with open("/proc/self/smaps_rollup") as file:
            sizes = {line.partition(":")[0]: line.split()[1] for line in file if line.endswith("kB\n")}
        return max(int(sizes["Anonymous"]) - int(sizes["Pss_Anon"]), 0) << 10
    except (OSError, KeyError):
        return 0


cdef class MemoryWatch:
    """mark: of all workers together, bytes, 0 for none. counters: the shared ones, where each worker says what it takes.
    files: tables on tmpfs, which take memory too."""

    def __init__(self, Counters counters, int number, int workers, uint64_t mark, files=()):
        self.files = list(files)
        self.counters = counters
        self.number = number
        self.workers = workers
        self.mark = mark
        self.contributions = {}
        self.greedy = {}
        self.statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self.inherited = inherited_bytes()
        self.floor = self.own = self.measure()

    def __dealloc__(self):
        if self.statm:
            os.close(self.statm)

    cdef uint64_t measure(self) except? 0:
        """Private memory of this process, bytes: resident less what is shared, was inherited or belongs to files."""
        cdef char text[128]
        cdef char* at = text
        cdef uint64_t resident, shared
        cdef ssize_t got = pread(self.statm, text, sizeof(text) - 1, 0)
        if got <= 0:
            return self.own
        text[got] = 0
        strtoul(at, &at, 10)
        resident = strtoul(at, &at, 10)
        shared = strtoul(at, &at, 10)
        resident = (resident - min(shared, resident)) * <uint64_t>sysconf(_SC_PAGESIZE)
        return resident - min(self.inherited, resident)

    cdef int look(self, uint64_t now_ms) except -1:
        cdef CounterSlot slot = self.counters.slot(self.number)
        cdef int level
        self.own = self.measure()
        slot.values[<int>MEMORY_BYTES_COUNT] = self.own
        level = self.judge(self.taken())
        if (level > self.level or now_ms >= self.tidy_at_ms) and now_ms >= self.trim_at_ms:
            # A heap that is free counts as taken until it is given back. While memory is short, every part of it counts: what each
            # worker leaves alone otherwise may together be enough to keep newcomers out for ever.
            self.tidy_at_ms = now_ms + <uint64_t>(TIDY_MS if level == CALM else TIDY_SHORT_MS)
            if self.own > self.floor + <uint64_t>(WORTH_TRIMMING if level == CALM else 0):
                self.trim(now_ms)
                slot.values[<int>MEMORY_BYTES_COUNT] = self.own
                level = self.judge(self.taken())
        if level == REFUSE and self.level < REFUSE and not self.confirmed:
            # Other workers may have free memory as well, and return it before the next measurement.
            self.confirmed = True
            level = PAUSE
        else:
            self.confirmed = False
        self.level = level
        slot.values[<int>OVERLOAD_LEVEL_COUNT] = <uint64_t>level
        if level == CALM:
            self.greedy.clear()
            self.contributions.clear()
        return level

    cdef uint64_t taken(self) except? 0:
        cdef uint64_t sum = 0
        cdef int worker
        for worker in range(self.workers):
            sum += self.counters.memory_of(worker)
        for path in self.files:
            sum += file_bytes(path)
        return sum

    cdef int judge(self, uint64_t taken) noexcept:
        if not self.mark:
            return CALM
        if taken * 100 >= self.mark * <uint64_t>REFUSE_AT:
            return REFUSE
        if self.level == REFUSE and taken * 100 >= self.mark * <uint64_t>PAUSE_UNDER:
            return REFUSE
        if taken * 100 >= self.mark * <uint64_t>PAUSE_AT:
            return PAUSE
        if self.level != CALM and taken * 100 >= self.mark * <uint64_t>CALM_UNDER:
            return PAUSE
        return CALM

    cdef int trim(self, uint64_t now_ms) except -1:
        """Returns free memory to the kernel. The time that takes depends on the heap, and sets the time of the next trim."""
        cdef timespec before, after
        cdef uint64_t took_ms
        clock_gettime(CLOCK_MONOTONIC, &before)
        malloc_trim(0)
        clock_gettime(CLOCK_MONOTONIC, &after)
        took_ms = <uint64_t>((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) // 1000000)
        self.trim_at_ms = now_ms + max(<uint64_t>TRIM_MS, took_ms * TRIM_SHARE)
        self.own = self.measure()
        return 0

    cdef int trim_when_idle(self, bint worked, bint idle, uint64_t now_ms) noexcept:
        if worked:
            self.worked = True
        elif self.worked and idle and now_ms >= self.idle_trim_at_ms:
            self.worked = False
            self.idle_trim_at_ms = now_ms + IDLE_TRIM_MS
            malloc_trim(0)
        return 0

    cdef int keep_heap(self) noexcept:
        """Output buffers are allocated and freed in every pass: a heap that shrinks in between spends a third of a fan-out on page
        faults."""
        cdef uint64_t share = self.mark // <uint64_t>(KEPT_SHARE * self.workers)
        mallopt(M_TRIM_THRESHOLD, <int>min(<uint64_t>KEPT_BYTES, share or <uint64_t>KEPT_BYTES))
        mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        return 0

    cdef int note(self, bytes client_id, uint64_t size) except -1:
        self.contributions[client_id] = self.contributions.get(client_id, 0) + size
        return 0

    cdef list choose(self, uint64_t now_ms):
        """Adds publishers above the average to the greedy ones, until memory is calm again."""
        cdef dict contributions = self.contributions
        cdef list due = []
        if contributions:
            average = sum(contributions.values()) // len(contributions)
            for client_id, size in contributions.items():
                if size >= average and client_id not in self.greedy:
                    self.greedy[client_id] = 0
            self.contributions = {}
        for client_id, told_ms in self.greedy.items():
            if told_ms + RENEW_MS <= now_ms:
                due.append(client_id)
        for client_id in due:
            self.greedy[client_id] = now_ms
        return due
