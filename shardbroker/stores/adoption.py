"""Adoption of the data directory of a node that died (`ctl cluster adopt`), in files.

    <data_dir>/adoptions    of the node that adopts: JSON, what is under way. A manager that starts continues it
    <data_dir>/adopted      of the node that died: JSON, by and since. No broker starts with that data directory any more
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from shardbroker.stores.files import replace_file

__all__ = [
    "ADOPTED_FILE", "STAND_IN", "Adopted", "Adoption", "read_adopted", "read_adoptions", "write_adopted", "write_adoptions",
]  # fmt: skip

ADOPTIONS_FILE = "adoptions"
ADOPTED_FILE = "adopted"
STAND_IN = "SHARDBROKER_STAND_IN"
"""Variable of the environment of a stand-in: the term of the adoption for which it serves the data directory."""


@dataclass(frozen=True)
class Adoption:
    """What was asked for."""

    node: str
    """Name of the node that died."""
    directory: str
    uuid: str
    """Of the data directory, 32 hex digits."""
    workers: int
    address: str
    """HOST:PORT of the links of the stand-in; port 0: any."""
    sess_rate: int
    leave_behind: bool = False
    certfile: str = ""
    keyfile: str = ""
    since: int = 0
    """Unix s."""


def write_adoptions(data_dir: Path, adoptions: Iterable[Adoption]) -> None:
    """Notes what is under way; the file is removed without any. Raises OSError."""
    path, rows = data_dir / ADOPTIONS_FILE, [asdict(one) for one in adoptions]
    if rows:
        replace_file(path, json.dumps(rows).encode() + b"\n")
    else:
        path.unlink(missing_ok=True)


def read_adoptions(data_dir: Path) -> list[Adoption]:
    """Returns what is under way; nothing if the file cannot be read: the command is repeated then."""
    try:
        return [Adoption(**one) for one in json.loads((data_dir / ADOPTIONS_FILE).read_bytes())]
    except (OSError, ValueError, TypeError):
        return []


class Adopted(NamedTuple):
    """Where the sessions of a data directory are."""

    by: str
    """Name of a node."""
    since: int
    """Unix s."""


def write_adopted(data_dir: Path, adopted: Adopted) -> None:
    """Notes that no broker may serve a data directory any more. Raises OSError."""
    replace_file(data_dir / ADOPTED_FILE, json.dumps(adopted._asdict()).encode() + b"\n")


def read_adopted(data_dir: Path) -> Adopted | None:
    """Returns where the sessions of a data directory are; None: in it. A file that is damaged counts, too. Raises OSError."""
    try:
        found = json.loads((data_dir / ADOPTED_FILE).read_bytes())
        return Adopted(str(found["by"]), int(found["since"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return Adopted("unknown", 0)
