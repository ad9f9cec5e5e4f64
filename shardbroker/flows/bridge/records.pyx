"""Records of journals on their way between brokers.

    body of DATA:   u32 size | u32 0 | u64 position, behind the record | record of the journal (docs/journal-format.md)     ...

The sending side copies the records of messages out of blocks, the receiving side makes records of lanes of them (shm/bridged.pxd).
All that is in a body is from outside: it is checked whole before the first record is put.
"""
import time

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

from shardbroker.journal.cbor cimport CBOR_NULL, MAJOR_ARRAY, MAJOR_BYTES, MAJOR_UINT
from shardbroker.journal.decode cimport MAJOR_MASK, skip_item, take_head
from shardbroker.journal.encode cimport KIND_MESSAGE
from shardbroker.journal.follow cimport Follower
from shardbroker.journal.writer cimport BlockHeaderC
from shardbroker.mqtt.topics cimport is_topic_name, is_utf8
from shm.bridged cimport BridgePlace
from shm.records cimport FLAG_ORIGINATE, FLAG_QOS, FLAG_RETAIN, RECORD_BRIDGED, RecordHeader
from shm.ring cimport Ring

from shardbroker.cluster.faults import ByeReason, PeerFault

__all__ = ["BRIDGED", "FRAME_BYTES", "HOPS_MAX", "PREFIX", "Picked", "Picker", "Records"]

BRIDGED = int(RECORD_BRIDGED)
"""Kind of the records in lanes."""
FRAME_BYTES = 256 << 10
"""Of a body, unless a single record is larger."""
HOPS_MAX = 8
"""Brokers that a message may pass before it ends."""
PREFIX = b"$bridge:"
"""Begin of the publisher of a message that has passed a bridge; the brokers that it has passed follow, the latest first, with / between."""

cdef enum:
    ITEM_BYTES = 16                        # in front of a record
    BLOCK_HEADER_BYTES = 48
    FIELDS = 8                             # kind and fields of a message
    MESSAGE_UTF8 = 0x08                    # of schema.MessageFlag
    MESSAGE_FED = 0x40
    TOPIC_MAX = 65535
    TOPICS_KNOWN = 65536
    SITE_BYTES = 16                        # the id of a broker, hexadecimal
    PREFIX_BYTES = 8
    RESERVED_BYTES = 7                     # the longest begin of a reserved topic: $event/
    HOPS = 8
    FRAME = 256 << 10

cdef struct Parts:
    const uint8_t* topic
    const uint8_t* payload
    const uint8_t* properties
    const uint8_t* publisher
    uint64_t topic_size
    uint64_t payload_size
    uint64_t properties_size
    uint64_t publisher_size
    uint64_t flags
    uint64_t expires_ms


cdef inline const uint8_t* take_bytes(const uint8_t* at, const uint8_t* end, const uint8_t** data, uint64_t* size) noexcept:
    """Reads a byte string or null. Returns its end, or NULL."""
    data[0] = NULL
    size[0] = 0
    if at >= end:
        return NULL
    if at[0] == CBOR_NULL:
        return at + 1
    if at[0] & MAJOR_MASK != MAJOR_BYTES:
        return NULL
    at = take_head(at, end, size)
    if at == NULL or size[0] > <uint64_t>(end - at):
        return NULL
    data[0] = at
    return at + size[0]


cdef inline const uint8_t* take_number(const uint8_t* at, const uint8_t* end, uint64_t* value) noexcept:
    if at >= end or at[0] & MAJOR_MASK != MAJOR_UINT:
        return NULL
    return take_head(at, end, value)


