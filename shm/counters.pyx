"""Counters and gauges of all processes in one segment; see counters.pxd.

    header page: magic, slots, listeners, wanted
    then per slot:  | state, heartbeat, settings (one line) | values | histograms | sockets of each listener |   padded to pages
    histogram:   | buckets | sum of the values | padding |                         HISTOGRAM_WORDS words of 64 bits

A slot has one writer, its process; the supervisor also writes the state when the process has died, and the manager the wanted
generation of the settings. Readers add the slots up; a count may be slightly old, never torn. Counters and histograms survive a
restart of their process, gauges and the state do not.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from shm.atomic cimport sb_add, sb_fence, sb_load, sb_store
from shm.quota cimport SharedBucket

from enum import IntEnum

from shm import segment

__all__ = ["GAUGES", "HISTOGRAMS", "NAMES", "Counter", "CounterSlot", "Counters", "Histogram", "ProcessState"]

cdef extern from * nogil:
    """
    static inline int sb_top_bit(uint64_t value) { return 63 - __builtin_clzll(value); }
    """
    int sb_top_bit(uint64_t value) noexcept

cdef enum:
    PAGE = 4096                            # bytes
    LINE = 64                              # a cache line, bytes
    MAGIC = 0x35544E4F43425300             # "\0SBCONT5"
    STATE = 0                              # words of a slot's first line
    HEARTBEAT = 1
    PID = 2
    STARTED = 3                            # Unix ms
    STARTS = 4
    SETTINGS_WANTED = 5                    # generations of the settings in force (in_force.py): the newest that reaches this process,
    SETTINGS_APPLIED = 6                   # and the newest that it has applied
    LAGGING = 7                            # of a link process: nodes of which messages may be missing
    WANTED = 3                             # words of the header page: events of connects are wanted,
    WANTED_EPOCH = 4                       # at this epoch
    SERVING = 5                            # every process has been ready
    ACCESS = 6                             # generations of rules, and of users and bans
    BUCKETS_AT = 1024                      # shared buckets in the header page, bytes from its start
    BUCKETS_MAX = 384                      # of a word each: up to its end
    HISTOGRAM_COUNT = 2
    HISTOGRAM_BUCKETS = 496                # 8 exact ones, then 8 for each of the 61 powers of two from 8 on
    HISTOGRAM_SUM = HISTOGRAM_BUCKETS      # word behind the buckets
    HISTOGRAM_WORDS = 512


class ProcessState(IntEnum):
    """State of a process, set by the process itself, or by the supervisor (DOWN) for one that died."""

    DOWN = 0
    STARTING = 1
    READY = 2
    DRAINING = 3
    """An acceptor that no longer accepts."""
    DRAINED = 4
    """A worker without clients, whose output is under way: it receives records of others and forwards those not meant for it."""


GROUPS = frozenset({
    "authentication", "authentication.success", "authorization", "bytes", "client", "client.closed", "delivery", "delivery.dropped",
    "events", "journal", "link", "messages", "messages.dropped", "messages.qos0", "messages.qos1", "messages.qos2", "overload", "packets",
    "packets.auth", "packets.connack", "packets.connect", "packets.disconnect", "packets.pingreq", "packets.pingresp", "packets.puback",
    "packets.pubcomp", "packets.publish", "packets.pubrec", "packets.pubrel", "packets.suback", "packets.subscribe",
    "packets.unsuback", "packets.unsubscribe", "retained", "session", "suback",
})
"""Prefixes of dotted names, up to the last dot. A counter of a new group needs an entry here, too."""

GAUGE = "_COUNT"
"""Rows with this suffix are gauges: they go down as well, and restart at 0 with their process."""


def dotted(str row not None) -> str:
    """Returns the public name: PACKETS_CONNACK_AUTH_ERROR -> packets.connack.auth_error. Raises ValueError for an unknown group."""
    cdef list words = row.lower().split("_")
    if row.endswith(GAUGE):
        return ".".join(words)
    for size in range(len(words) - 1, 0, -1):
        group = ".".join(words[:size])
        if group in GROUPS:
            return f"{group}.{'_'.join(words[size:])}"
    raise ValueError(f"counter {row}: none of its words make a group of GROUPS")


cdef dict ROWS = {row: int(number) for row, number in (<object>Counter).__members__.items() if number < <int>COUNTER_MAX}

NAMES = tuple([dotted(row) for row in ROWS])
"""Dotted names of the counters: `Counter.X` has the name `NAMES[Counter.X]`."""

GAUGES = tuple([dotted(row) for row in ROWS if row.endswith(GAUGE)])

cdef list GAUGE_NUMBERS = [number for row, number in ROWS.items() if row.endswith(GAUGE)]

HISTOGRAMS = ("ring.hop_us", "pass_us")
"""Measures with a histogram per process, in microseconds: time of a record in a ring, duration of one pass of a worker's loop."""

