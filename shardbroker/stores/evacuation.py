"""The evacuation or rebalance of this node, in `<data_dir>/evacuation`: a worker, a manager or a broker that starts continues it.

The manager writes the file when an evacuation begins, and removes it when it is stopped; a rebalance also when it is complete.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from shardbroker.stores.files import replace_file

__all__ = ["EVACUATION_FILE", "Evacuation", "Thresholds", "read_evacuation", "remove_evacuation", "write_evacuation"]

EVACUATION_FILE = "evacuation"


@dataclass(frozen=True)
class Thresholds:
    """How far this node may be above the average. With them a part leaves the node; without, everything."""

    abs_conn: int
    rel_conn: float
    abs_sess: int
    rel_sess: float


@dataclass(frozen=True)
class Evacuation:
    """What was asked for, and what the node had when it began."""

    conn_rate: int
    """Connections a second."""
    sess_rate: int
    """Sessions a second."""
    wait_takeover_s: float
    redirect_to: str
    """Server Reference; empty: none."""
    migrate_to: tuple[str, ...]
    """Names of nodes; empty: all."""
    evicts_from_ms: int
    """Unix ms from which on clients are turned away."""
    initial_connected: int = 0
    initial_sessions: int = 0
    thresholds: Thresholds | None = None
    """Of a rebalance, for which `migrate_to` are the nodes that take part; None: an evacuation."""
    connection_goal: int = 0
    """What stays here, as far as that is decided; likewise `session_goal`, of sessions without a client."""
    session_goal: int = 0
    coordinator: str = ""
    """The node where all nodes were rebalanced by one command, which has decided; empty: this node balances itself."""
    donors: tuple[str, ...] = ()
    """Names of all nodes that turn clients away for it, this one included."""
    incarnation: int = 0
    """The broker to which a goal of the coordinator applies: another one has other clients and sessions."""
    ends_by_ms: int = 0
    """Unix ms at which a rebalance ends whatever it has reached."""

    @property
    def process(self) -> str:
        return "evacuation" if self.thresholds is None else "rebalance"

    def turns_away(self, now_ms: int) -> bool:
        """Returns whether clients are turned away at this time."""
        return now_ms >= self.evicts_from_ms


def write_evacuation(data_dir: Path, evacuation: Evacuation) -> None:
    """Notes that this node is evacuated. Raises OSError."""
    replace_file(data_dir / EVACUATION_FILE, json.dumps(asdict(evacuation)).encode() + b"\n")


def read_evacuation(data_dir: Path) -> Evacuation | None:
    """Returns the evacuation of this node; None without one, or if the file cannot be read: the node accepts clients."""
    try:
        found = json.loads((data_dir / EVACUATION_FILE).read_bytes())
        thresholds = None if found.get("thresholds") is None else Thresholds(**found["thresholds"])
        names = {name: tuple(found.get(name, ())) for name in ("migrate_to", "donors")}
        return Evacuation(**{**found, **names, "thresholds": thresholds})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_evacuation(data_dir: Path) -> None:
    """Notes that this node accepts clients. Raises OSError."""
    (data_dir / EVACUATION_FILE).unlink(missing_ok=True)
