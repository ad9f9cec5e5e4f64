"""What traces look for, in a file of the runtime directory: a worker that is started again goes on with it.

The manager writes it. There is none in a broker that has had no trace yet: the runtime directory is a new one at each start.
"""

import os
from pathlib import Path
from typing import Any

import cbor2

__all__ = ["read_traced", "write_traced"]

TRACED = "traces.cbor"
"""In the runtime directory."""

Traced = dict[str, Any]
"""number, type, value, payload_limit (bytes; 0: hidden)."""


def write_traced(runtime_dir: Path, traces: list[Traced]) -> None:
    """Raises OSError."""
    new = runtime_dir / f"{TRACED}.new"
    new.touch(mode=0o600)
    new.write_bytes(cbor2.dumps(traces))
    os.replace(new, runtime_dir / TRACED)


def read_traced(runtime_dir: Path) -> list[Traced] | None:
    """Those that run; None: there has been no trace since the broker was started."""
    try:
        traces: list[Traced] = cbor2.loads((runtime_dir / TRACED).read_bytes())
    except FileNotFoundError:
        return None
    return traces
