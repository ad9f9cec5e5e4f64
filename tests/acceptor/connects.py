"""CONNECT packets, and where their client ids go."""

from struct import pack
from zlib import crc32

NAMES = {3: b"MQIsdp", 4: b"MQTT", 5: b"MQTT"}


def varint(value: int) -> bytes:
    out = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        out.append(low | (0x80 if value else 0))
        if not value:
            return bytes(out)


def text(value: bytes) -> bytes:
    return pack(">H", len(value)) + value


def connect(client_id: bytes, version: int = 4, properties: bytes = b"", rest: bytes = b"", bridge: bool = False) -> bytes:
    body = text(NAMES[version]) + bytes([version | (0x80 if bridge else 0), 0x02]) + pack(">H", 60)
    if version == 5:
        body += varint(len(properties)) + properties
    body += text(client_id) + rest
    return b"\x10" + varint(len(body)) + body


def user_property(size: int) -> bytes:
    return b"\x26" + text(b"k") + text(b"v" * size)


def worker_of(client_id: bytes, workers: int) -> int:
    return crc32(client_id) % 1024 % workers


def id_for(worker: int, workers: int, prefix: str = "c") -> bytes:
    return next(name for n in range(10_000) if worker_of(name := f"{prefix}{n}".encode(), workers) == worker)
