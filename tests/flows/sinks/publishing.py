"""Publishers with large windows, since those of the harness wait for each acknowledgement."""

import json
import socket
import struct
from collections.abc import Iterable

from tests.flows.kills import connected, packets
from tests.harness import client_id_on

__all__ = ["numbered", "publish_all", "publish_part"]

WINDOW = 1000


def numbered(client: str, numbers: Iterable[int], **more: object) -> list[bytes]:
    """Returns payloads that name their client and have a number."""
    return [json.dumps({"c": client, "n": number, **more}).encode() for number in numbers]


def publish_all(address: tuple[str, int], worker: int, workers: int, payloads: list[bytes], topic: bytes = b"in/a") -> str:
    """Publishes at QoS 1 as one client on a worker; returns its id once all are acknowledged."""
    client_id = client_id_on(worker, workers, f"p{worker}x")
    with connected(address, client_id, clean=True) as link:
        link.settimeout(30)
        for begin in range(0, len(payloads), WINDOW):
            publish_part(link, payloads[begin : begin + WINDOW], topic)
    return client_id


def publish_part(link: socket.socket, payloads: list[bytes], topic: bytes) -> None:
    """Publishes on a connection; returns when all are acknowledged."""
    out = bytearray()
    for packet_id, payload in enumerate(payloads, 1):
        left = 4 + len(topic) + len(payload)
        length = bytes([left]) if left < 128 else bytes([left & 127 | 128, left >> 7])
        out += b"\x32" + length + struct.pack(">H", len(topic)) + topic + struct.pack(">H", packet_id) + payload
    link.sendall(out)
    data, left = bytearray(), len(payloads)
    while left:
        part = link.recv(1 << 16)
        assert part, "the broker has closed the connection"
        data += part
        left -= sum(first == 0x40 for first, _ in packets(data))
