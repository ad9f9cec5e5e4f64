"""The managers of other nodes: verbs for them, and what they ask of this one."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from math import inf
from typing import Any, NamedTuple

from shardbroker.cluster.faults import PeerFault
from shardbroker.cluster.joining import Admission, JoinRequest
from shardbroker.config import Settings
from shardbroker.control import ControlError, Verb
from shardbroker.control.async_client import AsyncCalls
from shardbroker.link.calls import CallConnections, Streams
from shardbroker.link.identity import CookieError
from shardbroker.link.joins import answer_join
from shardbroker.link.sockets import JOINS, take_marked
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shardbroker.management.cluster_view import Peer, peers_of
from shardbroker.management.paging import decode_cursor, encode_cursor
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["FAULTS", "Missing", "Nodes", "text_of"]

NOT_FOUND = ("CLIENTID_NOT_FOUND", "NOT_FOUND")
UNPROVED_MAX = 100
"""Accepted connections without proof at the same time."""
REPEAT_S = 60.0
"""Between two log lines about refused connections: strangers cause them."""
FAULTS = (OSError, TimeoutError, PeerFault, CookieError)
"""Of connections between nodes."""

Own = Callable[[dict[str, Any]], Awaitable[Any]]
"""Carries out a verb with these parameters on this node."""


class Missing(NamedTuple):
    """A node whose rows are not in an answer."""

    node: str
    reason: str
    code: str = ""


class Nodes:
    """Of a node in a cluster. Cookie and certificates are read for each connection: they may be renewed, or be missing for a while.

    serve: takes a proved connection of another node with its name, until it ends. admit: returns what a broker gets that becomes a
    node, or raises PeerFault.
    """

    def __init__(
        self,
        topology: Topology,
        view: ViewSegment,
        settings: Callable[[], Settings],
        serve: Callable[[Streams, str], Awaitable[None]],
        log: Log,
        admit: Callable[[JoinRequest], Awaitable[Admission]],
    ) -> None:
        self.own = topology.node_name
        self._topology = topology
        self._view = view
        self._settings = settings
        self._serve = serve
        self._log = log
        self._admit = admit
        self._quiet_until = -inf
        self._calls: dict[tuple[str, str], AsyncCalls] = {}
        self._arriving = socket.socket(fileno=os.dup(topology.receiving_ends("calls")[0]))
        self._tasks: set[asyncio.Task[None]] = set()
        self._unproved = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Takes connections of other nodes from now on."""
        self._loop = loop
        loop.add_reader(self._arriving, self._accept)

    async def close(self) -> None:
        """Ends the connections."""
        self._loop.remove_reader(self._arriving)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *(calls.close() for calls in self._calls.values()), return_exceptions=True)

    # --- what other nodes ask -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for mark, sock in take_marked(self._arriving):
            if self._unproved >= UNPROVED_MAX:
                sock.close()
                continue
            self._unproved += 1
            task = self._loop.create_task(self._take_join(sock) if mark == JOINS else self._take(sock))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, sock: socket.socket) -> None:
        try:
            streams, name = await CallConnections(self._topology, self._view).accept(sock)
        except FAULTS as error:
            sock.close()
            self._note_refused(text_of(error))
            return
        finally:
            self._unproved -= 1
        await self._serve(streams, name)

    async def _take_join(self, sock: socket.socket) -> None:
        try:
            request = await answer_join(sock, self._topology.settings.cluster, self._admit)
        except FAULTS as error:
            self._note_refused(f"join: {text_of(error)}")
            return
        finally:
            self._unproved -= 1
        self._log.add(
            "info", log_line("node admitted", name=request.name, address=request.address, version=request.version)
        )
        self._log.flush()

    def _note_refused(self, reason: str) -> None:
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + REPEAT_S
            self._log.add("warning", log_line("peer manager refused", reason=reason))
            self._log.flush()

    def check(self, verb: Verb) -> None:
        """Raises ControlError if other nodes may not use this verb here."""
        allowed = self._settings().cluster.management
        if allowed == "off" or (allowed == "read" and verb.changes):
            raise ControlError("FORBIDDEN", f"{verb.name}: cluster.management of node {self.own} must be all, got {allowed}")

    # --- what this node asks --------------------------------------------------------------------------------------------------

    async def call(self, node: str, verb: str, params: dict[str, Any], by: str) -> Any:
        """Returns the result of a verb at another node. Raises ControlError."""
        return await self._calls_of(self._peer(node)).call(verb, requested_by=by, **params)

    async def stream(self, node: str, verb: str, params: dict[str, Any], by: str) -> AsyncIterator[Any]:
        """Yields the items of a verb at another node. Raises ControlError."""
        calls = self._new_calls(self._peer(node))
        try:
            async for item in calls.stream(verb, requested_by=by, **params):
                yield item
        finally:
            await calls.close()

    async def rows(self, verb: Verb, params: dict[str, Any], by: str, own: Own) -> dict[str, Any]:
        """Returns a list with the rows of all nodes, each with the name of its node, and who is `missing`. Raises ControlError: no
        node knows the client that the list is about, too."""
        if verb.is_shared:
            raise ControlError("BAD_REQUEST", f"{verb.name}: every node has the same rows")
        unknown: dict[str, ControlError] = {}

        async def ask(name: str, params: dict[str, Any]) -> Any:
            found = await self._ask(verb.name, name, params, by=by, own=own)
            if isinstance(found, Missing) and found.code in NOT_FOUND:
                unknown[name] = ControlError(found.code, found.reason)
                return {"data": []}
            return found

        names = sorted([self.own, *(peer.name for peer in self._peers())])
        if "cursor" in verb.params.model_fields:
            limit = params.get("limit") or verb.params.model_fields["limit"].default
            page = await _one_after_another(names, params, limit, ask)
        else:
            found = await asyncio.gather(*(ask(name, params) for name in names))
            present = [(name, one) for name, one in zip(names, found, strict=True) if not isinstance(one, Missing)]
            rows = [_of(name, row) for name, one in present for row in one["data"]]
            page = {"data": rows, "missing": _shown([one for one in found if isinstance(one, Missing)])}
        if self.own in unknown and len(unknown) + len(page["missing"]) == len(names):
            raise unknown[self.own]
        return page

    async def holder(self, verb: Verb, params: dict[str, Any], by: str, own: Own) -> Any:
        """Returns the result of a verb about a client of any node, or several. Raises ControlError: that of this node if no node
        knows it."""
        if "clientids" in params:
            return await self._holders(verb, params, by, own)
        try:
            return _of(self.own, await own(params))
        except ControlError as error:
            if error.code not in NOT_FOUND:
                raise
            unknown = error
        names = [peer.name for peer in self._peers()]
        asked = await asyncio.gather(*(self._ask(verb.name, name, params, by=by, own=own) for name in names))
        for name, one in zip(names, asked, strict=True):
            if not isinstance(one, Missing):
                return _of(name, one)
        raise _nowhere(str(unknown), unknown.code, asked)

    async def _holders(self, verb: Verb, params: dict[str, Any], by: str, own: Own) -> dict[str, Any]:
        """Carries out `clients kick` at all nodes: each has some of the clients."""
        names = [self.own, *(peer.name for peer in self._peers())]
        asked = await asyncio.gather(*(self._ask(verb.name, name, params, by=by, own=own) for name in names))
        found = [one for one in asked if not isinstance(one, Missing)]
        if not found:
            raise _nowhere(asked[0].reason, asked[0].code, asked[1:])
        return {"kicked": sorted({client_id for one in found for client_id in one["kicked"]})}

    async def _ask(self, verb: str, node: str, params: dict[str, Any], by: str, own: Own) -> Any:
        try:
            return await (own(params) if node == self.own else self.call(node, verb, params, by))
        except ControlError as error:
            if node == self.own and error.code not in NOT_FOUND:
                raise
            return Missing(node, str(error), error.code)

    def _peers(self) -> list[Peer]:
        return peers_of(self._view.read(), self._topology)

    def _peer(self, node: str) -> Peer:
        peers = self._peers()
        found = next((peer for peer in peers if peer.name == node), None)
        if found is None:
            names = ", ".join([self.own, *(peer.name for peer in peers)])
            raise ControlError("NOT_FOUND", f"node: must be one of {names}, got {node}")
        if not found.is_up:
            raise ControlError("NOT_AVAILABLE", f"node {node}: its link is {found.link}")
        return found

    def _calls_of(self, peer: Peer) -> AsyncCalls:
        key = peer.name, peer.address
        if key not in self._calls:
            self._calls[key] = self._new_calls(peer)
        return self._calls[key]

    def _new_calls(self, peer: Peer) -> AsyncCalls:
        return AsyncCalls(partial(self._dial, peer), f"node {peer.name}", self._settings().cluster.call_timeout)

    async def _dial(self, peer: Peer) -> Streams:
        try:
            return await CallConnections(self._topology, self._view).dial(peer.name, peer.address)
        except FAULTS as error:
            raise ControlError("NOT_AVAILABLE", f"node {peer.name} at {peer.address}: {text_of(error)}") from None


