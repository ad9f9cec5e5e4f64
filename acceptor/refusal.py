"""Refusal of a connection before it has a worker."""

__all__ = ["Refused"]


class Refused(Exception):
    """Closes the connection; the text is the reason for the log.

    `counter` is its index in shm.counters, `layer` the refusing layer ("proxy", "tls", "websocket"), `answer` the last bytes for
    the peer, as sent over the wire of that layer.
    """

    def __init__(self, text: str, counter: int, layer: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.counter = counter
        self.layer = layer
        self.answer = answer
