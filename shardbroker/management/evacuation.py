"""Evacuation and rebalance of this node: phases, the pace of the workers, and what is left.

    waiting_health_check   clients are accepted; load balancers learn that the node is about to leave
    evicting_conns         new clients are turned away, connected ones disconnected, `conn_rate` a second
    waiting_takeover       clients have time to take their sessions along
    evicting_sessions      sessions of absent clients move to other nodes, `sess_rate` a second
    prohibiting            nothing is left, and clients are turned away until `stop`

A rebalance has the same phases, the second and the fourth until this node has no more than its share (balance.py), and then ends.
In one of all nodes (rebalance.py) the goals are given, and a donor turns clients away until no other one has too many: clients of
that one would connect here.

Names are those of EMQX. The workers do the work (worker/evacuation.pyx), a bounded part for each command. What was asked for is in
a file (stores/evacuation.py): after a restart of the manager, or of the broker, the evacuation continues with `evicting_conns`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Any

from shardbroker.control import ControlError
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shardbroker.management.balance import ARRIVAL_S, DISCONNECT_S, OFFER_S, Share, UnderWay, goal_of, is_within, limit_of, part_of
from shardbroker.management.cluster_view import LinkReports, peers_of
from shardbroker.management.workers import Workers
from shardbroker.stores.evacuation import Evacuation, read_evacuation, remove_evacuation, write_evacuation
from shm.counters import Counters
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["Evacuator", "State", "shares"]

TICK_S = 0.2
"""Between two rounds of commands."""
STALLED_S = 60.0
"""Without progress for so long a rebalance ends: none takes sessions, or nodes that take clients are full."""
CLOSED_S = 10.0
"""Without a node that accepts clients for so long a rebalance ends: this node does. Longer than a link process needs to restart."""
BEGIN_S = 30.0
"""How long another donor with too many clients may take to turn them away, after this one."""
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
        self._leaving, self._arriving, self._offered = UnderWay(DISCONNECT_S), UnderWay(ARRIVAL_S), UnderWay(OFFER_S)
        self._open_s = 0.0
        """Monotonic s at which another node was known to accept clients."""
        self._begun_s = 0.0
        """Monotonic s from which clients are turned away."""
        self._is_ending = False
        """The file is removed, and not all workers are known to accept clients."""
        self._closed: set[str] = set()
        """Other donors that have turned clients away."""
        self._progress = 0, 0.0
        """What a rebalance had at the last change, and when."""
        self._left: Counter[str] | None = None
        """What all workers have answered last; None: one of them has not."""

    # --- requests ------------------------------------------------------------------------------------------------------

    def start(self, wanted: Evacuation, wait_s: float) -> dict[str, Any]:
        """Begins an evacuation. Raises ControlError."""
        if self._wanted is not None:
            raise ControlError("BAD_REQUEST", f"{_doing(self._wanted)} already: stop that first ({_stop(self._wanted)})")
        self._node_ids(wanted.migrate_to, wanted.thresholds is not None)
        if wanted.thresholds is not None and not wanted.coordinator:
            self._check_balance(wanted)
        totals, now_ms = self._counters.totals(), time.time_ns() // 1_000_000
        wanted = replace(
            wanted, evicts_from_ms=now_ms + int(wait_s * 1000), initial_connected=totals["connections.count"],
            initial_sessions=totals["sessions.count"],
        )  # fmt: skip
        if wanted.thresholds is not None:
            wanted = replace(wanted, ends_by_ms=now_ms + int(_longest_s(wanted, wait_s) * 1000))
        if wanted.coordinator and self._view is not None:
            wanted = replace(wanted, incarnation=self._view.incarnation)
        try:
            write_evacuation(self._topology.data_dir, wanted)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"evacuation not started: {error}") from None
        self._wanted = wanted
        self._progress = 0, 0.0
        self._left = None
        self._go(State.WAITING_HEALTH_CHECK)
        self._changed.set()
        return self.status()

    def stop(self, process: str) -> None:
        """Ends an evacuation or a rebalance: clients are accepted again, and bring back sessions that have moved.

        Raises ControlError.
        """
        wanted = self._wanted
        if wanted is None or wanted.process != process:
            hint = "" if wanted is None else f": {_doing(wanted)} ({_stop(wanted)})"
            raise ControlError("BAD_REQUEST", f"this node is not being {DONE[process]}{hint}")
        try:
            remove_evacuation(self._topology.data_dir)
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"{process} not stopped: {error}") from None
        self._accept_clients()
        self._end()

    def _accept_clients(self) -> None:
        """Has the workers accept clients; `caught_up` returns once they do."""
        self._workers.send_all("evacuation begin", reference=None)

    def _end(self) -> None:
        self._go(State.DISABLED)
        self._wanted = None
        self._is_ending = False

    def state_of(self, process: str) -> str:
        """Returns the state of `evacuation` or `rebalance`."""
        is_it = self._wanted is not None and self._wanted.process == process
        return self.state.value if is_it else State.DISABLED.value

    def status(self) -> dict[str, Any]:
        """Returns the state, and what is left."""
        wanted = self._wanted
        if wanted is None:
            return {"status": "disabled"}
        totals, left = self._counters.totals(), self._left or Counter()
        return {
            "status": "enabled",
            "process": wanted.process,
            "state": self.state.value,
            "connection_eviction_rate": wanted.conn_rate,
            "session_eviction_rate": wanted.sess_rate,
            "connection_goal": wanted.connection_goal,
            "session_goal": wanted.session_goal,
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
            **({} if wanted.thresholds is None else self._roles(wanted)),
        }

    def _roles(self, wanted: Evacuation) -> dict[str, Any]:
        """Returns what EMQX's status has of a rebalance besides. A node that balances itself is the one donor."""
        node = self._topology.node_name
        if wanted.coordinator:
            recipients = [name for name in wanted.migrate_to if name not in wanted.donors]
            return {"coordinator_node": wanted.coordinator, "donors": [*wanted.donors], "recipients": recipients}
        return {"coordinator_node": node, "donors": [node], "recipients": [share.name for share in self._shares(wanted)]}

    def _recipients(self, wanted: Evacuation) -> list[str]:
        """Returns the names of the nodes that get sessions."""
        if wanted.migrate_to or not self._moves:
            return [*wanted.migrate_to]
        return [peer.name for peer in self._peers() if peer.is_up]

    def _message(self, connected: int, sessions: int, left: Counter[str]) -> str:
        assert self._wanted is not None
        if self._wanted.thresholds is not None and self.state != State.WAITING_HEALTH_CHECK:
            return self._balance_message(self._wanted, connected, sessions)
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

    def _balance_message(self, wanted: Evacuation, connected: int, sessions: int) -> str:
        if self.state == State.EVICTING_CONNS:
            text = f"{connected} clients are connected, {wanted.connection_goal} shall stay"
            if full := self._full(wanted):
                text += f"; {full} may get no more: have the load balancer prefer nodes with fewer clients"
            elif self._giving(wanted):
                text += f"; clients are turned away until other donors have given theirs: {', '.join(self._giving(wanted))}"
        elif self.state == State.WAITING_TAKEOVER:
            text = "clients may take their sessions along"
        else:
            text = f"{max(0, sessions - connected)} sessions have no client, {wanted.session_goal} shall stay"
        return text if self._shares(wanted) else f"{text}; no other node takes part: each is not linked, or turns clients away"

    # --- rebalance -----------------------------------------------------------------------------------------------------

    def _shares(self, wanted: Evacuation) -> list[Share]:
        """Returns the other nodes that take part, are linked and accept clients, with what they have reported."""
        found, reports = [], LinkReports(self._topology)
        for peer in self._peers():
            if peer.id is None or not peer.is_up or (wanted.migrate_to and peer.name not in wanted.migrate_to):
                continue
            load = reports.load(peer.id)
            if load["accepts_clients"]:
                absent = max(0, load["sessions"] - load["connections"])
                found.append(Share(peer.name, peer.id, load["connections"], absent))
        return found

    def _loads(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Returns what linked nodes of these names have reported."""
        reports = LinkReports(self._topology)
        return {peer.name: reports.load(peer.id) for peer in self._peers() if peer.is_up and peer.name in names}

    def _giving(self, wanted: Evacuation) -> list[str]:
        """Returns the other donors with too many clients that turn clients away, or are about to."""
        thresholds, found = wanted.thresholds, []
        is_early = time.monotonic() - self._begun_s < BEGIN_S
        assert thresholds is not None
        for name, load in self._loads(wanted.donors).items():
            if load["accepts_clients"] is False:
                self._closed.add(name)
            is_about_to = is_early and name not in self._closed
            has_too_many = load["connections"] is not None and not is_within(
                load["connections"], wanted.connection_goal, thresholds.abs_conn, thresholds.rel_conn
            )
            if has_too_many and (load["accepts_clients"] is False or is_about_to):
                found.append(name)
        return found

    def _full(self, wanted: Evacuation) -> str:
        """Returns the name of a node that may get no further client; empty without one."""
        thresholds = wanted.thresholds
        assert thresholds is not None
        limit = limit_of(wanted.connection_goal, thresholds.abs_conn, thresholds.rel_conn)
        return next((share.name for share in self._shares(wanted) if share.connections >= limit), "")

    def _room(self, wanted: Evacuation, giving: Sequence[str], limit: int, values: Sequence[int]) -> int:
        """Returns how many the fullest of some nodes may get of this node: `limit` less what it has, divided among all donors."""
        names = sorted([self._topology.node_name, *giving])
        return part_of(max(0, limit - max(values)), names.index(self._topology.node_name), len(names)) if values else 0

    def _own(self) -> tuple[int, int]:
        """Returns the connections of this node, and its sessions without a client."""
        totals = self._counters.totals()
        return totals["connections.count"], max(0, totals["sessions.count"] - totals["connections.count"])

    def _check_balance(self, wanted: Evacuation) -> None:
        """Raises ControlError if there is nothing to do, or no node that could take part."""
        thresholds, shares_ = wanted.thresholds, self._shares(wanted)
        assert thresholds is not None
        if not shares_:
            raise ControlError("BAD_REQUEST", "no other node takes part: each is not linked, or turns clients away")
        connections, absent = self._own()
        count = len(shares_)
        average = sum(share.connections for share in shares_) / count, sum(share.absent for share in shares_) / count
        has_conns = not is_within(connections, average[0], thresholds.abs_conn, thresholds.rel_conn)
        has_sessions = self._moves and not is_within(absent, average[1], thresholds.abs_sess, thresholds.rel_sess)
        if not has_conns and not has_sessions:
            here = f"this node has {connections} clients and {absent} absent sessions"
            text = f"nothing to balance: {here}, the others {average[0]:g} and {average[1]:g} on average"
            raise ControlError("BAD_REQUEST", f"{text}; see --abs-conn-threshold and --abs-sess-threshold")

    async def _balance(self, wanted: Evacuation) -> None:
        """Does what is due of a rebalance, after its clients are turned away."""
        thresholds, found, now = wanted.thresholds, self._shares(wanted), time.monotonic()
        assert thresholds is not None
        connections, absent = self._own()
        if found:
            self._open_s = now
        elif now - self._open_s >= CLOSED_S:
            return await self._complete()
        if self.state == State.EVICTING_CONNS:
            if found and not wanted.coordinator:
                wanted = self._raise_goal(wanted, goal_of(connections, [share.connections for share in found]), wanted.session_goal)
            goal = wanted.connection_goal
            giving = self._giving(wanted)
            if (found or goal) and is_within(connections, goal, thresholds.abs_conn, thresholds.rel_conn):
                if giving:
                    self._progress = connections, now
                    return None
                self._takeover_ends = now + wanted.wait_takeover_s
                return self._go(State.WAITING_TAKEOVER)
            limit = limit_of(goal, thresholds.abs_conn, thresholds.rel_conn)
            room = self._room(wanted, giving, limit, [share.connections for share in found]) - self._arriving.count(now)
            await self._evict(max(0, min(connections - goal - self._leaving.count(now), room)), 0, None)
            return await self._watch(wanted, connections, now)
        if self.state == State.WAITING_TAKEOVER:
            if now >= self._takeover_ends:
                self._progress = absent, now
                self._go(State.EVICTING_SESSIONS)
            return None
        if not self._moves:
            return await self._complete()
        if found:
            wanted = self._raise_goal(wanted, wanted.connection_goal, goal_of(absent, self._absent_elsewhere(wanted, found)))
        goal = wanted.session_goal
        is_done = (found or goal) and is_within(absent, goal, thresholds.abs_sess, thresholds.rel_sess)
        takers = [] if is_done else [share for share in found if share.absent < goal]
        limit, others = limit_of(goal, thresholds.abs_sess, thresholds.rel_sess), self._giving_sessions(wanted)
        room = self._room(wanted, others, limit, [share.absent for share in takers]) - self._offered.count(now)
        most = max(0, min(absent - goal - self._offered.count(now), room))
        await self._evict(0, most, [share.node_id for share in takers])
        if is_done and self._wanted is wanted and self._left is not None and not self._left["moving"]:
            return await self._complete()
        return await self._watch(wanted, absent, now)

    def _absent_elsewhere(self, wanted: Evacuation, found: Sequence[Share]) -> list[int]:
        """Returns the absent sessions of the other nodes that take part, of other donors too."""
        if not wanted.coordinator:
            return [share.absent for share in found]
        loads = self._loads(wanted.migrate_to).values()
        return [max(0, load["sessions"] - load["connections"]) for load in loads if load["sessions"] is not None]

    def _giving_sessions(self, wanted: Evacuation) -> list[str]:
        """Returns the other donors with too many absent sessions that turn clients away."""
        return [
            name
            for name, load in self._loads(wanted.donors).items()
            if load["accepts_clients"] is False and load["sessions"] - load["connections"] > wanted.session_goal
        ]

    def _raise_goal(self, wanted: Evacuation, connections: int, sessions: int) -> Evacuation:
        """Stores goals, which only rise: the file outlives this process."""
        connections, sessions = max(wanted.connection_goal, connections), max(wanted.session_goal, sessions)
        if (connections, sessions) == (wanted.connection_goal, wanted.session_goal):
            return wanted
        raised = replace(wanted, connection_goal=connections, session_goal=sessions)
        with suppress(OSError):  # the goal of this process holds without it
            write_evacuation(self._topology.data_dir, raised)
        self._wanted = raised
        return raised

    async def _evict(self, connections: int, sessions: int, nodes: list[int] | None) -> None:
        """Has the workers do a part that the rates allow."""
        left = await self._command(min(connections, int(self._connections)), min(sessions, int(self._sessions)), nodes)
        self._left = left
        if left is not None:
            self._connections -= left["disconnected"]
            self._sessions -= left["offered"]
            self._leaving.add(time.monotonic(), left["disconnected"])
            self._arriving.add(time.monotonic(), left["disconnected"])
            self._offered.add(time.monotonic(), left["offered"])

    async def _watch(self, wanted: Evacuation, count: int, now: float) -> None:
        """Ends the rebalance if nothing has left for a while."""
        if self._wanted is not wanted:
            return  # stopped meanwhile
        if count != self._progress[0] or not self._progress[1]:
            self._progress = count, now
        elif now - self._progress[1] >= STALLED_S:
            await self._complete()

    def _is_over(self, wanted: Evacuation, now_ms: int) -> bool:
        """Returns whether a rebalance has had its time, or is one of an earlier broker whose part has ended with it."""
        is_earlier = bool(wanted.coordinator) and self._view is not None and wanted.incarnation != self._view.incarnation
        return is_earlier or bool(wanted.ends_by_ms and now_ms >= wanted.ends_by_ms)

    async def _complete(self) -> None:
        """Ends the rebalance by itself, once all workers accept clients again."""
        wanted = self._wanted
        try:
            remove_evacuation(self._topology.data_dir)
        except OSError:
            return
        self._is_ending = True
        self._accept_clients()
        late = await self._workers.caught_up()
        if not late and self._wanted is wanted:  # else stopped meanwhile
            self._end()

    def _peers(self) -> list[Any]:
        return [] if self._view is None else peers_of(self._view.read(), self._topology)

    def _node_ids(self, names: Sequence[str], balances: bool = False) -> list[int] | None:
        """Returns the ids of nodes; None without names: all. Raises ControlError."""
        if not names:
            return None
        key = "nodes" if balances else "migrate_to"
        if not self._moves and not balances:
            raise ControlError("BAD_REQUEST", "migrate_to: must be left out, sessions of this node do not move (cluster.registry)")
        known = {peer.name: peer.id for peer in self._peers() if peer.id is not None}
        for name in names:
            if name not in known:
                nodes = ", ".join(sorted(known)) or "there is no other one"
                raise ControlError("BAD_REQUEST", f"{key}: must be other nodes of this cluster ({nodes}), got {name}")
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
            process = "evacuation" if self._wanted is None else self._wanted.process
            self._log.add("info", log_line("node evacuation", state=state.value, process=process))
            self._log.flush()

    async def _step(self) -> None:
        wanted = self._wanted
        now_ms = time.time_ns() // 1_000_000
        if wanted is not None and (self._is_ending or self._is_over(wanted, now_ms)):
            return await self._complete()
        if wanted is None or not wanted.turns_away(now_ms):
            self._last = time.monotonic()
            return
        if self.state == State.WAITING_HEALTH_CHECK:
            self._workers.send_all("evacuation begin", reference=wanted.redirect_to.encode())
            await self._workers.caught_up()
            if self._wanted is not wanted:
                return  # stopped meanwhile
            self._begun_s = self._open_s = time.monotonic()
            self._closed.clear()
            self._go(State.EVICTING_CONNS)
        now = time.monotonic()
        passed, self._last = now - self._last, now
        self._connections = min(self._connections + wanted.conn_rate * passed, wanted.conn_rate)
        self._sessions = min(self._sessions + wanted.sess_rate * passed, wanted.sess_rate)
        if wanted.thresholds is not None:
            return await self._balance(wanted)
        left = await self._command_all(wanted)
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

    async def _command_all(self, wanted: Evacuation) -> Counter[str] | None:
        offers = self.state == State.EVICTING_SESSIONS
        try:
            nodes = self._node_ids(wanted.migrate_to) if offers else None
        except ControlError:
            nodes = []  # one of them has left
        return await self._command(int(self._connections), int(self._sessions) if offers else 0, nodes)

    async def _command(self, most_connections: int, most_sessions: int, nodes: list[int] | None) -> Counter[str] | None:
        """Has each worker do its share. Returns what was done and what is left, or None: a worker did not answer."""
        found = [self._counters.of(worker) for worker in range(len(self._workers))]
        connections = shares(most_connections, [one["connections.count"] for one in found])
        absent = [max(0, one["sessions.count"] - one["connections.count"]) for one in found]
        sessions = shares(most_sessions, absent)
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


def _longest_s(wanted: Evacuation, wait_s: float) -> float:
    """Returns after how many seconds a rebalance ends, whatever it has reached: twice what all clients and sessions would take."""
    eviction_s = wanted.initial_connected / wanted.conn_rate + wanted.initial_sessions / wanted.sess_rate
    return wait_s + wanted.wait_takeover_s + 2 * (eviction_s + STALLED_S)


DONE = {"evacuation": "evacuated", "rebalance": "rebalanced"}


def _doing(wanted: Evacuation) -> str:
    return f"this node is being {DONE[wanted.process]}"


def _stop(wanted: Evacuation) -> str:
    return f"ctl node {'evacuate' if wanted.thresholds is None else 'rebalance'} stop"
