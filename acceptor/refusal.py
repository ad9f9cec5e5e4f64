"""Why a connection goes before any worker has seen it."""

__all__ = ["Refused"]


class Refused(Exception):
    """The connection is closed. The text says why, for the log.

    `counter` is its index in shm.counters, `layer` what refused it ("proxy", "tls", "websocket"), `answer` the last bytes for the
    peer, as they are to go over the wire of that layer.
    """

    def __init__(self, text: str, counter: int, layer: str, answer: bytes = b"") -> None:
        super().__init__(text)
        self.counter = counter
        self.layer = layer
        self.answer = answer
