"""The active traces, in a file of the runtime directory: a worker or process flows that is started again continues them.

The manager writes it. The file is missing until the first trace: each start of the broker makes a new runtime directory.
"""

from pathlib import Path
from typing import Any

import cbor2

from shardbroker.stores.files import replace_file

__all__ = ["OF_RULES", "TRACED", "read_traced", "write_traced"]

TRACED = "traces.cbor"
"""Name of the file in the runtime directory."""

OF_RULES = "ruleid"
"""Type of the traces that processes flows record; all others are of workers."""

Traced = dict[str, Any]
"""Keys: number, type, value, payload_limit (bytes; 0: hidden)."""


def write_traced(runtime_dir: Path, traces: list[Traced]) -> None:
    """Writes the active traces. Raises OSError."""
    replace_file(runtime_dir / TRACED, cbor2.dumps(traces), sync=False)


def read_traced(runtime_dir: Path) -> list[Traced] | None:
    """Returns the active traces; None if the broker has had no trace since its start."""
    try:
        traces: list[Traced] = cbor2.loads((runtime_dir / TRACED).read_bytes())
    except FileNotFoundError:
        return None
    return traces
