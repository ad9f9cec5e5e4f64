"""The layers between MQTT and the socket, for connections with more than TCP: TLS records, WebSocket frames, or frames in records."""
from libc.stdint cimport uint8_t

from shardbroker.transport.tls cimport Records
from shardbroker.transport.websocket cimport Framing


cdef class Layers:
    """The server's side of one connection. Plain TCP connections have none, so that they do not pay for it."""
    cdef Records records                   # None without TLS
    cdef Framing framing                   # None without WebSocket

    # Returns the size of an incomplete record, whose bytes must precede those that are received next.
    cdef size_t before(self) noexcept
    # Turns received bytes into MQTT bytes in place, with room for `before` bytes in front. `opened`: the acceptor has opened the
    # records. Returns the number of MQTT bytes, at `data`. Raises TlsRecordError or WebSocketError; the alert or Close frame for
    # the peer waits to be sent then.
    cdef ssize_t receive(self, uint8_t* data, size_t size, bint opened) except -1
    # Sends like send(2): returns the number of MQTT bytes that are out, or -1 with errno. Bytes of the layers themselves are sent
    # along.
    cdef ssize_t transmit(self, int fd, const uint8_t* data, size_t size) noexcept
    # Returns whether bytes other than MQTT wait to be sent.
    cdef bint waiting(self) noexcept
    # Returns why the peer sends nothing more: a Close frame or close_notify; else None.
    cdef str end(self)
    # Queues the closing message of the next layer, innermost first; returns False once all layers have queued theirs.
    cdef bint close(self, int reason_code) except -1
