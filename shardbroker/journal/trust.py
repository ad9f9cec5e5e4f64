"""Which blocks of a journal count for a recovery, after a power cut too.

At level `machine` blocks are written before they are on the disk, and a power cut may keep a later one and lose an earlier one.
What nobody was promised anything for must then go as a whole: a recovery that took the later block would have acknowledgements of
what it does not know. Each block says up to where the disk was known to have everything (`synced`). So a hole that a later block
vouches for is damage, as from a broken disk, and the rest counts; a hole that none vouches for is where the power went.

Blocks without such a record are of level `process`: there the kernel keeps the order, and each counts. A block in which a repair
says that records are lost is the hole that it was.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardbroker.journal.layout import INCARNATION_STEP
from shardbroker.journal.reader import Block, Damage
from shardbroker.journal.schema import Kind

__all__ = ["trusted"]


def trusted(parts: Iterable[Block | Damage]) -> Iterator[Block | Damage]:
    """What `read` yields, without the blocks behind a hole that no later block of the same writer vouches for."""
    incarnation: int | None = None
    hole: int | None = None
    held: list[Block | Damage] = []
    for part in parts:
        if isinstance(part, Damage) or part.lost:
            start, end = _missing(part)
            if hole is None and (start is None or start == end):
                yield part
                continue
            held.append(part)
            hole = start if hole is None else hole
            continue
        if hole is not None:
            if part.header.incarnation != incarnation:
                # What was held is the end of another writer, unless the hole is the beginning of this one.
                start, _ = _missing(held[-1])
                own = start is not None and start // INCARNATION_STEP == part.header.first_sequence // INCARNATION_STEP
                yield from _forgotten(held[:-1] if own else held)
                held, hole = (held[-1:], start) if own else ([], None)
            synced = _synced(part)
            if hole is None or synced is None or synced > hole:
                vouched = len(held) if hole is None or synced is None else _vouched(held, synced)
                yield from held[:vouched]
                held = held[vouched:]
                hole = _missing(held[0])[0] if held else None
        incarnation = part.header.incarnation
        if hole is None:
            yield part
        else:
            held.append(part)
    yield from _forgotten(held)


def _missing(part: Block | Damage) -> tuple[int | None, int | None]:
    """The first record that is lost there, and the first behind them that is not."""
    if isinstance(part, Damage):
        return part.lost_from, part.lost_to
    return (part.header.first_sequence, part.header.end_sequence) if part.lost else (None, None)


def _vouched(held: list[Block | Damage], synced: int) -> int:
    """How many of these there are in front of the first hole that was not on the disk either: one is damage, the next the power."""
    for place, part in enumerate(held):
        start, end = _missing(part)
        if start is not None and start != end and start >= synced:
            return place
    return len(held)


def _forgotten(held: list[Block | Damage]) -> Iterator[Damage]:
    """Of the end of a writer that lost power: the holes, which were to be expected."""
    return (replace(part, torn=True, lost_to=None) for part in held if isinstance(part, Damage))


def _synced(block: Block) -> int | None:
    """Position up to which everything was on the disk when this block was written; None at level `process`."""
    return next((int(item[1]) for item in reversed(block.items()) if item[0] == Kind.SYNCED), None)  # type: ignore[arg-type]
