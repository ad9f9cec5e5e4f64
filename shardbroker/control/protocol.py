"""Frames of the control channel.

    length u32 big-endian | CBOR map        request   id, verb, params, by (author, for the audit log)
                                            response  id, and one of: item (more follow), result, error [code, text]

A connection carries any number of concurrent requests; a response has the id of its request. Closing the connection cancels the
requests under way.
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
"""Most bytes of a frame; a message to be published is the largest."""
_LENGTH = struct.Struct(">I")


def encode_frame(message: dict[str, Any]) -> bytes:
    """Returns the frame of a message. Raises ControlError if it is larger than FRAME_MAX."""
    body = cbor2.dumps(message)
    if len(body) > FRAME_MAX:
        raise ControlError("BAD_REQUEST", f"message: must have at most {FRAME_MAX} bytes, got {len(body)}")
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Decodes frames from a stream of bytes."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yields the messages that are complete. Raises ControlError for an invalid frame."""
        self._received += data
        while len(self._received) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._received)
            if size > FRAME_MAX:
                raise ControlError("BAD_REQUEST", f"message: must have at most {FRAME_MAX} bytes, got {size}")
            end = _LENGTH.size + size
            if len(self._received) < end:
                return
            body = bytes(self._received[_LENGTH.size : end])
            del self._received[:end]
            try:
                message = cbor2.loads(body)
            except Exception as error:  # cbor2 has no common base class of its errors
                raise ControlError("BAD_REQUEST", f"message: must be CBOR: {error}") from None
            if not isinstance(message, dict):
                raise ControlError("BAD_REQUEST", f"message: must be a map, got {type(message).__name__}")
            yield message


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yields a path of a socket that fits into the 108 bytes of sun_path at any depth; valid inside the context."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
