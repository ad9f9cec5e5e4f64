"""What lies between MQTT and the socket of a connection that has more than TCP: TLS records, WebSocket frames, or frames in records."""
from libc.stdint cimport uint8_t

from shardbroker.transport.tls cimport Records
from shardbroker.transport.websocket cimport Framing


cdef class Layers:
    """The server's side of one connection. Most connections have none, so that what they cost is paid for by those who need them."""
    cdef Records records                   # None without TLS
    cdef Framing framing                   # None without WebSocket

    # Bytes of a record that was cut short, which are to lie before the ones that are received next.
    cdef size_t before(self) noexcept
    # Turns what came from the socket into MQTT bytes where it stands, behind room for `before` bytes; `opened`: the acceptor has opened its
    # records. Returns how many there are, at `data`. Raises TlsRecordError, WebSocketError; what the peer is told of it waits to be sent.
    cdef ssize_t receive(self, uint8_t* data, size_t size, bint opened) except -1
    # As send(2): returns how many of the MQTT bytes are out, or -1 with errno. What the layers themselves have to say goes along.
    cdef ssize_t transmit(self, int fd, const uint8_t* data, size_t size) noexcept
    # Something waits to be sent that is no MQTT.
    cdef bint waiting(self) noexcept
    # Why nothing more will come: a Close frame, close_notify; else None.
    cdef str end(self)
    # Queues what the next layer says at the end, innermost first; False once all of them have.
    cdef bint close(self, int reason_code) except -1