cdef const uint8_t* take_record(const uint8_t* at, const uint8_t* end, Parts* parts, bint* is_message) noexcept:
    """Reads one record. Returns its end, or NULL for what is no record. parts: of a message."""
    cdef uint64_t items = 0, kind = 0, size
    cdef const uint8_t* id
    is_message[0] = False
    if at >= end or at[0] & MAJOR_MASK != MAJOR_ARRAY:
        return NULL
    at = take_head(at, end, &items)
    if at == NULL or items == 0 or items > <uint64_t>(end - at):
        return NULL
    at = take_number(at, end, &kind)
    if at == NULL:
        return NULL
    if kind != KIND_MESSAGE:
        items -= 1
    elif items < FIELDS:
        return NULL
    else:
        is_message[0] = True
        items -= FIELDS
        at = take_bytes(at, end, &id, &size)
        if at != NULL:
            at = take_bytes(at, end, &parts.topic, &parts.topic_size)
        if at != NULL:
            at = take_bytes(at, end, &parts.payload, &parts.payload_size)
        if at != NULL:
            at = take_number(at, end, &parts.flags)
        if at != NULL:
            at = take_number(at, end, &parts.expires_ms)
        if at != NULL:
            at = take_bytes(at, end, &parts.properties, &parts.properties_size)
        if at != NULL:
            at = take_bytes(at, end, &parts.publisher, &parts.publisher_size)
    while items and at != NULL:
        at = skip_item(at, end)
        items -= 1
    return at


cdef bint has_passed(const Parts* parts, bytes site) noexcept:
    """Whether a message has passed a broker."""
    cdef uint64_t at = PREFIX_BYTES
    if parts.publisher_size < PREFIX_BYTES + SITE_BYTES or memcmp(parts.publisher, b"$bridge:", PREFIX_BYTES) != 0:
        return False
    while at + SITE_BYTES <= parts.publisher_size:
        if memcmp(parts.publisher + at, PyBytes_AS_STRING(site), SITE_BYTES) == 0:
            return True
        at += SITE_BYTES + 1
    return False


cdef class Picked:
    """The body of a frame. position: behind all that it covers."""
    cdef readonly bytes body
    cdef readonly uint64_t position
    cdef readonly uint32_t count

    @staticmethod
    cdef Picked made(const uint8_t* data, size_t size, uint64_t position, uint32_t count):
        cdef Picked picked = Picked.__new__(Picked)
        picked.body = PyBytes_FromStringAndSize(<const char*>data, <Py_ssize_t>size)
        picked.position = position
        picked.count = count
        return picked


cdef class Picker(Follower):
    """Follows a journal, and copies the records of messages whose topic is wanted.

    matches: called once for each topic. far: id of the other broker, 16 bytes: what has passed it does not return.
    """
    cdef dict known
    cdef object matches
    cdef bytes far
    cdef uint8_t* out
    cdef size_t used, room
    cdef uint32_t count
    cdef list frames

    def __init__(self, directory, place, *, matches, bytes far not None):
        if len(far) != SITE_BYTES:
            raise ValueError(f"far: must be {SITE_BYTES} bytes, got {len(far)}")
        super().__init__(directory, place, read_bytes=FRAME)
        self.matches = matches
        self.far = far
        self.known = {}
        self.frames = []

    def __dealloc__(self):
        free(self.out)

    def forget(self, matches) -> None:
        """Looks at topics again, with another function."""
        self.matches = matches
        self.known = {}

    def pick(self) -> tuple[list[Picked], int]:
        """Returns frames of what follows, and the number of records that were lost; see Follower.read(). Raises OSError, JournalError."""
        cdef uint64_t lost = 0
        self.frames = []
        self.used = self.count = 0
        for damage in self.read():
            if damage.lost_to is not None and damage.lost_from is not None:
                lost += damage.lost_to - damage.lost_from
        if self.count:
            self.end_frame(self.position)
        return self.frames, lost

    cdef int end_frame(self, uint64_t position) except -1:
        self.frames.append(Picked.made(self.out, self.used, position, self.count))
        self.used = self.count = 0
        return 0

    cdef bint is_wanted(self, const Parts* parts) except -1:
        cdef bytes topic
        if not parts.flags & MESSAGE_FED:
            return False
        topic = PyBytes_FromStringAndSize(<const char*>parts.topic, <Py_ssize_t>parts.topic_size)
        found = self.known.get(topic)
        if found is None:
            found = not topic.startswith(b"$SYS/") and bool(self.matches(topic))
            if len(self.known) >= TOPICS_KNOWN:
                self.known.clear()
            self.known[topic] = found
        return found is True and not has_passed(parts, self.far)

    cdef list decoded(self, const BlockHeaderC* header):
        """Copies what is wanted; returns no records. None if the block violates the schema."""
        cdef const uint8_t* at = <const uint8_t*>header + BLOCK_HEADER_BYTES
        cdef const uint8_t* end = at + header.length
        cdef const uint8_t* begin
        cdef Parts parts
        cdef bint is_message
        cdef uint64_t sequence
        for sequence in range(header.first_sequence, header.first_sequence + header.count):
            begin = at
            at = take_record(at, end, &parts, &is_message)
            if at == NULL:
                return None
            if is_message and sequence >= self.position and self.is_wanted(&parts):
                if self.used and self.used + ITEM_BYTES + <size_t>(at - begin) > FRAME:
                    self.end_frame(sequence)
                self.copy(begin, <size_t>(at - begin), sequence + 1)
        return [] if at == end else None

    cdef int copy(self, const uint8_t* record, size_t size, uint64_t position) except -1:
        cdef uint32_t head[2]
        cdef size_t wanted = self.used + ITEM_BYTES + size
        if size > <size_t>0x7FFFFFFF:
            raise ValueError(f"record of {size} bytes: must be shorter")
        if wanted > self.room:
            wanted = max(wanted, <size_t>FRAME + 4096)
            memory = realloc(self.out, wanted)
            if memory == NULL:
                raise MemoryError(f"no memory for {wanted} bytes of a frame")
            self.out = <uint8_t*>memory
            self.room = wanted
        head[0] = <uint32_t>size
        head[1] = 0
        memcpy(self.out + self.used, head, 8)
        memcpy(self.out + self.used + 8, &position, 8)
        memcpy(self.out + self.used + ITEM_BYTES, record, size)
        self.used += ITEM_BYTES + size
        self.count += 1
        return 0


