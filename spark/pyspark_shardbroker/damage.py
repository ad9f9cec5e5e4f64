"""Table `damage`: unreadable parts of journals, one row each."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from pyspark_shardbroker.journals import Piece
from pyspark_shardbroker.reading import scan_piece
from pyspark_shardbroker.segments import Damage

__all__ = ["DAMAGE", "read_damage"]

DAMAGE = {
    "path": "string", "start": "bigint", "end": "bigint", "reason": "string", "lost_from": "bigint", "lost_to": "bigint",
    "torn": "boolean",
}  # fmt: skip
_TYPES = {"string": pa.string(), "bigint": pa.int64(), "boolean": pa.bool_()}


def read_damage(piece: Piece, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the damage in a piece of a segment."""
    found = [item for item in scan_piece(piece) if isinstance(item, Damage)]
    if found:
        arrays = [pa.array([getattr(damage, name) for damage in found], _TYPES[DAMAGE[name]]) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, list(columns))
