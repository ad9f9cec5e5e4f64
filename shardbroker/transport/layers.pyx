"""The layers of a connection; see layers.pxd."""
from libc.string cimport memcpy

from shardbroker.transport.tls cimport iovec

from shardbroker.transport.websocket import WebSocketError, close_code_of

__all__ = ["Layers"]


cdef class Layers:
    """Made from `extra`, the acceptor's knowledge of the connection (acceptor/opening.py); the keys are removed from it."""

    def __init__(self, dict extra not None):
        if "tls" in extra:
            self.records = Records.unpack(extra.pop("tls"))    # the only copy of the keys
        if "websocket" in extra:
            self.framing = Framing(extra["websocket"])

    cdef size_t before(self) noexcept:
        return 0 if self.records is None else self.records.partial_size

    cdef ssize_t receive(self, uint8_t* data, size_t size, bint opened) except -1:
        cdef ssize_t plain = <ssize_t>size
        if self.records is not None and not opened:
            if self.records.partial_size:
                memcpy(data, self.records.partial, self.records.partial_size)
            plain = self.records.receive(data, size)
        if self.framing is None or not plain:
            return plain
        try:
            return self.framing.receive(data, <size_t>plain)
        except WebSocketError as error:
            self.framing.close(error.code)
            raise

    cdef ssize_t transmit(self, int fd, const uint8_t* data, size_t size) noexcept:
        cdef iovec part
        if self.framing is not None:
            return self.framing.transmit(fd, self.records, data, size)
        part.iov_base = <void*>data
        part.iov_len = size
        return self.records.send(fd, &part, 1)

    cdef bint waiting(self) noexcept:
        return (self.framing is not None and self.framing.waiting()) or (self.records is not None and self.records.waiting())

    cdef str end(self):
        if self.framing is not None and self.framing.close_code:
            if self.framing.frame_left:
                self.framing.answers.clear()   # a frame cannot be interrupted by a control frame
            return f"closed by the peer, WebSocket code {self.framing.close_code}"
        return None if self.records is None or not self.records.ended else "closed by the peer"

    cdef bint close(self, int reason_code) except -1:
        if self.records is not None and self.records.closed:
            return False
        if self.framing is not None and not self.framing.close_sent:
            self.framing.close(close_code_of(reason_code))
            return True
        if self.records is not None:
            self.records.close()
        return self.records is not None

    def image(self) -> list:
        """Returns the state for `from_image` in another process. These layers must not be used afterwards."""
        return [None if self.records is None else self.records.image(), None if self.framing is None else self.framing.image()]

    @staticmethod
    def from_image(list image not None) -> Layers:
        """Raises ValueError, TypeError."""
        cdef Layers layers = Layers.__new__(Layers)
        records, framing = image
        layers.records = None if records is None else Records.from_image(records)
        layers.framing = None if framing is None else Framing.from_image(framing)
        return layers