cdef uint64_t HISTOGRAMS_AT = (LINE + COUNTER_MAX * 8 + LINE - 1) // LINE * LINE
cdef uint64_t SOCKETS_AT = HISTOGRAMS_AT + HISTOGRAM_COUNT * HISTOGRAM_WORDS * 8


cdef uint64_t slot_size(int listeners) noexcept:
    return (SOCKETS_AT + <uint64_t>listeners * sizeof(ListenerSockets) + PAGE - 1) // PAGE * PAGE


cdef inline int bucket_index(uint64_t value) noexcept:
    cdef int power
    if value < 8:
        return <int>value
    power = sb_top_bit(value)
    return (power - 2) * 8 + <int>((value >> (power - 3)) & 7)


def bucket_range(int index) -> tuple[int, int]:
    """Returns the least and greatest value that bucket `index` of a histogram counts. Raises IndexError."""
    if not 0 <= index < HISTOGRAM_BUCKETS:
        raise IndexError(f"bucket {index}, there are {HISTOGRAM_BUCKETS}")
    if index < 8:
        return index, index
    shift = index // 8 - 1
    least = (8 + index % 8) << shift
    return least, least + (1 << shift) - 1


cdef class CounterSlot:
    """The counters of one process, written by that process alone."""

    def add(self, int counter, int64_t change=1) -> None:
        """Changes a counter (slow path for Python processes). Raises IndexError."""
        if not 0 <= counter < COUNTER_MAX:
            raise IndexError(f"counter {counter}, there are {<int>COUNTER_MAX}")
        self.values[counter] += <uint64_t>change


cdef class Histogram:
    """One measure of one process, written by that process alone."""

    cdef void record(self, uint64_t value) noexcept:
        self.words[bucket_index(value)] += 1
        self.words[HISTOGRAM_SUM] += value

    def note(self, uint64_t value) -> None:
        """Counts one value (slow path for Python processes)."""
        self.record(value)


