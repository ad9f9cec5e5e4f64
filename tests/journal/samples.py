"""Journals for tests: records of every kind, written in blocks and segments of known places."""

import random
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st

from shardbroker.journal import Block, Damage, open_journal, read
from shardbroker.journal.schema import FIELDS, Field, Kind, Record, Value, encode

HOT = (
    Kind.MESSAGE, Kind.SESSION_CREATED, Kind.SESSION_RESUMED, Kind.SESSION_SAVED, Kind.SESSION_NAMED, Kind.DISCONNECTED,
    Kind.SESSION_ENDED, Kind.SUBSCRIBED, Kind.UNSUBSCRIBED, Kind.QUEUED, Kind.DELIVERED, Kind.ACKNOWLEDGED, Kind.DROPPED,
    Kind.RECEIVED, Kind.RELEASED,
)  # fmt: skip
"""Kinds with a compiled encoder."""

_UINTS = st.one_of(st.integers(0, 30), st.integers(0, (1 << 64) - 1), st.sampled_from([255, 256, 65535, 65536, 1 << 32]))
_TYPES: dict[Field, st.SearchStrategy[Value]] = {
    Field.UINT: _UINTS,
    Field.UINT_OR_NULL: st.one_of(st.none(), _UINTS),
    Field.BYTES: st.one_of(st.none(), st.binary(max_size=300)),
    Field.MAP: st.one_of(st.none(), st.dictionaries(st.integers(0, 30), st.one_of(_UINTS, st.binary(max_size=20)), max_size=4)),
}


def fields_of(kind: Kind) -> st.SearchStrategy[dict[str, Value]]:
    """Fields that this kind allows."""
    return st.fixed_dictionaries({name: _TYPES[allowed] for name, allowed in FIELDS[kind]})


def any_record() -> st.SearchStrategy[bytes]:
    """Encoded records of any kind."""
    return st.sampled_from(list(Kind)).flatmap(lambda kind: fields_of(kind).map(lambda fields: encode(kind, **fields)))


@dataclass
class Sample:
    """A journal on disk and what is in it."""

    directory: Path
    records: dict[int, bytes] = field(default_factory=dict)
    """Encoded record by sequence."""

    def blocks(self) -> list[Block]:
        found = [item for item in read(self.directory) if isinstance(item, Block)]
        return found


def some_record(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return encode(Kind.ACKNOWLEDGED, session=rng.getrandbits(62), packet_id=rng.getrandbits(16), packet=4, reason=0)
    return encode(
        Kind.MESSAGE, id=rng.randbytes(16), topic=b"a/%d" % rng.getrandbits(8), payload=rng.randbytes(rng.randrange(90)),
        flags=1, expires_ms=0, properties=b"", publisher=b"p",
    )  # fmt: skip


def write_sample(directory: Path, seed: int = 1, incarnations: int = 2, blocks: int = 12, segment_bytes: int = 1500) -> Sample:
    """Some incarnations of `blocks` blocks each, a few to a segment."""
    rng = random.Random(seed)
    sample = Sample(directory)
    for incarnation in range(incarnations):
        writer = open_journal(directory, segment_bytes=segment_bytes)
        for block in range(blocks):
            for _ in range(rng.randrange(1, 8)):
                record = some_record(rng)
                sample.records[writer.append(record)] = record
            writer.seal(1_000_000 * (1 + incarnation) + block)
        assert writer.close()
    return sample


def found(directory: Path) -> tuple[dict[int, Record], list[Damage]]:
    """What a reader finds: records by sequence, and damage."""
    records: dict[int, Record] = {}
    damages = []
    for item in read(directory):
        if isinstance(item, Damage):
            damages.append(item)
            continue
        for record in item.records():
            assert record.sequence not in records
            records[record.sequence] = record
    return records, damages


def checkpoints(directory: Path) -> int:
    """How many times all sessions have been written anew."""
    blocks = [part for part in read(directory) if isinstance(part, Block)]
    return sum(item[0] == Kind.CHECKPOINT for block in blocks for item in block.items())
