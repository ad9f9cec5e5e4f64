"""The events that rules name behind FROM, in a file of the runtime directory: a worker that is started again journals them.

The manager writes it. The file is missing until a rule names an event: each start of the broker makes a new runtime directory.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from shardbroker.stores.files import replace_file

__all__ = ["read_fed_events", "write_fed_events"]

FILE = "fed-events.json"
"""Name of the file in the runtime directory: an array of names."""


def write_fed_events(runtime_dir: Path, events: Iterable[str]) -> None:
    """Writes the events. Raises OSError."""
    replace_file(runtime_dir / FILE, json.dumps(sorted(events)).encode(), sync=False)


def read_fed_events(runtime_dir: Path) -> list[str]:
    """Returns the events; none if no rule has named one since the start of the broker."""
    try:
        events: list[str] = json.loads((runtime_dir / FILE).read_bytes())
    except FileNotFoundError:
        return []
    return events
