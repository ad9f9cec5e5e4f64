"""What a node knows of the core's members: `<data_dir>/cluster/core`, JSON, beside the etcd in `<data_dir>/etcd`."""

import json
from pathlib import Path
from typing import NamedTuple

from shardbroker.config.cluster import Cluster, CoreMember, core_members, core_url
from shardbroker.config.listeners import parse_address
from shardbroker.stores.files import replace_file

__all__ = ["PLAN_FILE", "CorePlan", "endpoints_of", "etcd_dir", "has_data", "own_member", "read_plan", "write_plan"]

PLAN_FILE = Path("cluster", "core")
ETCD_DIR = "etcd"


class CorePlan(NamedTuple):
    """What outlives the broker, since the members of the core may be others than `core.members`."""

    endpoints: tuple[str, ...] = ()
    """Addresses of its members for clients; empty: as the configuration has them."""
    initial: str = ""
    """Members that this node's etcd joined, NAME=URL by commas; empty: the first ones, by `core.members`."""
    is_removed: bool = False
    """The core has removed this node's etcd, so `core.members` does not count for it."""


def read_plan(data_dir: Path) -> CorePlan:
    """Returns what is known; what is damaged counts as unknown."""
    try:
        found = json.loads((data_dir / PLAN_FILE).read_bytes())
        return CorePlan(tuple(map(str, found["endpoints"])), str(found["initial"]), bool(found["removed"]))
    except (OSError, ValueError, KeyError, TypeError):
        return CorePlan()


def write_plan(data_dir: Path, plan: CorePlan) -> None:
    """Raises OSError."""
    path = data_dir / PLAN_FILE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    content = {"endpoints": [*plan.endpoints], "initial": plan.initial, "removed": plan.is_removed}
    replace_file(path, json.dumps(content).encode() + b"\n")


def etcd_dir(data_dir: Path) -> Path:
    """Returns the directory of this node's etcd."""
    return data_dir / ETCD_DIR


def has_data(data_dir: Path) -> bool:
    """Returns whether this node's etcd has run."""
    return (etcd_dir(data_dir) / "member").is_dir()


def own_member(cluster: Cluster, node_name: str) -> CoreMember:
    """Returns this node as a member of the core, as it is or would be one."""
    for one in core_members(cluster):
        if one.name == node_name:
            return one
    host, port = parse_address(cluster.core.bind)
    return CoreMember(node_name, node_name.rpartition("@")[2] if "@" in node_name else host, port)


def endpoints_of(cluster: Cluster, node_name: str, plan: CorePlan) -> list[str]:
    """Returns where clients reach the core, this node's etcd first."""
    if not cluster.is_managed:
        return list(cluster.etcd.endpoints or plan.endpoints)
    known = plan.endpoints or [core_url(cluster, one.host, one.port) for one in core_members(cluster)]
    own = own_member(cluster, node_name)
    return sorted(known, key=lambda url: url != core_url(cluster, own.host, own.port))
