"""Frames of the control channel.

    length u32 big-endian | CBOR map        request   id, verb, params, by (who asks, for the audit log)
                                            answer    id, and one of: item (more follow), result, error [code, text]

A connection carries any number of requests at a time; answers name the request by its id. Closing it cancels what is under way.
"""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cbor2

from shardbroker.control.errors import ControlError

__all__ = ["FRAME_MAX", "SOCKET_NAME", "Frames", "encode_frame", "short_path"]

SOCKET_NAME = "ctl.sock"
"""In the data directory."""
FRAME_MAX = 64 << 20
"""Bytes of a frame: a message to be published is the largest there is."""
_LENGTH = struct.Struct(">I")


def encode_frame(message: dict[str, Any]) -> bytes:
    """A message as it travels. Raises ControlError if it is larger than FRAME_MAX."""
    body = cbor2.dumps(message)
    if len(body) > FRAME_MAX:
        raise ControlError("BAD_REQUEST", f"{len(body)} bytes in one message, allowed are {FRAME_MAX}")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Messages that are whole now. Raises ControlError for what is none."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if size > FRAME_MAX:
                raise ControlError("BAD_REQUEST", f"a message of {size} bytes, allowed are {FRAME_MAX}")
            end = _LENGTH.size + size
            if len(self._received) < end:
                return
            body = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            try:
                message = cbor2.loads(body)
            except Exception as error:  # cbor2 has no common base for what it raises
                raise ControlError("BAD_REQUEST", f"not CBOR: {error}") from None
            if not isinstance(message, dict):
                raise ControlError("BAD_REQUEST", "a message is a map")
            yield message


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name of a socket that fits into 108 bytes, however deep its directory is; valid inside the context."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
