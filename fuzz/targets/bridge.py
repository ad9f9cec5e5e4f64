"""shardbroker/flows/bridge/records.pyx: a frame of another broker is refused whole, or each of its messages goes into a lane."""

import os
import struct
from collections.abc import Iterable

from fuzz.engine import exact
from shardbroker.cluster.faults import PeerFault
from shardbroker.flows.bridge.records import BRIDGED, Records
from shardbroker.journal.schema import Kind, encode
from shm.records import open_record
from shm.ring import Inbox

MAX_LEN = 400
LANE_BYTES = 65536
ITEM = struct.Struct("<IIQ")
"""In front of a record: its size, 0, the position behind it."""
SITE = b"0123456789abcdef"
LAST = 1 << 40
_inbox = Inbox.create(f"shardbroker-fuzz-bridge-{os.getpid()}", 1, LANE_BYTES)
_inbox.unlink()


def _message(topic: bytes, publisher: bytes, properties: bytes = b"") -> bytes:
    values = {"id": bytes(16), "payload": b"payload", "flags": 1, "expires_ms": 0}
    return bytes(encode(Kind.MESSAGE, topic=topic, properties=properties, publisher=publisher, **values))


def seeds() -> Iterable[bytes]:
    first = _message(b"a/b", b"me", b"\x26\0\1a\0\1b")
    yield ITEM.pack(len(first), 0, 1) + first
    second = _message(b"$SYS/a", b"$bridge:fedcba9876543210/" + SITE)
    yield ITEM.pack(len(first), 0, 1) + first + ITEM.pack(len(second), 0, 7) + second


def check(data: bytes) -> None:
    try:
        records = Records(exact(data), 0, LAST, b"far/", SITE, 1, 2, 1000)
    except PeerFault:
        return
    ring = _inbox.lanes[0]
    assert records.failed <= records.count <= len(data) // ITEM.size
    assert records.put(ring, records.count + 1) == records.count
    assert records.is_done
    taken = ring.take_many(records.count + 1)
    assert len(taken) == records.count - records.failed
    for record in taken:
        assert open_record(record)[0] == BRIDGED
    ring.give_back()
