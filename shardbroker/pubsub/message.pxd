"""A message inside the broker, in its two states.

`Publication` is a message on its way through one worker. It borrows the bytes of the receive buffer or of a ring; each worker has
one such object and reuses it. `Message` owns its bytes. It is made, once, when the message must be kept (in an inflight window, a
queue or the retained store), and is shared by all of these.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef class Message:
    cdef uint8_t* block                    # topic | properties | payload, one allocation
    cdef uint32_t topic_size, properties_size, payload_size
    cdef uint64_t id_high, id_low          # 128-bit message id
    cdef uint64_t expires_ms               # Unix ms, 0: never
    cdef uint8_t qos
    cdef bint retain
    cdef uint8_t payload_format
    cdef uint32_t logged                   # cycle of this worker's journal in which the message is, see journal/recorder.pxd; 0: not written
    cdef bytes client_id                   # of the publisher


# Makes the owning copy of a message that is given in parts. id: 16 bytes.
cdef Message make_message(
    bytes topic, bytes payload, bytes properties, bytes client_id, bytes id, uint64_t expires_ms, uint8_t qos, bint retain,
    uint8_t payload_format, uint32_t logged,
)


cdef class Publication:
    cdef const uint8_t* topic
    cdef const uint8_t* properties
    cdef const uint8_t* payload
    cdef uint32_t topic_size, properties_size, payload_size
    cdef uint64_t id_high, id_low
    cdef uint64_t expires_ms
    cdef uint8_t qos
    cdef bint retain
    cdef uint8_t payload_format
    cdef uint32_t logged                   # as of a Message
    cdef bint unrepeatable                 # the source would not send the message again: a lost record is lost
    cdef uint8_t answered                  # FLAG_ANSWERED of shm/records.pxd, also with QoS 0, or 0
    cdef bint stored                       # sent because of a subscription: a retained message, or one of a journal
    cdef bytes client_id
    cdef Message message                   # set by keep(), or the message that this publication was made from

    cdef Message keep(self)                # returns the owning copy; made at the first call
    cdef void borrow(self, Message message) noexcept
    cdef void release(self) noexcept       # drops the borrowed bytes


# Takes everything that a source knows of a message as arguments, so that no field keeps the value of the message before. The caller
# sets the id, `message` and `logged`: they depend on whether the message is new here.
cdef inline void fill(
    Publication publication, const uint8_t* topic, uint32_t topic_size, const uint8_t* properties, uint32_t properties_size,
    const uint8_t* payload, uint32_t payload_size, bytes client_id, uint64_t expires_ms, uint8_t qos, bint retain, uint8_t payload_format,
) noexcept:
    publication.topic = topic
    publication.topic_size = topic_size
    publication.properties = properties
    publication.properties_size = properties_size
    publication.payload = payload
    publication.payload_size = payload_size
    publication.client_id = client_id
    publication.expires_ms = expires_ms
    publication.qos = qos
    publication.retain = retain
    publication.payload_format = payload_format
