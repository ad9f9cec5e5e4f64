"""Frames between the manager and the process that exports: four bytes of length, a value as CBOR."""

from typing import Any, BinaryIO

import cbor2

__all__ = ["FRAME_MAX", "HEAD_BYTES", "FrameError", "frame_of", "length_in", "read_frame"]

HEAD_BYTES = 4
FRAME_MAX = 64 << 20
"""Most bytes of a frame: as many as the library sends in one request. The figures of 100,000 rules take 40 MB."""


class FrameError(Exception):
    """A frame that is too long, or that ends too early."""


def frame_of(value: Any) -> bytes:
    """Returns a value as a frame. Raises FrameError if it is too long."""
    body = cbor2.dumps(value)
    if len(body) > FRAME_MAX:
        raise FrameError(f"figures of {len(body)} bytes are more than {FRAME_MAX}")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def length_in(head: bytes) -> int:
    """Returns the length of the body behind a head. Raises FrameError if it is too long."""
    length = int.from_bytes(head, "big")
    if length > FRAME_MAX:
        raise FrameError(f"frame of {length} bytes is longer than {FRAME_MAX}")
    return length


def read_frame(stream: BinaryIO) -> Any:
    """Returns the next value; None at the end. Raises FrameError."""
    head = stream.read(HEAD_BYTES)
    if not head:
        return None
    body = stream.read(length_in(head)) if len(head) == HEAD_BYTES else b""
    if len(head) < HEAD_BYTES or len(body) < length_in(head):
        raise FrameError("frame ends too early")
    return cbor2.loads(body)
