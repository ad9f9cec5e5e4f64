"""What the compiler's directives ask of the code, and no compiler checks."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = [path for folder in ("shm", "shardbroker", "acceptor", "perf") for path in sorted((ROOT / folder).rglob("*.p[yx][xd]"))]
FROM_THE_END = re.compile(r"[\w\])]\[\s*-\s*\w[^:\]]*\]")
"""An index, no slice: those are right in any case."""


def test_no_index_counts_from_the_end() -> None:
    """`wraparound` is off (setup.py): `items[-1]` would read what stands in front of the first item, and say nothing."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if FROM_THE_END.search(line.partition("#")[0])
    ]
    assert SOURCES and not found
