"""Segments of a journal that a broker is writing and removing."""

from contextlib import suppress
from pathlib import Path

from shardbroker.journal.layout import segment_paths


def journal_bytes(journal: Path) -> int:
    """Bytes of the segments in this directory; one that is removed between the listing and the look counts as none."""
    total = 0
    for path in segment_paths(journal):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total