cdef class Records:
    """The records of one frame, checked, on their way into a lane. Raises PeerFault for what no broker sends.

    after, position: bounds of the positions. prefix: of topics here. site: id of the sender. payload_max: bytes. Messages that are
    not possible here (too large, reserved topics, too many hops) are counted in `failed`, and left out.
    """
    cdef bytes body, prefix, site
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef BridgePlace place
    cdef uint64_t payload_max
    cdef readonly uint32_t count, failed

    def __init__(self, bytes body not None, uint64_t after, uint64_t position, bytes prefix not None, bytes site not None,
                 uint32_t origin, uint64_t identity, uint64_t payload_max):
        cdef Parts parts
        cdef const uint8_t* at
        cdef uint64_t found
        if len(site) != SITE_BYTES:
            raise ValueError(f"site: must be {SITE_BYTES} bytes, got {len(site)}")
        if prefix and not is_topic_name(<const uint8_t*>PyBytes_AS_STRING(prefix), <uint32_t>PyBytes_GET_SIZE(prefix), 0):
            fault("topic prefix: must be the begin of a topic name")
        self.body, self.prefix, self.site = body, prefix, site
        self.at = at = <const uint8_t*>PyBytes_AS_STRING(body)
        self.end = at + PyBytes_GET_SIZE(body)
        self.place.origin, self.place.zero, self.place.identity = origin | <uint32_t>0x80000000, 0, identity
        self.payload_max = payload_max
        while at < self.end:
            at = self.checked(at, &parts, &found)
            if found <= after or found > position:
                fault(f"position: must be above {after} and up to {position}, got {found}")
            after = found
            self.count += 1
            self.failed += not self.is_possible(&parts)

    cdef const uint8_t* checked(self, const uint8_t* at, Parts* parts, uint64_t* position) except NULL:
        """Returns the end of the record at `at`."""
        cdef const uint8_t* end
        cdef uint32_t size
        cdef bint is_message
        if self.end - at < ITEM_BYTES:
            fault(f"{self.end - at} bytes behind the last record")
        memcpy(&size, at, 4)
        memcpy(position, at + 8, 8)
        if size > <uint64_t>(self.end - at - ITEM_BYTES):
            fault(f"a record of {size} bytes, {self.end - at - ITEM_BYTES} are left")
        end = at + ITEM_BYTES + size
        if take_record(at + ITEM_BYTES, end, parts, &is_message) != end or not is_message:
            fault("a record must be a whole message")
        if parts.flags & FLAG_QOS == 3 or not is_topic_name(parts.topic, <uint32_t>min(parts.topic_size, <uint64_t>TOPIC_MAX + 1), 0):
            fault("a message must have QoS 0, 1 or 2, and a topic name")
        if parts.properties_size and not are_properties(parts.properties, parts.properties_size):
            fault("properties must be those of a PUBLISH")
        if parts.publisher_size > TOPIC_MAX or parts.payload_size > <uint64_t>0x7FFFFFFF:
            fault("a client id must have up to 65535 bytes")
        return end

    cdef bint is_reserved(self, const Parts* parts) noexcept:
        """Whether the topic here, with the prefix, is one that only the broker itself publishes to."""
        cdef uint8_t begin[RESERVED_BYTES]
        cdef uint64_t prefix = min(<uint64_t>PyBytes_GET_SIZE(self.prefix), <uint64_t>RESERVED_BYTES)
        cdef uint64_t rest = min(parts.topic_size, RESERVED_BYTES - prefix)
        put(put(begin, <const uint8_t*>PyBytes_AS_STRING(self.prefix), prefix), parts.topic, rest)
        return starts(begin, prefix + rest, b"$SYS/", 5) or starts(begin, prefix + rest, b"$event/", 7)

    cdef bint is_possible(self, const Parts* parts) noexcept:
        return (
            not self.is_reserved(parts) and parts.payload_size <= self.payload_max and PyBytes_GET_SIZE(self.prefix) + parts.topic_size <= TOPIC_MAX
            and not has_passed(parts, self.site)
            and (not starts(parts.publisher, parts.publisher_size, b"$bridge:", PREFIX_BYTES)
                 or parts.publisher_size < PREFIX_BYTES + (HOPS - 1) * (SITE_BYTES + 1)))

    def put(self, Ring ring not None, int most) -> int:
        """Puts records into a lane, at most so many or until it is full; returns how many. See `is_done` and `large`."""
        cdef Parts parts
        cdef const uint8_t* end
        cdef uint8_t* target
        cdef uint64_t position, size
        cdef uint32_t now_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
        cdef int done = 0
        while self.at < self.end and done < most:
            end = self.checked(self.at, &parts, &position)
            if self.is_possible(&parts):
                size = self.size_of(&parts)
                if size > ring.max_record():
                    break
                target = ring.reserve(<uint32_t>size)
                if target == NULL:
                    if not ring.has_room(<uint32_t>size):
                        break
                    target = ring.reserve(<uint32_t>size)
                    if target == NULL:
                        break
                self.write(target, &parts, position, now_us)
            self.at = end
            done += 1
        if done:
            ring.commit()
        return done

    def large(self, Ring ring not None) -> bytes | None:
        """Returns the next record if it is too large for a lane; skip() leaves it out once it is in a file."""
        cdef Parts parts
        cdef uint64_t position
        cdef bytes record
        if self.at >= self.end:
            return None
        self.checked(self.at, &parts, &position)
        if not self.is_possible(&parts) or self.size_of(&parts) <= ring.max_record():
            return None
        record = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>self.size_of(&parts))
        self.write(<uint8_t*>PyBytes_AS_STRING(record), &parts, position, <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF))
        return record

    def skip(self) -> None:
        """Leaves out the next record."""
        cdef Parts parts
        cdef uint64_t position
        self.at = self.checked(self.at, &parts, &position)

    @property
    def is_done(self) -> bool:
        """Whether all records are in the lane."""
        return self.at >= self.end

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return len(self.body)

    cdef uint64_t hops_size(self, const Parts* parts) noexcept:
        """Bytes behind the sender's id in the publisher: / and the brokers before it."""
        if starts(parts.publisher, parts.publisher_size, b"$bridge:", PREFIX_BYTES):
            return parts.publisher_size - PREFIX_BYTES + 1
        return 0

    cdef uint64_t size_of(self, const Parts* parts) noexcept:
        return (
            sizeof(RecordHeader) + PyBytes_GET_SIZE(self.prefix) + parts.topic_size + parts.properties_size + PREFIX_BYTES + SITE_BYTES
            + self.hops_size(parts) + sizeof(BridgePlace) + parts.payload_size)

    cdef void write(self, uint8_t* target, const Parts* parts, uint64_t position, uint32_t now_us) noexcept:
        cdef RecordHeader header
        cdef uint64_t hops = self.hops_size(parts)
        memset(&header, 0, sizeof(header))
        header.kind = RECORD_BRIDGED
        header.flags = <uint8_t>(parts.flags & (FLAG_QOS | FLAG_RETAIN)) | FLAG_ORIGINATE
        header.payload_format = (parts.flags & MESSAGE_UTF8) != 0
        header.topic_size = <uint32_t>(PyBytes_GET_SIZE(self.prefix) + parts.topic_size)
        header.properties_size = <uint32_t>parts.properties_size
        header.client_size = <uint32_t>(PREFIX_BYTES + SITE_BYTES + hops)
        header.group_size = sizeof(BridgePlace)
        header.payload_size = <uint32_t>parts.payload_size
        header.sent_us = now_us
        header.expires_ms = parts.expires_ms
        header.member = position
        target = put(target, <const uint8_t*>&header, sizeof(header))
        target = put(target, <const uint8_t*>PyBytes_AS_STRING(self.prefix), PyBytes_GET_SIZE(self.prefix))
        target = put(target, parts.topic, parts.topic_size)
        target = put(target, parts.properties, parts.properties_size)
        target = put(target, <const uint8_t*>b"$bridge:", PREFIX_BYTES)
        target = put(target, <const uint8_t*>PyBytes_AS_STRING(self.site), SITE_BYTES)
        if hops:
            target[0] = 47                 # /
            target = put(target + 1, parts.publisher + PREFIX_BYTES, hops - 1)
        target = put(target, <const uint8_t*>&self.place, sizeof(BridgePlace))
        put(target, parts.payload, parts.payload_size)


