"""shm/ring.pyx, shm/records.pyx, shm/events.pyx: records of one process are read by another; malformed ones are refused."""

import contextlib
import os
import struct
from collections import deque
from collections.abc import Iterable

from fuzz.engine import exact
from shardbroker.logs.lines import client_line
from shm.events import EventError, kind_of, unpack_event
from shm.records import NOTE, encode_note, encode_publish, encode_record, encode_spilled, note_of, open_record
from shm.ring import Inbox

MAX_LEN = 400
LANE_BYTES = 65536
HEADER = struct.Struct("<4B6I I 4Q")
"""RecordHeader of shm/records.pxd: kind, flags and two further bytes, six sizes, time, four numbers."""
SPILLED = 16
RECORD, EVENT, RING = range(3)
_inbox = Inbox.create(f"shardbroker-fuzz-{os.getpid()}", 1, LANE_BYTES)
_inbox.unlink()


def seeds() -> Iterable[bytes]:
    for record in (
        encode_publish(b"a/b", b"payload", qos=1, properties=b"\1\1", client_id=b"me"),
        encode_note("info", "text"),
        encode_record(6, b"\xa0"),
        encode_spilled(1, b"0000-1"),
    ):
        yield bytes([RECORD]) + record
    yield bytes([EVENT, 1]) + bytes(80)
    yield bytes([RING]) + bytes([0, 1, 9, 250, 255, 3, 255, 255, 255, 255, 4, 255, 5, 255, 255, 6]) * 5


def check(data: bytes) -> None:
    if data:
        (_check_record, _check_event, _check_ring)[data[0] % 3](exact(data[1:]))


def _check_record(data: bytes) -> None:
    try:
        kind, name, payload = open_record(data)
    except ValueError:
        assert len(data) < HEADER.size or HEADER.size + sum(HEADER.unpack_from(data)[4:10]) > len(data)
        return
    _, flags, _, _, *sizes = HEADER.unpack_from(data)[:10]
    end = HEADER.size + sum(sizes)
    assert end <= len(data), f"a record of {end} bytes was read from {len(data)}"
    if flags & SPILLED:
        assert (name, payload) == (data[HEADER.size : HEADER.size + sizes[0]], b"")
    else:
        assert (name, payload) == (b"", data[end - sizes[5] : end])
        if kind == NOTE:
            with contextlib.suppress(UnicodeDecodeError):
                note_of(data)


def _check_event(data: bytes) -> None:
    with contextlib.suppress(EventError):
        event = unpack_event(data)
        assert event.kind == kind_of(data)
        assert event.client_id in data and event.username in data
        client_line(data)


def _check_ring(data: bytes) -> None:
    """Interprets each byte as a step: a record of some size is added, or some are removed; a queue has the expected result."""
    ring, wanted = _inbox.lanes[0], deque[bytes]()
    for number, step in enumerate(data):
        if step >= 8:
            payload = exact(bytes([number % 256]) * (step * step % 16000))
            if ring.put(payload):
                wanted.append(payload)
            else:
                assert wanted, "an empty ring has no room"
        else:
            taken = ring.take_many(step)
            assert taken == [wanted.popleft() for _ in range(min(step, len(wanted)))]
            ring.give_back()
    assert ring.take_many(len(data) + 1) == list(wanted)
    ring.give_back()
    assert ring.fill() == 0
