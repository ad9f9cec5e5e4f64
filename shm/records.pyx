"""Ring records; see records.pxd for the layout."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset, strlen

import time

cdef enum:
    USER_PROPERTY = 0x26                   # identifier, MQTT 5.0 §2.2.2.2
    JOURNAL_UTF8 = 0x08                    # of the flags of a message in a journal (journal/schema.py)

__all__ = [
    "ANSWER", "COMMAND", "DAMAGE", "EVENT", "FED", "FOUND_END", "FOUND_MESSAGE", "FOUND_NONE_RETAINED", "FOUND_PAGE_END",
    "FOUND_RETAINED", "NOTE", "PUBLISH", "REPLAY", "TRACE", "encode_event", "encode_found", "encode_note", "encode_publish",
    "encode_record", "encode_replay", "encode_replay_place", "encode_spilled", "note_of", "open_record",
]

EVENT = int(RECORD_EVENT)
COMMAND = int(RECORD_COMMAND)
ANSWER = int(RECORD_ANSWER)
NOTE = int(RECORD_NOTE)
TRACE = int(RECORD_TRACE)
REPLAY = int(RECORD_REPLAY)
PUBLISH = int(RECORD_PUBLISH)
FED = int(RECORD_FED)
"""Kinds of records for Python processes."""
FOUND_MESSAGE = int(IS_MESSAGE)
FOUND_RETAINED = int(IS_RETAINED)
FOUND_NONE_RETAINED = int(IS_NO_RETAINED)
FOUND_PAGE_END = int(IS_PAGE_END)
FOUND_END = int(IS_END)
"""Kinds of what a look-up in a database has found."""

DAMAGE = "damage"
"""Level of a note about damaged files, which is an error and an alarm."""


cdef uint64_t record_size(const RecordHeader* header) noexcept:
    return (
        sizeof(RecordHeader) + <uint64_t>header.topic_size + header.properties_size + header.client_size
        + header.group_size + header.filter_size + header.payload_size
    )


cdef int check_record(const uint8_t* record, uint64_t size) except -1:
    if size < sizeof(RecordHeader) or record_size(<const RecordHeader*>record) != size:
        raise ValueError(f"record of {size} bytes: its header must say so")
    return 0


def encode_publish(bytes topic not None, bytes payload not None, *, int qos=0, bint retain=False, bytes properties=b"",
                   int payload_format=0, uint64_t expires_ms=0, bytes client_id=b"", bint originate=True) -> bytes:
    """Returns a record by which a process without clients (the manager) publishes through a worker.

    The worker that reads the record retains and routes it like a PUBLISH of its own clients. Without `originate` it only delivers
    to its own subscribers.
    """
    cdef RecordHeader header
    memset(&header, 0, sizeof(header))
    header.kind = RECORD_PUBLISH
    header.flags = <uint8_t>((qos & FLAG_QOS) | (FLAG_RETAIN if retain else 0) | (FLAG_ORIGINATE if originate else 0))
    header.payload_format = <uint8_t>payload_format
    header.topic_size = <uint32_t>PyBytes_GET_SIZE(topic)
    header.properties_size = <uint32_t>PyBytes_GET_SIZE(properties)
    header.client_size = <uint32_t>PyBytes_GET_SIZE(client_id)
    header.payload_size = <uint32_t>PyBytes_GET_SIZE(payload)
    header.expires_ms = <uint64_t>expires_ms
    header.sent_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
    return PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + topic + properties + client_id + payload


def encode_event(bytes event not None, bytes columns not None) -> bytes:
    """Returns a record by which a process flows has an event of a source journalled for rules. columns: CBOR, a map of names to
    values."""
    cdef RecordHeader header
    memset(&header, 0, sizeof(header))
    header.kind = RECORD_FED
    header.topic_size = <uint32_t>PyBytes_GET_SIZE(event)
    header.payload_size = <uint32_t>PyBytes_GET_SIZE(columns)
    header.sent_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
    return PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + event + columns


def encode_replay(uint64_t number, uint32_t journal, uint64_t incarnation, tuple record not None) -> bytes:
    """Returns a record with a message of a journal for a replay. record: of journal/follow.pyx, with the fields of MESSAGE.
    incarnation: of its segment; 0: not known.

    The user properties `published_at` (Unix ms) and `position` (journal/sequence) are added.
    """
    cdef RecordHeader header
    cdef ReplayPlace place
    cdef bytes id = record[2], topic = record[3], payload = record[4], properties = record[7] or b"", client_id = record[8] or b""
    cdef const uint8_t* digits = <const uint8_t*>PyBytes_AS_STRING(id)
    cdef uint64_t sequence = record[0], high = 0, low = 0
    cdef uint32_t flags = record[5]
    cdef int i
    cdef char text[48]
    cdef char more[128]
    cdef char* at = more
    if PyBytes_GET_SIZE(id) != 16:
        raise ValueError(f"id: must be 16 bytes, got {len(id)}")
    for i in range(8):
        high = high << 8 | digits[i]
        low = low << 8 | digits[8 + i]
    at = put_pair(at, b"published_at", text, snprintf(text, sizeof(text), b"%llu", <unsigned long long>(high // 1000)))
    at = put_pair(at, b"position", text, snprintf(text, sizeof(text), b"%u/%llu", journal, <unsigned long long>sequence))
    memset(&header, 0, sizeof(header))
    header.kind = RECORD_REPLAY
    header.flags = <uint8_t>(flags & (FLAG_QOS | FLAG_RETAIN))
    header.payload_format = (flags & JOURNAL_UTF8) != 0
    header.topic_size = <uint32_t>PyBytes_GET_SIZE(topic)
    header.properties_size = <uint32_t>(PyBytes_GET_SIZE(properties) + (at - more))
    header.client_size = <uint32_t>PyBytes_GET_SIZE(client_id)
    header.group_size = sizeof(place)
    header.payload_size = <uint32_t>PyBytes_GET_SIZE(payload)
    header.sent_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
    header.id_high = high
    header.id_low = low
    header.expires_ms = record[6]
    header.member = number
    place.journal, place.over, place.position, place.incarnation = journal, 0, sequence + 1, incarnation
    return (PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + topic + properties + PyBytes_FromStringAndSize(more, at - more)
            + client_id + PyBytes_FromStringAndSize(<char*>&place, sizeof(place)) + payload)


cdef char* put_pair(char* at, const char* name, const char* value, int size) noexcept:
    """Appends a User Property (MQTT 5.0 §2.2.2.2)."""
    cdef size_t length = strlen(name)
    at[0], at[1], at[2] = USER_PROPERTY, 0, <char>length
    memcpy(at + 3, name, length)
    at += 3 + length
    at[0], at[1] = 0, <char>size
    memcpy(at + 2, value, <size_t>size)
    return at + 2 + size


def encode_replay_place(uint64_t number, uint32_t journal, uint64_t position, uint64_t incarnation=0, bint over=False) -> bytes:
    """Returns a record that says how far a replay is in a journal, without a message."""
    cdef RecordHeader header
    cdef ReplayPlace place
    memset(&header, 0, sizeof(header))
    header.kind = RECORD_REPLAY
    header.group_size = sizeof(place)
    header.member = number
    header.sent_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
    place.journal, place.over, place.position, place.incarnation = journal, over, position, incarnation
    return PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + PyBytes_FromStringAndSize(<char*>&place, sizeof(place))


def encode_found(uint64_t number, int kind, bytes id not None=bytes(16), bytes topic not None=b"", bytes payload not None=b"", int qos=0,
                 bytes client_id not None=b"") -> bytes:
    """Returns a record for a look-up: a message, or without a topic what the kind says. id: 16 bytes."""
    cdef RecordHeader header
    cdef ReplayPlace place
    cdef const uint8_t* digits = <const uint8_t*>PyBytes_AS_STRING(id)
    cdef uint64_t high = 0, low = 0
    cdef int i
    if PyBytes_GET_SIZE(id) != 16:
        raise ValueError(f"id: must be 16 bytes, got {len(id)}")
    for i in range(8):
        high = high << 8 | digits[i]
        low = low << 8 | digits[8 + i]
    memset(&header, 0, sizeof(header))
    header.kind = RECORD_REPLAY
    header.flags = <uint8_t>(qos & FLAG_QOS)
    header.topic_size = <uint32_t>PyBytes_GET_SIZE(topic)
    header.client_size = <uint32_t>PyBytes_GET_SIZE(client_id)
    header.group_size = sizeof(place)
    header.payload_size = <uint32_t>PyBytes_GET_SIZE(payload)
    header.sent_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
    header.id_high = high
    header.id_low = low
    header.member = number
    place.journal, place.over, place.position, place.incarnation = kind, 0, high, low
    return (PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + topic + client_id
            + PyBytes_FromStringAndSize(<char*>&place, sizeof(place)) + payload)


def encode_note(str level not None, str text not None) -> bytes:
    """Returns a record that makes the manager write a line to its log; `level` as in shardbroker.logs.log."""
    cdef RecordHeader header
    cdef bytes topic = level.encode(), payload = text.encode(errors="replace")
    memset(&header, 0, sizeof(header))
    header.kind = RECORD_NOTE
    header.topic_size = <uint32_t>PyBytes_GET_SIZE(topic)
    header.payload_size = <uint32_t>PyBytes_GET_SIZE(payload)
    return PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + topic + payload


def note_of(bytes record not None) -> tuple[str, str]:
    """Returns (level, text) of a note, after open_record() has returned its kind."""
    cdef RecordHeader header
    cdef Py_ssize_t start = sizeof(header)
    memcpy(&header, PyBytes_AS_STRING(record), start)
    return record[start:start + header.topic_size].decode(), record[start + header.topic_size:].decode(errors="replace")


def encode_record(int kind, bytes payload not None) -> bytes:
    """Returns a record with a payload only: a command, or its answer."""
    cdef RecordHeader header
    memset(&header, 0, sizeof(header))
    header.kind = <uint8_t>kind
    header.payload_size = <uint32_t>PyBytes_GET_SIZE(payload)
    header.sent_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
    return PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + payload


def encode_spilled(int kind, bytes name not None) -> bytes:
    """Returns a record that refers to the whole one in a file of the spill directory."""
    cdef RecordHeader header
    memset(&header, 0, sizeof(header))
    header.kind = <uint8_t>kind
    header.flags = FLAG_SPILLED
    header.topic_size = <uint32_t>PyBytes_GET_SIZE(name)
    header.sent_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
    return PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + name


def open_record(bytes record not None) -> tuple[int, bytes, bytes]:
    """Returns (kind, name of the file with the whole record or b"", payload). Raises ValueError for a malformed record."""
    cdef RecordHeader header
    if PyBytes_GET_SIZE(record) < <Py_ssize_t>sizeof(header):
        raise ValueError(f"{len(record)} bytes, a record has {sizeof(header)} or more")
    memcpy(&header, PyBytes_AS_STRING(record), sizeof(header))
    if record_size(&header) > <uint64_t>PyBytes_GET_SIZE(record):
        raise ValueError(f"{len(record)} bytes, the header of this record says {record_size(&header)}")
    if header.flags & FLAG_SPILLED:
        return header.kind, record[sizeof(header):sizeof(header) + header.topic_size], b""
    return header.kind, b"", record[record_size(&header) - header.payload_size:record_size(&header)]
