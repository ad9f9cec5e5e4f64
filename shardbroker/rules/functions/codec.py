"""Encodings: base64, JSON, compression, Erlang's terms."""

import base64
import binascii
import zlib

from shardbroker.rules.functions.arguments import MAX_RESULT_BYTES, bounded_size, from_octets, octets, refusal
from shardbroker.rules.functions.table import Function
from shardbroker.rules.functions.terms import decode_term, encode_term
from shardbroker.rules.functions.texts import json_text, json_value
from shardbroker.rules.values import EvaluationError, Value

__all__ = ["FUNCTIONS"]

_RAW, _ZLIB, _GZIP = -zlib.MAX_WBITS, zlib.MAX_WBITS, zlib.MAX_WBITS | 16
"""Containers of compressed data, as zlib's window bits."""

_WHITESPACE = b"\t\n\r "
"""What may lie between the digits of base64."""


def _encode_base64(data: Value) -> str:
    found = octets(data)
    bounded_size(len(found) * 4 // 3)
    return base64.b64encode(found).decode()


def _decode_base64(data: Value) -> Value:
    digits = octets(data).translate(None, _WHITESPACE)
    try:
        return from_octets(base64.b64decode(digits, validate=True))
    except binascii.Error as error:
        raise EvaluationError(f"data: must be base64: {error}") from None


def _compressed(container: int) -> Function:
    def compress(data: Value) -> Value:
        # Not text in UTF-8 as a rule, but it may be.
        made = zlib.compressobj(wbits=container)
        return from_octets(made.compress(octets(data)) + made.flush())

    return Function(compress, (1,))


def _decompressed(container: int) -> Function:
    def decompress(data: Value) -> Value:
        made = zlib.decompressobj(wbits=container)
        try:
            # One byte more than allowed tells a result that is too large; no more than that is ever made.
            found = made.decompress(octets(data), MAX_RESULT_BYTES + 1)
        except zlib.error as error:
            raise EvaluationError(f"data: must be compressed: {error}") from None
        bounded_size(len(found))
        if not made.eof:
            raise EvaluationError("data: must be compressed: it ends too early")
        return from_octets(found)

    return Function(decompress, (1,))


def _decode_json(data: Value) -> Value:
    if not isinstance(data, str | bytes):
        raise refusal("data", "text", data)
    try:
        return json_value(data)
    except ValueError as error:
        raise EvaluationError(f"data: must be JSON: {error}") from None


FUNCTIONS: dict[str, Function] = {
    "base64_decode": Function(_decode_base64, (1,)),
    "base64_encode": Function(_encode_base64, (1,)),
    "gunzip": _decompressed(_GZIP),
    "gzip": _compressed(_GZIP),
    "json_decode": Function(_decode_json, (1,)),
    "json_encode": Function(json_text, (1,)),
    "term_decode": Function(lambda data: decode_term(octets(data)), (1,)),
    "term_encode": Function(lambda value: from_octets(encode_term(value)), (1,)),
    "unzip": _decompressed(_RAW),
    "zip": _compressed(_RAW),
    "zip_compress": _compressed(_ZLIB),
    "zip_uncompress": _decompressed(_ZLIB),
}