cdef inline uint8_t* put(uint8_t* target, const uint8_t* data, uint64_t size) noexcept:
    if size:
        memcpy(target, data, size)
    return target + size


cdef inline bint starts(const uint8_t* text, uint64_t size, const char* begin, uint64_t begin_size) noexcept:
    return size >= begin_size and memcmp(text, begin, begin_size) == 0


cdef const uint8_t* pass_block(const uint8_t* at, const uint8_t* end, bint is_text) noexcept:
    """Returns the end of a string or binary data with its length in front (MQTT 5.0 §1.5.4, §1.5.6), or NULL."""
    cdef uint64_t size
    if end - at < 2:
        return NULL
    size = <uint64_t>at[0] << 8 | at[1]
    if size > <uint64_t>(end - at - 2) or (is_text and not is_utf8(at + 2, <uint32_t>size)):
        return NULL
    return at + 2 + size


cdef bint are_properties(const uint8_t* at, uint64_t size) noexcept:
    """Whether these are properties that a PUBLISH passes on (MQTT 5.0 §3.3.2.3)."""
    cdef const uint8_t* end = at + size
    cdef uint8_t number
    while at != NULL and at < end:
        number = at[0]
        if number == 0x26:                 # User Property
            at = pass_block(at + 1, end, True)
            if at != NULL:
                at = pass_block(at, end, True)
        elif number == 0x03 or number == 0x08:         # Content Type, Response Topic
            at = pass_block(at + 1, end, True)
        elif number == 0x09:               # Correlation Data
            at = pass_block(at + 1, end, False)
        else:
            return False
    return at != NULL


cdef int fault(str text) except -1:
    raise PeerFault(ByeReason.PROTOCOL_ERROR, f"DATA: {text}")
