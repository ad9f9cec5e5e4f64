"""Evacuation of this node: its phases, the pace of the workers, and what is left.

    waiting_health_check   clients are accepted; load balancers learn that the node is about to leave
    evicting_conns         new clients are turned away, connected ones disconnected, `conn_rate` a second
    waiting_takeover       clients have time to take their sessions along
    evicting_sessions      sessions of absent clients move to other nodes, `sess_rate` a second
    prohibiting            nothing is left, and clients are turned away until `stop`

Names are those of EMQX. The workers do the work (worker/evacuation.pyx), a bounded part for each command. What was asked for is in
a file (stores/evacuation.py): after a restart of the manager, or of the broker, the evacuation continues with `evicting_conns`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

from shardbroker.control import ControlError
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shardbroker.management.cluster_view import peers_of
from shardbroker.management.workers import Workers
from shardbroker.stores.evacuation import Evacuation, read_evacuation, remove_evacuation, write_evacuation
from shm.counters import Counters
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["Evacuator", "State", "shares"]

TICK_S = 0.2
"""Between two rounds of commands."""
AT_ONCE = 100
"""Clients or sessions of one command: some ms of a worker."""


class State(StrEnum):
    """Phase of an evacuation."""

    DISABLED = "disabled"
    WAITING_HEALTH_CHECK = "waiting_health_check"
    EVICTING_CONNS = "evicting_conns"
    WAITING_TAKEOVER = "waiting_takeover"
    EVICTING_SESSIONS = "evicting_sessions"
    PROHIBITING = "prohibiting"


def shares(amount: int, counts: Sequence[int]) -> list[int]:
    """Divides an amount by what each worker has; none gets more than that."""
    total, parts = sum(counts), []
    for count in counts:
        parts.append(min(count, -(-amount * count // total)) if total else 0)
        amount -= parts[-1]
        total -= count
    return parts


class Evacuator:
    """The evacuation of this node, or none."""

    def __init__(self, topology: Topology, counters: Counters, workers: Workers, view: ViewSegment | None, log: Log) -> None:
        self._topology, self._counters, self._workers, self._view, self._log = topology, counters, workers, view, log
        cluster = topology.settings.cluster
        self._moves = cluster.enable and cluster.registry == "on"
        """Whether sessions of this node can move."""
        self._wanted = read_evacuation(topology.data_dir)
        self.state = State.DISABLED if self._wanted is None else State.WAITING_HEALTH_CHECK
        self._changed = asyncio.Event()
        self._takeover_ends = 0.0
        """Monotonic s."""
        self._connections = self._sessions = 0.0
        """Allowed at this moment by the rates."""
        self._last = time.monotonic()
        self._left: Counter[str] | None = None
        """What all workers have answered last; None: one of them has not."""

    # --- requests ------------------------------------------------------------------------------------------------------

    def start(self, wanted: Evacuation, wait_s: float) -> dict[str, Any]:
        """Begins an evacuation. Raises ControlError."""
        if self._wanted is not None:
            raise ControlError("BAD_REQUEST", "this node is being evacuated already: stop that first (ctl node evacuate stop)")
        self._node_ids(wanted.migrate_to)
        totals = self._counters.totals()
        wanted = replace(
            wanted, evicts_from_ms=time.time_ns() // 1_000_000 + int(wait_s * 1000), initial_connected=totals["connections.count"],
            initial_sessions=totals["sessions.count"],
        )  # fmt: skip
        try:
            write_evacuation(self._topology.data_dir, wanted)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"evacuation not started: {error}") from None
        self._wanted = wanted
        self._left = None
        self._go(State.WAITING_HEALTH_CHECK)
        self._changed.set()
        return self.status()

    def stop(self) -> None:
        """Ends an evacuation: clients are accepted again, and bring back sessions that have moved. Raises ControlError."""
        if self._wanted is None:
            raise ControlError("BAD_REQUEST", "this node is not being evacuated")
        try:
            remove_evacuation(self._topology.data_dir)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"evacuation not stopped: {error}") from None
        self._wanted = None
        self._go(State.DISABLED)
        self._workers.send_all("evacuation begin", reference=None)

    def status(self) -> dict[str, Any]:
        """Returns the state, and what is left."""
        wanted = self._wanted
        if wanted is None:
            return {"status": "disabled"}
        totals, left = self._counters.totals(), self._left or Counter()
        return {
            "status": "enabled",
            "process": "evacuation",
            "state": self.state.value,
            "connection_eviction_rate": wanted.conn_rate,
            "session_eviction_rate": wanted.sess_rate,
            "connection_goal": 0,
            "session_goal": 0,
            "session_recipients": self._recipients(wanted),
            "redirect_to": wanted.redirect_to,
            "stats": {
                "initial_connected": wanted.initial_connected,
                "current_connected": totals["connections.count"],
                "initial_sessions": wanted.initial_sessions,
                "current_sessions": totals["sessions.count"] + left["moving"],
            },
            "may_be_stopped": self.state == State.PROHIBITING,
            "message": self._message(totals["connections.count"], totals["sessions.count"], left),
        }

    def _recipients(self, wanted: Evacuation) -> list[str]:
        """Returns the names of the nodes that get sessions."""
        if wanted.migrate_to or not self._moves:
            return [*wanted.migrate_to]
        return [peer.name for peer in self._peers() if peer.is_up]

    def _message(self, connected: int, sessions: int, left: Counter[str]) -> str:
        match self.state:
            case State.WAITING_HEALTH_CHECK:
                return "clients are still accepted, and load balancers are told to use other nodes"
            case State.EVICTING_CONNS:
                return f"{connected} clients are connected"
            case State.WAITING_TAKEOVER:
                return f"clients may take their sessions along; {sessions} sessions are left"
            case State.EVICTING_SESSIONS if self._left is None:
                return f"{sessions} sessions are left; a worker does not answer"
            case State.EVICTING_SESSIONS:
                text = f"{sessions} sessions are left, {left['moving']} are on their way"
                if left["forwarding"]:
                    text += f", late messages of {left['forwarding']} are forwarded"
                if sessions > left["staying"] and not (left["moving"] or left["offers"] or left["offered"]):
                    text += "; no node takes sessions: each is not linked, or is evacuated, or has no memory or disk for them"
                return text
        if not self._moves:
            kept = "end with the broker" if self._topology.settings.durability.level == "none" else "stay on its disk"
            text = "no client is connected: the node may be stopped; sessions do not move (cluster.registry)"
            return f"{text}, its {sessions} {kept}"
        text = "no clients and no sessions are left: the node may be stopped"
        if sessions:
            text = f"no client is connected: the node may be stopped; {sessions} sessions cannot move, and stay on its disk"
        if away := [peer.name for peer in self._peers() if not peer.is_up]:
            text += f", and has to return for messages that wait at nodes that are not linked: {', '.join(away)}"
        return text

    def _peers(self) -> list[Any]:
        return [] if self._view is None else peers_of(self._view.read(), self._topology)

    def _node_ids(self, names: Sequence[str]) -> list[int] | None:
        """Returns the ids of nodes; None without names: all. Raises ControlError."""
        if not names:
            return None
        if not self._moves:
            raise ControlError("BAD_REQUEST", "migrate_to: must be left out, sessions of this node do not move (cluster.registry)")
        known = {peer.name: peer.id for peer in self._peers() if peer.id is not None}
        for name in names:
            if name not in known:
                nodes = ", ".join(sorted(known)) or "there is no other one"
                raise ControlError("BAD_REQUEST", f"migrate_to: must be other nodes of this cluster ({nodes}), got {name}")
        return [known[name] for name in names]

    # --- the work ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Evacuates while that is wanted."""
        while True:
            if self._wanted is None:
                self._changed.clear()
                await self._changed.wait()
            await self._step()
            await asyncio.sleep(TICK_S)

    def _go(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._log.add("info", log_line("node evacuation", state=state.value))
            self._log.flush()

    async def _step(self) -> None:
        wanted = self._wanted
        if wanted is None or not wanted.turns_away(time.time_ns() // 1_000_000):
            self._last = time.monotonic()
            return
        if self.state == State.WAITING_HEALTH_CHECK:
            self._workers.send_all("evacuation begin", reference=wanted.redirect_to.encode())
            self._go(State.EVICTING_CONNS)
        now = time.monotonic()
        passed, self._last = now - self._last, now
        self._connections = min(self._connections + wanted.conn_rate * passed, wanted.conn_rate)
        self._sessions = min(self._sessions + wanted.sess_rate * passed, wanted.sess_rate)
        left = await self._command(wanted)
        if self._wanted is not wanted:
            return  # stopped meanwhile
        self._left = left
        if left is not None:
            self._connections -= left["disconnected"]
            self._sessions -= left["offered"]
            self._advance(wanted, left)

    def _advance(self, wanted: Evacuation, left: Counter[str]) -> None:
        """Enters the next phase, or an earlier one for which there is work again."""
        if self._counters.totals()["connections.count"]:
            return self._go(State.EVICTING_CONNS)
        is_empty = not self._moves or (left["sessions"] <= left["staying"] and not left["moving"] and not left["forwarding"])
        if is_empty:
            return self._go(State.PROHIBITING)
        if self.state == State.EVICTING_CONNS:
            self._takeover_ends = time.monotonic() + wanted.wait_takeover_s
            self._go(State.WAITING_TAKEOVER)
        if self.state == State.PROHIBITING or (self.state == State.WAITING_TAKEOVER and time.monotonic() >= self._takeover_ends):
            self._go(State.EVICTING_SESSIONS)

    async def _command(self, wanted: Evacuation) -> Counter[str] | None:
        """Has each worker do its share. Returns what was done and what is left, or None: a worker did not answer."""
        found = [self._counters.of(worker) for worker in range(len(self._workers))]
        connections = shares(int(self._connections), [one["connections.count"] for one in found])
        offers = self.state == State.EVICTING_SESSIONS
        sessions = shares(int(self._sessions) if offers else 0, [one["sessions.count"] for one in found])
        try:
            nodes = self._node_ids(wanted.migrate_to) if offers else None
        except ControlError:
            nodes = []  # one of them has left
        calls = (self._command_one(worker, connections[worker], sessions[worker], nodes) for worker in range(len(self._workers)))
        results = await asyncio.gather(*calls, return_exceptions=True)
        left: Counter[str] = Counter()
        for result in results:
            if isinstance(result, ControlError):
                return None
            if isinstance(result, BaseException):
                raise result
            left.update(result)
        return left

    async def _command_one(self, worker: int, connections: int, sessions: int, nodes: list[int] | None) -> Counter[str]:
        done: Counter[str] = Counter()
        while True:
            part = {"connections": min(connections, AT_ONCE), "sessions": min(sessions, AT_ONCE)}
            found = await self._workers.call(worker, "evacuate", nodes=nodes, **part)
            done.update({name: found.pop(name) for name in ("disconnected", "offered")})
            connections, sessions = connections - part["connections"], sessions - part["sessions"]
            if not connections and not sessions:
                done.update(found)
                return done
