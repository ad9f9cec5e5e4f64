"""State of gateways, as their processes write it to a file each."""

import json
from typing import Any

from shardbroker.config.gateways import state_file
from shm.counters import Counters, ProcessState
from shm.topology import Topology

__all__ = ["failed_listeners", "gateway_rows"]


def _written(topology: Topology, counters: Counters, kind: str) -> dict[str, Any]:
    """Returns what the process of a gateway has written; empty while it does not run."""
    if counters.state(topology.slot_of(f"gateway-{kind}")) != ProcessState.READY:
        return {}
    try:
        found: dict[str, Any] = json.loads(state_file(topology.runtime_dir, kind).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found


def gateway_rows(topology: Topology, counters: Counters, settings: Any) -> list[dict[str, Any]]:
    """Returns all gateways with EMQX's fields; a gateway that is not enabled is `unloaded`."""
    rows = []
    for kind, gateway in settings.gateways:
        state = _written(topology, counters, kind) if gateway.enable else {}
        known = {one["id"]: one for one in state.get("listeners", ())}
        listeners = []
        for name, one in gateway.listeners.items():
            id = f"{kind}:{one.type}:{name}"
            of = known.get(id, {})
            listeners.append({
                "id": id, "name": name, "type": one.type, "bind": one.bind, "running": of.get("running", False),
                "problem": of.get("problem") or None, "current_connections": of.get("current_connections", 0),
                "max_connections": one.max_connections or "infinity",
            })  # fmt: skip
        most = [one.max_connections for one in gateway.listeners.values()]
        rows.append({
            "name": kind,
            "status": "running" if state else "stopped" if gateway.enable else "unloaded",
            "started_at": state.get("started_at"),
            "current_connections": sum(one["current_connections"] for one in listeners),
            "max_connections": sum(most) if all(most) else "infinity",
            "listeners": listeners,
            "figures": state.get("figures", {}),
        })  # fmt: skip
    return rows


def failed_listeners(topology: Topology, counters: Counters, settings: Any) -> list[str]:
    """Returns the listeners of gateways that could not be opened, each with the reason."""
    states = (_written(topology, counters, kind) for kind in settings.gateways.enabled)
    return [f"{one['id']}: {one['problem']}" for state in states for one in state.get("listeners", ()) if one["problem"]]
