"""The blocks of a journal that are valid for a recovery, even after a power cut.

At level `machine` blocks are written before they are on the disk, and a power cut may keep a later one and lose an earlier one.
Blocks whose records were not promised to any client must then be dropped as a whole: a recovery that used the later block would
have acknowledgements of unknown messages. Each block contains the position up to which the disk was known to have all records
(`synced`). So a hole below the `synced` of a later block is damage, as from a broken disk, and the other blocks are valid. Any
other hole is where the power failed.

Blocks without this record are of level `process`: there the kernel keeps the order, and all are valid. A block in which a repair
marks records as lost counts as the hole that it replaced.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from shardbroker.journal.layout import INCARNATION_STEP
from shardbroker.journal.reader import Block, Damage
from shardbroker.journal.schema import Kind

__all__ = ["trusted"]


def trusted(parts: Iterable[Block | Damage]) -> Iterator[Block | Damage]:
    """Yields the parts from `read`, without blocks after a hole above the `synced` of all later blocks of the same writer."""
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
                # The held parts are the end of another writer, unless the hole is the beginning of this one.
                start, _ = _missing(held[-1])
                own = start is not None and start // INCARNATION_STEP == part.header.first_sequence // INCARNATION_STEP
                yield from _expected_holes(held[:-1] if own else held)
                held, hole = (held[-1:], start) if own else ([], None)
            synced = _synced(part)
            if hole is None or synced is None or synced > hole:
                vouched = len(held) if hole is None or synced is None else _below_synced(held, synced)
                yield from held[:vouched]
                held = held[vouched:]
                hole = _missing(held[0])[0] if held else None
        incarnation = part.header.incarnation
        if hole is None:
            yield part
        else:
            held.append(part)
    yield from _expected_holes(held)


def _missing(part: Block | Damage) -> tuple[int | None, int | None]:
    """Returns the first lost record of a part, and the first one after the loss."""
    if isinstance(part, Damage):
        return part.lost_from, part.lost_to
    return (part.header.first_sequence, part.header.end_sequence) if part.lost else (None, None)


def _below_synced(held: list[Block | Damage], synced: int) -> int:
    """Returns the number of parts before the first hole not below `synced`: holes below are damage, this is a power cut."""
    for place, part in enumerate(held):
        start, end = _missing(part)
        if start is not None and start != end and start >= synced:
            return place
    return len(held)


def _expected_holes(held: list[Block | Damage]) -> Iterator[Damage]:
    """Yields the holes at the end of a writer that lost power, which were to be expected."""
    return (replace(part, torn=True, lost_to=None) for part in held if isinstance(part, Damage))


def _synced(block: Block) -> int | None:
    """Returns the position up to which the disk had all records when this block was written; None at level `process`."""
    return next((int(item[1]) for item in reversed(block.items()) if item[0] == Kind.SYNCED), None)  # type: ignore[arg-type]
