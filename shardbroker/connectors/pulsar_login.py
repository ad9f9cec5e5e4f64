"""The login of Pulsar's binary protocol, to find out why one is rejected: the library answers a wrong token by a timeout.

A frame is the size of what follows and the size of its command, 4 bytes each, and the command in Protocol Buffers:

    CONNECT   {1: type 2, 2: {1: client_version, 3: auth_data, 4: protocol_version, 5: auth_method_name}}
    CONNECTED {1: type 3, ...}
    ERROR     {1: type 14, 14: {1: request_id, 2: error, 3: message}}
"""

import struct
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from typing import Final

__all__ = ["PulsarLogin", "log_in"]

VERSION: Final = b"shardbroker"
PROTOCOL: Final = 19
"""Version of the protocol; a server takes any."""
CONNECT, CONNECTED, ERROR = 2, 3, 14
AUTHENTICATION_ERROR: Final = 3
ANSWER_MAX: Final = 65536
"""Most bytes of an answer."""

PulsarLogin = tuple[bytes, bytes]
"""Name of the method and its data; empty ones: no login."""


async def log_in(reader: StreamReader, writer: StreamWriter, login: PulsarLogin) -> bool:
    """Logs in; returns whether the server accepts the login. Raises OSError, EOFError, ValueError for an answer of another kind."""
    method, data = login
    connect = _text(1, VERSION) + (_text(3, data) if method else b"") + _number(4, PROTOCOL) + (_text(5, method) if method else b"")
    command = _number(1, CONNECT) + _text(2, connect)
    writer.write(struct.pack(">II", 4 + len(command), len(command)) + command)
    await writer.drain()
    size, command_size = struct.unpack(">II", await reader.readexactly(8))
    if not 4 <= size <= ANSWER_MAX or command_size > size - 4:
        raise ValueError("an answer of another protocol")
    answer = dict(_fields(await reader.readexactly(size - 4), command_size))
    if answer.get(1) == CONNECTED:
        return True
    error = answer.get(ERROR)
    if answer.get(1) != ERROR or not isinstance(error, bytes):
        raise ValueError("an answer of another protocol")
    return dict(_fields(error, len(error))).get(2) != AUTHENTICATION_ERROR


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _fields(data: bytes, end: int) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field. Raises ValueError."""
    at = 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while at < end and shift < 64:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError("an answer of another protocol")

    while at < end:
        tag = read()
        if tag & 7 == 0:
            yield tag >> 3, read()
        elif tag & 7 == 2:
            size = read()
            yield tag >> 3, data[at : min(at + size, end)]
            at += size
        else:
            raise ValueError("an answer of another protocol")
