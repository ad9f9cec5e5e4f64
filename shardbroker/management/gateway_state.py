"""State of gateways, as their processes write it to a file each."""

import json
from collections import Counter
from typing import Any, NamedTuple

from shardbroker.config.gateways import state_file
from shm.counters import Counters, ProcessState
from shm.topology import Topology

__all__ = ["failed_listeners", "gateway_rows"]


class _State(NamedTuple):
    """What the processes of a gateway have written."""

    running: list[dict[str, Any]]
    """States of those that run."""
    wanted: int
    """How many there are to be."""
    figures: dict[str, int]
    """Sums of the counts, those of processes that are being started again among them."""

    def listener(self, id: str) -> dict[str, Any]:
        """Returns the state of a listener in all processes: it is open if it is open in each of them."""
        found = [one for state in self.running for one in state["listeners"] if one["id"] == id]
        return {
            "running": 0 < len(found) == self.wanted and all(one["running"] for one in found),
            "problem": next((one["problem"] for one in found if one["problem"]), None),
            "current_connections": sum(one["current_connections"] for one in found),
        }


def _written(topology: Topology, counters: Counters, kind: str) -> _State:
    places = topology.places_of(f"gateway-{kind}")
    running, figures = [], Counter[str]()
    for place in places:
        try:
            found = json.loads(state_file(topology.runtime_dir, kind, place.number).read_bytes())
        except (FileNotFoundError, ValueError):
            continue
        if found.get("broker") != topology.started_ms:
            continue
        figures.update(found["figures"])
        if counters.state(place.slot) == ProcessState.READY:
            running.append(found)
    return _State(running, len(places), dict(figures))


def gateway_rows(topology: Topology, counters: Counters, settings: Any) -> list[dict[str, Any]]:
    """Returns all gateways with EMQX's fields; a gateway that is not enabled is `unloaded`."""
    rows = []
    for kind, gateway in settings.gateways:
        state = _written(topology, counters, kind) if gateway.enable else _State([], 0, {})
        listeners = []
        for name, one in gateway.listeners.items():
            id = f"{kind}:{one.type}:{name}"
            listeners.append({
                "id": id, "name": name, "type": one.type, "bind": one.bind, **state.listener(id),
                "max_connections": one.max_connections or "infinity",
            })  # fmt: skip
        most = [one.max_connections for one in gateway.listeners.values()]
        rows.append({
            "name": kind,
            "status": "running" if state.running else "stopped" if gateway.enable else "unloaded",
            "started_at": min((one["started_at"] for one in state.running), default=None),
            "current_connections": sum(one["current_connections"] for one in listeners),
            "max_connections": sum(most) if all(most) else "infinity",
            "listeners": listeners,
            "figures": state.figures if state.running else {},
        })  # fmt: skip
    return rows


def failed_listeners(topology: Topology, counters: Counters, settings: Any) -> list[str]:
    """Returns the listeners of gateways that could not be opened, each with the reason."""
    states = (_written(topology, counters, kind) for kind in settings.gateways.enabled)
    found = (one for state in states for process in state.running for one in process["listeners"] if one["problem"])
    return [*dict.fromkeys(f"{one['id']}: {one['problem']}" for one in found)]
