"""The uuid of a data directory, by which nodes of a cluster know each other again: `<data_dir>/node`, 32 hex digits."""

import json
import re
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from shardbroker.stores.files import replace_file

__all__ = ["ENROLLED_FILE", "NODE_FILE", "Enrolled", "node_uuid", "read_enrolled", "write_enrolled"]

NODE_FILE = "node"
ENROLLED_FILE = Path("cluster", "enrolled")
"""What the core of the cluster has allotted to this data directory: JSON."""
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


class Enrolled(NamedTuple):
    """What a core has allotted."""

    node_id: int
    cluster: bytes
    """Uuid of the cluster."""
    place: str
    """Prefix of the keys of the cluster."""


def read_enrolled(data_dir: Path) -> Enrolled | None:
    """Returns what was allotted to a data directory; None before. Raises OSError, ValueError if the file is damaged."""
    path = data_dir / ENROLLED_FILE
    try:
        found = json.loads(path.read_bytes())
        return Enrolled(int(found["id"]), bytes.fromhex(found["cluster"]), str(found["place"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: must be JSON with id, cluster, place; without the file the core is asked again") from None


def write_enrolled(data_dir: Path, enrolled: Enrolled) -> None:
    """Notes what was allotted to a data directory. Raises OSError."""
    path = data_dir / ENROLLED_FILE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    content = {"id": enrolled.node_id, "cluster": enrolled.cluster.hex(), "place": enrolled.place}
    replace_file(path, json.dumps(content).encode() + b"\n")
