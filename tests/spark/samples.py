"""Journals for the tests of the data source: written by the broker's writer, and read by the broker's reader as the truth."""

import random
from pathlib import Path
from typing import Any

from pyspark_shardbroker.records import KINDS
from shardbroker.journal import Block, open_journal, read
from shardbroker.journal.schema import Kind, Record, encode

START_US = 1_790_000_000_000_000
"""Time of the first pass."""
PASS_US = 1_000
"""Between two passes."""
SHOWN = tuple(kind for kind in Kind if kind in KINDS and kind != Kind.SYNCED)
"""`synced` says what counts after a power cut: test_trust.py has it."""


def message_id(time_us: int, number: int) -> bytes:
    return time_us.to_bytes(8, "big") + number.to_bytes(8, "big")


def write_journal(directory: Path, passes: int = 50, seed: int = 1, segment_bytes: int = 64 << 20, **options: Any) -> None:
    """Sessions that come and go, publish, subscribe and receive; payloads that look like records among them."""
    chance = random.Random(seed)
    writer = open_journal(directory, segment_bytes=segment_bytes, **options)
    named: set[int] = set()
    segment = writer.segment
    number = 0
    for turn in range(passes):
        now = START_US + turn * PASS_US
        for _ in range(chance.randint(1, 30)):
            number += 1
            session = (5 << 52) + chance.randint(1, 9)
            if writer.segment != segment:
                segment, named = writer.segment, set()
            if session not in named:
                named.add(session)
                name = f"client-{session & 15}".encode()
                if chance.random() < 0.5:
                    details = {1: b"10.0.0.1:4711", 2: b"user", 3: 60, 4: b"default", 5: 65535}
                    writer.append(
                        encode(
                            Kind.SESSION_CREATED, session=session, client_id=name, version=5, expiry_ms=7_200_000, details=details
                        )
                    )
                else:
                    writer.append(encode(Kind.SESSION_NAMED, session=session, client_id=name))
            writer.append(some_record(chance, session, message_id(now, number), now))
        writer.seal(now)
    writer.close()


def some_record(chance: random.Random, session: int, id: bytes, now: int) -> bytes:
    topic = f"site/{chance.randint(1, 5)}/device/{chance.randint(1, 99)}".encode()
    kind = chance.choice((Kind.MESSAGE,) * 6 + SHOWN)
    payload = chance.choice(
        (b"21.5", b"", chance.randbytes(300), encode(Kind.SESSION_NAMED, session=session, client_id=b"forged") * 3)
    )
    fields: dict[str, Any] = {
        "session": session, "id": id, "topic": topic, "payload": payload, "flags": chance.choice((0, 1, 2, 0x11, 0x16)),
        "expires_ms": chance.choice((0, now // 1000 + 60_000)), "publisher": b"client-1", "packet_id": chance.randint(1, 65535),
        "properties": chance.choice((b"", b"\x03\x00\x04text\x26\x00\x01a\x00\x01b\x26\x00\x01a\x00\x01c")), "packet": 4,
        "reason": 1, "client_id": f"client-{session & 15}".encode(), "version": 5, "expiry_ms": None, "expires_at_ms": None,
        "filter": b"site/+/device/#", "options": 1, "identifier": 300, "priority": 0, "delay_s": 5, "at_ms": now // 1000,
        "snapshot": b"", "position": 7, "keep_from": 7, "count": 2, "from_us": now, "errno": 28, "rings": 1 << 60, "producer": 2,
        "destination": 1, "record": 1, "member": session, "attempts": 0, "ids": None, "group": None, "details": {1: b"10.0.0.2:1"},
    }  # fmt: skip
    from shardbroker.journal.schema import FIELDS

    return encode(kind, **{name: fields.get(name) for name, _ in FIELDS[kind]})


def expected(directory: Path, start: int = 0) -> list[Record]:
    """What the broker's own reader finds."""
    return [record for item in read(directory, start) if isinstance(item, Block) for record in item.records()]
