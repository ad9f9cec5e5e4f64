"""Cursors: the position in a list, as opaque text."""

import base64
import binascii
from typing import Any

import cbor2

from shardbroker.control import ControlError

__all__ = ["decode_cursor", "encode_cursor"]


def encode_cursor(*parts: Any) -> str:
    """Returns text for decode_cursor()."""
    return base64.urlsafe_b64encode(cbor2.dumps(parts)).rstrip(b"=").decode()


def decode_cursor(text: str, *kinds: type) -> tuple[Any, ...]:
    """Returns the parts of a cursor, one of each kind. Raises ControlError for any other text."""
    try:
        parts = cbor2.loads(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, cbor2.CBORDecodeError):
        parts = None
    if not isinstance(parts, list | tuple) or [type(part) for part in parts] != list(kinds):
        raise ControlError("BAD_REQUEST", "cursor: must be one returned by this list")
    return tuple(parts)
