"""The uuid of a data directory, by which nodes of a cluster know each other again: `<data_dir>/node`, 32 hex digits."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from shardbroker.stores.files import replace_file

__all__ = [
    "ENROLLED_FILE", "MEMBERS_FILE", "NODE_FILE", "Enrolled", "Joined", "forget_enrolled", "forget_joined", "node_uuid",
    "read_enrolled", "read_joined", "write_enrolled", "write_joined",
]  # fmt: skip

NODE_FILE = "node"
ENROLLED_FILE = Path("cluster", "enrolled")
"""What the core of the cluster has allotted to this data directory: JSON."""
MEMBERS_FILE = Path("cluster", "members")
"""The members as the core had them last."""
JOINED_FILE = Path("cluster", "joined")
"""What `ctl cluster join` has written into the configuration: JSON."""
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


def forget_enrolled(data_dir: Path) -> None:
    """Has the core be asked again. Raises OSError."""
    (data_dir / ENROLLED_FILE).unlink(missing_ok=True)


class Joined(NamedTuple):
    """What a join by command has written."""

    cluster: bytes
    """Uuid of the cluster."""
    keys: Mapping[str, str]
    """Key of the configuration -> value as TOML."""


def read_joined(data_dir: Path) -> Joined | None:
    """Returns what a join has written; None without one. Raises OSError, ValueError if the file is damaged."""
    path = data_dir / JOINED_FILE
    try:
        found = json.loads(path.read_bytes())
        return Joined(bytes.fromhex(found["cluster"]), {str(key): str(value) for key, value in found["keys"].items()})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: must be JSON with cluster and keys; without the file its keys count as set by hand") from None


def write_joined(data_dir: Path, joined: Joined) -> None:
    """Notes what a join writes. Raises OSError."""
    path = data_dir / JOINED_FILE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    replace_file(path, json.dumps({"cluster": joined.cluster.hex(), "keys": dict(joined.keys)}).encode() + b"\n")


def forget_joined(data_dir: Path) -> None:
    """Raises OSError."""
    (data_dir / JOINED_FILE).unlink(missing_ok=True)
