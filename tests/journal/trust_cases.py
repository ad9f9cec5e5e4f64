"""Which records count when blocks before them are missing: one table for all who judge that, recovery and Spark's readers."""

from dataclasses import dataclass
from pathlib import Path

from shardbroker.journal import Block, open_journal, read
from shardbroker.journal.schema import Kind, encode

__all__ = ["CASES", "Case", "make_journal", "spoil"]

BLOCKS = 5
NEVER = (0,) * BLOCKS
"""The disk was not known to have anything, whatever was written."""
BEHIND = (0, 0, 1, 2, 3)
"""It was two blocks behind."""
PROCESS = None
"""Level `process`: blocks say nothing about the disk."""


@dataclass(frozen=True)
class Case:
    """writers: of each block how many were known to be on the disk. lost: writer and block. counts: which blocks of each writer."""

    name: str
    writers: tuple[tuple[int, ...] | None, ...]
    lost: tuple[tuple[int, int], ...]
    counts: tuple[tuple[int, ...], ...]

    def sessions(self) -> list[int]:
        """Of the records that count, in their order."""
        return [session_of(writer, block) for writer, blocks in enumerate(self.counts) for block in blocks]


CASES = [
    *(
        Case(f"behind-a-hole-at-{lost}-that-the-disk-never-had", (NEVER,), ((0, lost),), (tuple(range(lost)),))
        for lost in range(BLOCKS)
    ),
    Case("what-the-disk-had-is-damage", (BEHIND,), ((0, 1),), ((0, 2, 3, 4),)),
    Case("of-two-holes-one-is-damage", ((0, 0, 0, 0, 2),), ((0, 1), (0, 3)), ((0, 2),)),
    Case("two-holes-that-the-disk-never-had", (NEVER,), ((0, 1), (0, 3)), ((0,),)),
    Case("nobody-vouches-behind-the-last-block", (BEHIND,), ((0, 4),), ((0, 1, 2, 3),)),
    Case("who-would-vouch-is-lost", ((0, 0, 0, 0, 4),), ((0, 1), (0, 4)), ((0,),)),
    Case("level-process-counts", (PROCESS,), ((0, 1),), ((0, 2, 3, 4),)),
    Case("level-process-counts-without-its-first", (PROCESS, PROCESS), ((1, 0),), ((0, 1, 2, 3, 4), (1, 2, 3, 4))),
    Case("the-next-writer-counts", (NEVER, NEVER), ((0, 2),), ((0, 1), (0, 1, 2, 3, 4))),
    Case("the-next-writer-counts-after-the-last-block", (NEVER, NEVER), ((0, 4),), ((0, 1, 2, 3), (0, 1, 2, 3, 4))),
    Case("a-hole-at-the-beginning-is-the-next-writers", (NEVER, NEVER), ((1, 0),), ((0, 1, 2, 3, 4), ())),
    Case("the-end-of-one-and-the-beginning-of-the-next", (NEVER, NEVER), ((0, 4), (1, 0)), ((0, 1, 2, 3), ())),
    Case("the-beginning-of-the-next-was-on-the-disk", (NEVER, BEHIND), ((1, 0),), ((0, 1, 2, 3, 4), (1, 2, 3, 4))),
    Case("two-at-the-beginning", (NEVER, NEVER), ((1, 0), (1, 1)), ((0, 1, 2, 3, 4), ())),
    Case("each-writer-has-its-own-end", (NEVER, BEHIND, NEVER), ((0, 1), (1, 1), (2, 3)), ((0,), (0, 2, 3, 4), (0, 1, 2))),
    Case("level-process-behind-level-machine", (NEVER, PROCESS), ((0, 1), (1, 1)), ((0,), (0, 2, 3, 4))),
]


def session_of(writer: int, block: int) -> int:
    return 10 * writer + block


def make_journal(directory: Path, case: Case, segments: bool) -> None:
    """The journal of a case. A lost block has a wrong bit; with `segments` each is a segment of its own, a lost one zeros."""
    for writer, synced in enumerate(case.writers):
        _write(directory, writer, synced, segments)
    for writer, block in case.lost:
        if segments:
            path = sorted(directory.glob("*.sbj"))[writer * BLOCKS + block]
            path.write_bytes(bytes(path.stat().st_size))
    if not segments:
        spoil(directory, [writer * BLOCKS + block for writer, block in case.lost])


def _write(directory: Path, number: int, synced: tuple[int, ...] | None, segments: bool) -> None:
    writer = open_journal(directory, **({"segment_bytes": 1} if segments else {}))
    first = writer.next_sequence
    size = 1 if synced is None else 2
    for block in range(BLOCKS):
        writer.append(encode(Kind.RELEASED, session=session_of(number, block), packet_id=1, reason=0))
        if synced is not None:
            writer.append(encode(Kind.SYNCED, position=first + size * synced[block]))
        writer.seal(1 + block)
    writer.close()


def spoil(directory: Path, numbers: list[int]) -> None:
    """One bit of each of these blocks, of those that have records."""
    blocks = [part for part in read(directory) if isinstance(part, Block) and not part.lost]
    for number in numbers:
        content = bytearray(blocks[number].path.read_bytes())
        content[blocks[number].end - 1] ^= 1
        blocks[number].path.write_bytes(content)
