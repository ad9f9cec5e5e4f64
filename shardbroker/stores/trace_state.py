"""What traces look for, in a file of the runtime directory: a worker that is started again goes on with it.

The manager writes it. There is none in a broker that has had no trace yet: the runtime directory is a new one at each start.
"""

from pathlib import Path
from typing import Any

import cbor2

from shardbroker.stores.files import replace_file

__all__ = ["read_traced", "write_traced"]

TRACED = "traces.cbor"
"""In the runtime directory."""

Traced = dict[str, Any]
"""number, type, value, payload_limit (bytes; 0: hidden)."""


def write_traced(runtime_dir: Path, traces: list[Traced]) -> None:
    """Raises OSError."""
    replace_file(runtime_dir / TRACED, cbor2.dumps(traces), sync=False)


def read_traced(runtime_dir: Path) -> list[Traced] | None:
    """Those that run; None: there has been no trace since the broker was started."""
    try:
        traces: list[Traced] = cbor2.loads((runtime_dir / TRACED).read_bytes())
    except FileNotFoundError:
        return None
    return traces
