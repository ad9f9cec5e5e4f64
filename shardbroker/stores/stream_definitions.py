"""The streams in force, in a file of the runtime directory: a worker that is started again has them.

The manager writes it. The file is missing until there is a stream: each start of the broker makes a new runtime directory.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardbroker.stores.files import replace_file

__all__ = ["read_streams", "write_streams"]

FILE = "streams.json"
"""Name of the file in the runtime directory: an array of [name, filter, age_us, key], see worker/features/streams.py."""


def write_streams(runtime_dir: Path, streams: Sequence[Sequence[Any]]) -> None:
    """Writes the streams. Raises OSError."""
    texts = [[name.decode(), filter.decode(), *rest] for name, filter, *rest in streams]
    replace_file(runtime_dir / FILE, json.dumps(texts).encode(), sync=False)


def read_streams(runtime_dir: Path) -> list[list[Any]]:
    """Returns the streams; none if there has been none since the start of the broker."""
    try:
        found = json.loads((runtime_dir / FILE).read_bytes())
    except FileNotFoundError:
        return []
    return [[name.encode(), filter.encode(), *rest] for name, filter, *rest in found]
