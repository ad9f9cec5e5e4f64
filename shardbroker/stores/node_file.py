"""The uuid of a data directory, by which nodes of a cluster know each other again: `<data_dir>/node`, 32 hex digits."""

import re
from pathlib import Path
from uuid import uuid4

from shardbroker.stores.files import replace_file

__all__ = ["NODE_FILE", "node_uuid"]

NODE_FILE = "node"
_DIGITS = re.compile(rb"[0-9a-f]{32}\n?")


def node_uuid(data_dir: Path) -> bytes:
    """Returns the uuid of a data directory, made at the first call. Raises OSError, ValueError if the file is damaged."""
    path = data_dir / NODE_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        text = uuid4().hex.encode()
        replace_file(path, text + b"\n")
    if not _DIGITS.fullmatch(text):
        raise ValueError(f"{path}: must have 32 hex digits, got {text[:40]!r}; without the file the node counts as a new one")
    return bytes.fromhex(text.decode())
