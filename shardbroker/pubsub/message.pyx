"""Messages inside the broker; see message.pxd."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyObject_Free, PyObject_Malloc
from libc.string cimport memcpy

import cython

__all__ = ["Message", "Publication"]


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Message:
    """An application message that owns its bytes. 128-bit id as in EMQX: µs 64 | node 16 | process 32 | sequence 16."""

    def __dealloc__(self):
        PyObject_Free(self.block)

    @property
    def topic(self) -> bytes:
        return PyBytes_FromStringAndSize(<char*>self.block, self.topic_size)

    @property
    def properties(self) -> bytes:
        """Returns the encoded properties that are passed on unchanged, without a length in front."""
        return PyBytes_FromStringAndSize(<char*>self.block + self.topic_size, self.properties_size)

    @property
    def payload(self) -> bytes:
        return PyBytes_FromStringAndSize(<char*>self.block + self.topic_size + self.properties_size, self.payload_size)


@cython.final
cdef class Publication:
    """A message on its way through this worker, on borrowed bytes."""

    cdef Message keep(self):
        if self.message is not None:
            return self.message
        cdef Message message = Message.__new__(Message)
        cdef size_t size = <size_t>self.topic_size + self.properties_size + self.payload_size
        message.block = <uint8_t*>PyObject_Malloc(size or 1)   # cheaper than malloc up to 512 bytes
        if message.block == NULL:
            raise MemoryError(f"no memory for a message of {size} bytes")
        memcpy(message.block, self.topic, self.topic_size)
        if self.properties_size:
            memcpy(message.block + self.topic_size, self.properties, self.properties_size)
        if self.payload_size:
            memcpy(message.block + self.topic_size + self.properties_size, self.payload, self.payload_size)
        message.topic_size = self.topic_size
        message.properties_size = self.properties_size
        message.payload_size = self.payload_size
        message.id_high = self.id_high
        message.id_low = self.id_low
        message.expires_ms = self.expires_ms
        message.qos = self.qos
        message.retain = self.retain
        message.payload_format = self.payload_format
        message.logged = self.logged
        message.client_id = self.client_id
        self.message = message
        return message

    cdef void borrow(self, Message message) noexcept:
        cdef const uint8_t* properties = message.block + message.topic_size
        fill(
            self, message.block, message.topic_size, properties, message.properties_size, properties + message.properties_size,
            message.payload_size, message.client_id, message.expires_ms, message.qos, message.retain, message.payload_format)
        self.id_high = message.id_high
        self.id_low = message.id_low
        self.logged = message.logged
        self.message = message

    cdef void release(self) noexcept:
        self.topic = NULL
        self.properties = NULL
        self.payload = NULL
        self.message = None
        self.client_id = None


cdef Message make_message(
    bytes topic, bytes payload, bytes properties, bytes client_id, bytes id, uint64_t expires_ms, uint8_t qos, bint retain,
    uint8_t payload_format, uint32_t logged,
):
    cdef Publication publication = Publication.__new__(Publication)
    fill(
        publication, <const uint8_t*>PyBytes_AS_STRING(topic), <uint32_t>PyBytes_GET_SIZE(topic),
        <const uint8_t*>PyBytes_AS_STRING(properties), <uint32_t>PyBytes_GET_SIZE(properties),
        <const uint8_t*>PyBytes_AS_STRING(payload), <uint32_t>PyBytes_GET_SIZE(payload),
        client_id, expires_ms, qos, retain, payload_format)
    publication.id_high = int.from_bytes(id[:8], "big")
    publication.id_low = int.from_bytes(id[8:], "big")
    publication.logged = logged
    return publication.keep()