cdef class Counters:
    """All slots of a running broker."""

    @staticmethod
    def create(str name not None, int slots, int listeners=1) -> Counters:
        """Creates a segment with `slots` zeroed slots. Raises FileExistsError if the name is taken, OSError."""
        cdef Counters counters = Counters.__new__(Counters)
        counters.map(name, segment.create(name, PAGE + slots * slot_size(listeners)))
        cdef uint64_t* header = <uint64_t*>counters.base
        header[1] = <uint64_t>slots
        header[2] = <uint64_t>listeners
        counters.measure()
        sb_store(header, MAGIC)
        return counters

    @staticmethod
    def attach(str name not None) -> Counters:
        """Attaches to the segment that the supervisor created. Raises FileNotFoundError, PermissionError, ValueError."""
        cdef Counters counters = Counters.__new__(Counters)
        counters.map(name, segment.attach(name, PAGE))
        cdef uint64_t* header = <uint64_t*>counters.base
        if sb_load(header) != MAGIC or <uint64_t>len(counters.mapping) != PAGE + header[1] * slot_size(<int>header[2]):
            raise ValueError(f"segment {name} holds no counters of this version")
        counters.measure()
        return counters

    cdef void measure(self) noexcept:
        cdef uint64_t* header = <uint64_t*>self.base
        self.slots = <int>header[1]
        self.listeners = <int>header[2]
        self.slot_bytes = slot_size(self.listeners)

    cdef int map(self, str name, object mapping) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(mapping, &view, PyBUF_WRITABLE)
        self.base = <uint8_t*>view.buf
        PyBuffer_Release(&view)
        self.mapping = mapping
        self.name = name
        return 0

    cdef uint64_t* at(self, int slot) except NULL:
        if not 0 <= slot < self.slots:
            raise IndexError(f"counter slot {slot}, there are {self.slots}")
        return <uint64_t*>(self.base + PAGE + <uint64_t>slot * self.slot_bytes)

    def slot(self, int number) -> CounterSlot:
        """Returns the slot of process `number`."""
        cdef CounterSlot slot = CounterSlot.__new__(CounterSlot)
        slot.values = <uint64_t*>(<uint8_t*>self.at(number) + LINE)
        slot.sockets = self.sockets_of(number)
        slot.owner = self.mapping
        return slot

    cdef uint64_t memory_of(self, int number) except? 0:
        return (<uint64_t*>(<uint8_t*>self.at(number) + LINE))[<int>MEMORY_BYTES_COUNT]

    cdef int64_t total_of(self, int counter) except? -1:
        cdef uint64_t sum = 0
        cdef int number
        for number in range(self.slots):
            sum += (<uint64_t*>(<uint8_t*>self.at(number) + LINE))[counter]
        return <int64_t>sum

    cdef ListenerSockets* sockets_of(self, int number) except NULL:
        return <ListenerSockets*>(<uint8_t*>self.at(number) + SOCKETS_AT)

    cpdef int64_t sockets(self, int listener) except? -1:
        """Returns the open sockets of a listener in the whole broker, those in transit included. Raises IndexError."""
        cdef int64_t sum = 0
        cdef int number
        if not 0 <= listener < self.listeners:
            raise IndexError(f"listener {listener}, there are {self.listeners}")
        # If two acceptors each count a socket and then read the sum, at least one of them sees both.
        sb_fence()
        for number in range(self.slots):
            sum += self.sockets_of(number)[listener].balance
        return sum

    def histogram(self, int number, str name not None) -> Histogram:
        """Returns the histogram `name`, one of HISTOGRAMS, of process `number`. Raises ValueError for another name."""
        cdef Histogram histogram = Histogram.__new__(Histogram)
        histogram.words = self.histogram_words(number, HISTOGRAMS.index(name))
        histogram.owner = self.mapping
        return histogram

    cdef uint64_t* histogram_words(self, int number, int which) except NULL:
        return <uint64_t*>(<uint8_t*>self.at(number) + HISTOGRAMS_AT) + which * HISTOGRAM_WORDS

    def reset_gauges(self, int number, bint sockets_too=True) -> None:
        """Resets the gauges of a process that died or starts again: it has no connections, or with `sockets_too` False those that its
        predecessor had."""
        cdef ListenerSockets* sockets = self.sockets_of(number)
        cdef int listener
        cdef uint64_t* values = <uint64_t*>(<uint8_t*>self.at(number) + LINE)
        cdef int gauge
        for gauge in GAUGE_NUMBERS:
            values[gauge] = 0
        for listener in range(self.listeners if sockets_too else 0):
            sockets[listener].balance -= sockets[listener].here
            sockets[listener].here = 0

    cpdef int state(self, int number) except -1:
        """Returns the ProcessState of a process."""
        return <int>sb_load(self.at(number) + STATE)

    cpdef void set_state(self, int number, int state) except *:
        """Sets the state of a process: called by the process itself, or by the supervisor for one that died."""
        sb_store(self.at(number) + STATE, <uint64_t>state)

    def lagging(self, int number) -> int:
        """Returns what link process `number` has said last by `set_lagging`."""
        return sb_load(self.at(number) + LAGGING)

    def set_lagging(self, int number, uint64_t nodes) -> None:
        """Sets of how many nodes messages may be missing here; for the link process `number` alone."""
        sb_store(self.at(number) + LAGGING, nodes)

    cpdef void beat(self, int number, uint64_t now_ms) except *:
        """Records a sign of life of the process; the clock is the caller's."""
        sb_store(self.at(number) + HEARTBEAT, now_ms)

    cpdef uint64_t heartbeat(self, int number) except? 0:
        """Returns the argument of the last `beat`; 0 before the first."""
        return sb_load(self.at(number) + HEARTBEAT)

    def note_start(self, int number, uint64_t pid, uint64_t now_ms) -> None:
        """Records the start of a process, its pid and the time."""
        cdef uint64_t* line = self.at(number)
        sb_store(line + PID, pid)
        sb_store(line + STARTED, now_ms)
        sb_store(line + STARTS, sb_load(line + STARTS) + 1)

    def note_pid(self, int number, uint64_t pid) -> None:
        """Records which process fills the place from now on; its start is recorded later."""
        sb_store(self.at(number) + PID, pid)

    def life(self, int number) -> tuple[int, int, int]:
        """Returns (pid, Unix ms of the start, number of starts) of the process last started with this number."""
        cdef uint64_t* line = self.at(number)
        return sb_load(line + PID), sb_load(line + STARTED), sb_load(line + STARTS)

    cdef const uint64_t* settings_word(self, int number) except NULL:
        return self.at(number) + SETTINGS_WANTED

    def settings_wanted(self, int number) -> int:
        """Returns the newest generation of the settings that reaches process `number`."""
        return sb_load(self.at(number) + SETTINGS_WANTED)

    def settings_applied(self, int number) -> int:
        """Returns the newest generation of the settings that process `number` has acknowledged."""
        return sb_load(self.at(number) + SETTINGS_APPLIED)

    def want_settings(self, int number, uint64_t generation) -> None:
        """Sets the generation that process `number` has to load; for the manager alone."""
        sb_store(self.at(number) + SETTINGS_WANTED, generation)

    def acknowledge_settings(self, int number, uint64_t generation) -> None:
        """Sets the generation that process `number` has applied; for that process alone."""
        sb_store(self.at(number) + SETTINGS_APPLIED, generation)

    def of(self, int number) -> dict:
        """Returns the counters of one process by dotted name."""
        cdef uint64_t* values = <uint64_t*>(<uint8_t*>self.at(number) + LINE)
        return {name: <int64_t>values[i] for i, name in enumerate(NAMES)}

    def totals(self) -> dict:
        """Returns the counters summed over all processes, by dotted name."""
        cdef list sums = [0] * <int>COUNTER_MAX
        cdef uint64_t* values
        cdef int number, i
        for number in range(self.slots):
            values = <uint64_t*>(<uint8_t*>self.at(number) + LINE)
            for i in range(COUNTER_MAX):
                sums[i] += <int64_t>values[i]
        return dict(zip(NAMES, sums, strict=True))

    def buckets(self, str name not None) -> list[tuple[int, int]]:
        """Returns the histogram `name` over all processes: (greatest value, count) of each bucket in use, ascending."""
        sums = self.bucket_sums(name)
        return [(bucket_range(index)[1], count) for index, count in enumerate(sums[:HISTOGRAM_BUCKETS]) if count]

    def percentiles(self, str name not None, fractions=(0.5, 0.9, 0.99, 0.999)) -> dict[float, int]:
        """Returns for each fraction a value that at least this fraction of all values does not exceed; empty without values.

        The value is the greatest of its bucket, so up to 12.5 % above the exact one.
        """
        buckets = self.buckets(name)
        total = sum(count for _, count in buckets)
        found = {}
        for fraction in sorted(fractions) if total else ():
            passed = 0
            for greatest, count in buckets:                # no-cython-lint: read behind the loop
                passed += count
                if passed >= fraction * total:
                    break
            found[fraction] = greatest
        return found

    def recorded(self, int number, str name not None) -> int:
        """Returns how often process `number` has recorded a value of the histogram `name`."""
        cdef uint64_t* words = self.histogram_words(number, HISTOGRAMS.index(name))
        cdef uint64_t sum = 0
        cdef int i
        for i in range(<int>HISTOGRAM_BUCKETS):
            sum += words[i]
        return sum

    def mean(self, str name not None) -> float:
        """Returns the exact mean of all values of the histogram `name`; 0.0 without values."""
        sums = self.bucket_sums(name)
        count = sum(sums[:HISTOGRAM_BUCKETS])
        return sums[HISTOGRAM_SUM] / count if count else 0.0

    cdef list bucket_sums(self, str name):
        cdef list sums = [0] * (<int>HISTOGRAM_SUM + 1)
        cdef int which = HISTOGRAMS.index(name), number, i
        cdef uint64_t* words
        for number in range(self.slots):
            words = self.histogram_words(number, which)
            for i in range(<int>HISTOGRAM_SUM + 1):
                if words[i]:
                    sums[i] += words[i]
        return sums

    def want_connected(self, bint wanted, uint64_t epoch) -> None:
        """Records whether the manager needs the events of connects, as of this epoch of `$SYS`.

        Events of disconnects are always sent.
        """
        sb_store(<uint64_t*>self.base + WANTED, wanted)
        sb_store(<uint64_t*>self.base + WANTED_EPOCH, epoch)

    cdef bint connected_wanted(self, uint64_t epoch) noexcept:
        """Also true if the epoch has moved since: a new subscriber to these events misses none."""
        return sb_load(<uint64_t*>self.base + WANTED_EPOCH) != epoch or sb_load(<uint64_t*>self.base + WANTED) != 0

    def access_changed(self, bint rules=False) -> None:
        """Announces changed users and bans, or changed rules: every process checks them again within a moment."""
        sb_add(<uint64_t*>self.base + ACCESS, (<uint64_t>1 << 32) if rules else 1)

    cdef uint64_t access_generation_c(self) noexcept:
        return sb_load(<uint64_t*>self.base + ACCESS)

    @property
    def access_generation(self) -> int:
        """Returns the changes so far: of rules in the upper 32 bits, of users and bans in the lower."""
        return self.access_generation_c()

    @property
    def serving(self) -> bool:
        """Returns whether every process of the broker has been ready; the supervisor records that by `serve`."""
        return sb_load(<uint64_t*>self.base + SERVING) != 0

    def serve(self) -> None:
        sb_store(<uint64_t*>self.base + SERVING, 1)

    def bucket(self, int number, double rate) -> SharedBucket:
        """Returns shared bucket `number` with this rate per second. Raises IndexError."""
        cdef SharedBucket bucket = SharedBucket.__new__(SharedBucket)
        if not 0 <= number < BUCKETS_MAX:
            raise IndexError(f"bucket {number}, there are {<int>BUCKETS_MAX}")
        bucket.empty_at = <uint64_t*>(self.base + BUCKETS_AT) + number
        bucket.each_ns = 1e9 / rate
        bucket.owner = self.mapping
        return bucket

    def unlink(self) -> None:
        """Removes the name of the segment."""
        segment.unlink(self.name)
