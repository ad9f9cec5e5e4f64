"""Ring records; see records.pxd for the layout."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t
from libc.string cimport memcpy, memset

import time

__all__ = ["encode_publish", "event_payload"]


cdef uint64_t record_size(const RecordHeader* header) noexcept:
    return (
        sizeof(RecordHeader) + <uint64_t>header.topic_size + header.properties_size + header.client_size
        + header.group_size + header.filter_size + header.payload_size
    )


def encode_publish(bytes topic not None, bytes payload not None, *, int qos=0, bint retain=False, bytes properties=b"",
                   int payload_format=0, int expires_ms=0, bytes client_id=b"") -> bytes:
    """A record by which a process without clients of its own (the manager) publishes through a worker.

    The worker that reads it stores it if retained and routes it as if a client had published it there.
    """
    cdef RecordHeader header
    memset(&header, 0, sizeof(header))
    header.kind = RECORD_PUBLISH
    header.flags = <uint8_t>((qos & FLAG_QOS) | (FLAG_RETAIN if retain else 0) | FLAG_ORIGINATE)
    header.payload_format = <uint8_t>payload_format
    header.topic_size = <uint32_t>PyBytes_GET_SIZE(topic)
    header.properties_size = <uint32_t>PyBytes_GET_SIZE(properties)
    header.client_size = <uint32_t>PyBytes_GET_SIZE(client_id)
    header.payload_size = <uint32_t>PyBytes_GET_SIZE(payload)
    header.expires_ms = <uint64_t>expires_ms
    header.sent_us = <uint32_t>(time.monotonic_ns() // 1000 & 0xFFFFFFFF)
    return PyBytes_FromStringAndSize(<char*>&header, sizeof(header)) + topic + properties + client_id + payload


def event_payload(bytes record not None):
    """The payload of a RECORD_EVENT record, or None for a record of another kind."""
    cdef RecordHeader header
    if PyBytes_GET_SIZE(record) < <Py_ssize_t>sizeof(header):
        return None
    memcpy(&header, PyBytes_AS_STRING(record), sizeof(header))
    if header.kind != RECORD_EVENT:
        return None
    return record[sizeof(header) + header.topic_size:]