async def _one_after_another(
    names: list[str], params: dict[str, Any], limit: int, ask: Callable[..., Awaitable[Any]]
) -> dict[str, Any]:
    """Returns a page: rows of one node follow those of another. The cursor has the name of a node, and a cursor of that node."""
    at, inner = decode_cursor(params["cursor"], str, str) if params.get("cursor") else ("", "")
    names = sorted(name for name in names if name >= at)
    rows: list[dict[str, Any]] = []
    missing: list[Missing] = []
    for name, following in zip(names, [*names[1:], ""], strict=True):
        found = await ask(name, {**params, "limit": limit - len(rows), "cursor": inner if name == at and inner else None})
        if isinstance(found, Missing):
            missing.append(found)
            continue
        rows += [_of(name, row) for row in found["data"]]
        if found.get("cursor") is not None:
            return {"data": rows, "cursor": encode_cursor(name, found["cursor"]), "missing": _shown(missing)}
        if len(rows) >= limit and following:
            return {"data": rows, "cursor": encode_cursor(following, ""), "missing": _shown(missing)}
    return {"data": rows, "cursor": None, "missing": _shown(missing)}


def _nowhere(text: str, code: str, asked: list[Missing]) -> ControlError:
    """Returns the error of this node, which does not know a client; if another one did not answer, the client may be there."""
    for one in asked:
        if one.code not in NOT_FOUND:
            return ControlError(one.code, f"{text}; node {one.node} may have it: {one.reason}")
    return ControlError(code, text)


def _of(node: str, result: Any) -> Any:
    return {"node": node, **result} if isinstance(result, dict) else result


def _shown(missing: list[Missing]) -> list[dict[str, str]]:
    return [{"node": one.node, "reason": one.reason} for one in missing]


def text_of(error: BaseException) -> str:
    """Returns what a fault says."""
    return str(error) or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
