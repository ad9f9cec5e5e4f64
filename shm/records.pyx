"""Ring records; see records.pxd for the layout."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import time

__all__ = [
    "ANSWER", "COMMAND", "DAMAGE", "EVENT", "NOTE", "TRACE", "encode_note", "encode_publish", "encode_record", "encode_spilled",
    "note_of", "open_record",
]

EVENT = int(RECORD_EVENT)
COMMAND = int(RECORD_COMMAND)
ANSWER = int(RECORD_ANSWER)
NOTE = int(RECORD_NOTE)
TRACE = int(RECORD_TRACE)
"""Kinds of records for Python processes."""

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
                   int payload_format=0, int expires_ms=0, bytes client_id=b"", bint originate=True) -> bytes:
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
