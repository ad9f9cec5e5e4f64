"""The process `cluster`: has this node's lease in the core, and writes what the core says of the members for link-0.

It may die at any time, and the core may be gone for any time: the last view stays, and nothing waits for this process. The
heartbeat of its slot is the time of the last renewal of the lease, by which link-0 knows whether it is held. With
`cluster.core.mode = managed` it has the etcd of this node as a child, which ends with it.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

import cbor2

from shardbroker.cluster.adoption import AdoptionRefused, adopter, claim, completion, release
from shardbroker.cluster.core import DRAINING, JOINING, UP, CoreTable, CoreView, decode_view, encode_view
from shardbroker.cluster.handshake import Identity
from shardbroker.cluster.registration import Change, Cleaner, Put, RegistrationRefused, registration, removal
from shardbroker.cluster.view import LinkState, NodeState
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line, of_process
from shardbroker.membership.changes import CoreChanges, CoreRefused
from shardbroker.membership.discovery import DiscoveryError
from shardbroker.membership.enrolment import client_of, keys_of, read_members
from shardbroker.membership.etcd import (
    EtcdError,
    EtcdUnavailable,
    LeaseGone,
    Member,
    Txn,
    delete_op,
    end_of_prefix,
    put_op,
    unchanged,
)
from shardbroker.membership.own_etcd import OwnEtcd
from shardbroker.membership.settings import CoreSettings, NotKnown
from shardbroker.membership.strategies import discovered
from shardbroker.stores.adoption import STAND_IN, Adopted, write_adopted
from shardbroker.stores.files import replace_file
from shm.counters import Counters, ProcessState
from shm.roles import CLUSTER
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["run"]

TICK_S = 0.1
"""Interval of looks at the state of the node, and at what is due."""
PAUSE_S = 0.2, 2.0
"""Pause behind a failure, doubled up to the longest."""
STOP_S = 1.0
"""Longest time for the end of the lease when the node stops; without it the lease ends by itself."""
LEAVE_S = 3.0
"""Longest time to leave the cluster when the node stops."""
REPEAT_S = 60.0
"""Interval between two log lines about the same failure."""
CORE_S = 5.0
"""Interval of looks at the members of etcd and at its alarms."""
FIRST_S = 5.0
"""Longest wait for the own etcd before calls to it count as failed."""
REQUEST_MAX = 1 << 18
"""Bytes of a request of the manager: a change of many settings."""
TRIES = 3
"""Attempts of a registration that finds a key changed."""
NOT_REACHED = "etcd is not reached, and decides which node adopts a data directory"
VERSION_LEAST, VERSION_GOOD = (3, 4, 22), (3, 5, 14)
"""etcd before the first one is refused; before the second one its members may differ from each other (etcd#14211)."""


def run(topology: Topology) -> None:
    """Serves until SIGTERM."""
    asyncio.run(_Membership(topology).serve())


class _Membership:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._settings = cluster = topology.settings.cluster
        self._counters = Counters.attach(topology.counters_name)
        self._slot = topology.slot_of(CLUSTER)
        self._counters.set_state(self._slot, ProcessState.STARTING)
        self._log = Log(topology.settings.log.level)
        self._view = ViewSegment.attach(topology.view_name)
        self._keys = keys_of(cluster)
        self._node_id = topology.node_id
        self._before, self._former = self._read_before()
        self._table = CoreTable(self._keys, self._before)
        self._is_loaded = False
        self._lease = 0
        self._registered = ""
        """State under which the core has this node; empty: it has not."""
        self._registered_at = 0
        """Revision of the registration."""
        self._written: CoreView | None = None
        self._state: dict[str, Any] = {}
        self._logged: dict[str, tuple[str, float]] = {}
        uuid, incarnation = self._view.uuid, self._view.incarnation
        self._me = Identity(
            topology.node_id, topology.node_name, topology.link_address, topology.cluster_uuid, uuid, incarnation
        )
        self._cleaner = Cleaner(self._node_id, int(cluster.autoclean * 1000))
        self._version = ""
        self._alarms: tuple[str, ...] = ()
        """Of etcd: NOSPACE, CORRUPT."""
        self._own: OwnEtcd | None = None
        """With `core.mode = managed`, as `_changes`."""
        self._changes: CoreChanges | None = None
        self._term = int(os.environ.get(STAND_IN, "0"))
        """Of the adoption for which this broker serves the data directory; 0: it is that of this node."""
        self._is_fenced = False
        self._core_settings = CoreSettings(topology, self._keys, self._failed, self._recovered)
        self._error = ""
        """Why the lease was not renewed the last time; empty: it was."""

    def _read_before(self) -> tuple[CoreView, int]:
        """Returns what is known of the members, and the incarnation of this node's last broker."""
        for path in (self._topology.core_file, self._topology.core_copy):
            with suppress(FileNotFoundError, ValueError):
                view = decode_view(path.read_bytes())
                own = view.node(self._node_id)
                return view._replace(is_current=False), own.incarnation if own is not None else 0
        return CoreView(), 0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._etcd = client_of(self._settings, self._topology.node_name, self._topology.data_dir)
        except EtcdError as error:
            sys.exit(f"cluster: {'cluster.tls' if self._settings.is_managed else 'cluster.etcd.tls'}: {error}")
        name, data_dir = self._topology.node_name, self._topology.data_dir
        if self._settings.is_managed:
            self._own = OwnEtcd(self._settings, name, data_dir, self._etcd, self._add, self._failed, self._recovered)
            self._changes = CoreChanges(self._settings, self._keys, name, data_dir, self._add, self._own.restart)
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides when to stop this process
        (end,) = self._topology.receiving_ends("core")
        self._requests = socket.socket(fileno=os.dup(end))
        self._requests.setblocking(False)
        self._note_state("connecting", "")
        self._counters.set_state(self._slot, ProcessState.READY)  # the broker does not wait for it: link-0 waits for its view
        server = asyncio.create_task(self._own.run() if self._own is not None else asyncio.Event().wait())
        work = self._follow, self._keep_lease, self._tick, self._look_at_core, self._answer, stop.wait
        tasks = [server, *(asyncio.create_task(one()) for one in work)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks[1:], return_exceptions=True)
            for task in done:
                task.result()  # an error ends the process, and the supervisor starts another
            if self._lease:
                with suppress(EtcdError, TimeoutError):
                    async with asyncio.timeout(STOP_S):
                        await self._etcd.revoke(self._lease)
                        self._lease = 0
            if stop.is_set() and self._topology.leaves_file.exists():
                await self._leave()
        finally:
            await self._etcd.close()
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)
        self._log.close()
        self._counters.set_state(self._slot, ProcessState.DOWN)

    # --- the core ---------------------------------------------------------------------------------------------------------

    async def _await_etcd(self) -> None:
        """Waits for this node's etcd to find a leader, but not for long."""
        if self._own is None or not self._own.is_wanted:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                while True:
                    with suppress(EtcdError):
                        if (await self._etcd.status_of(self._own.url)).leader:
                            return
                    await asyncio.sleep(TICK_S)

    async def _look_at_core(self) -> None:
        """Follows etcd's alarms, and with `managed` its members."""
        while True:
            try:
                self._alarms = (await self._etcd.status()).alarms
                if self._own is not None:
                    await self._own.follow_members()
                if self._is_loaded and not self._core_settings.is_read:
                    await self._read_again()
            except EtcdError:  # the lease is not renewed either, which has a line in the log
                await self._discover()
            self._note_state(self._state["state"], self._state["error"])
            await asyncio.sleep(CORE_S)

    async def _discover(self) -> None:
        """Looks for the core again, if that is found by DNS or Kubernetes."""
        if not self._settings.is_discovered:
            return
        try:
            found = await discovered(self._settings)
            self._recovered("core discovery failed")
        except DiscoveryError as error:
            self._failed("core discovery failed", error)
            return
        if self._own is not None and self._own.is_wanted:
            own = self._own.url
            found = [own, *(url for url in found if url != own)]
        if sorted(found) != sorted(self._etcd.endpoints):
            await self._etcd.use(found)

    # --- the view ---------------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Reads all keys and then their changes, and again whenever some may have been missed."""
        pause_s, prefix = PAUSE_S[0], self._keys.prefix
        await self._await_etcd()
        while True:
            try:
                await self._check_version()
                rows, revision = await read_members(self._etcd, self._keys)
                settings = await self._core_settings.read(self._etcd, revision)
                self._table.load(rows, revision)
                self._core_settings.load(self._table, settings)
                if self._end_if_adopted():
                    await asyncio.Event().wait()  # without a view no client is served
                await self._have_settings_applied()
                self._is_loaded, self._registered = True, ""  # a new put also gives all nodes one revision behind missed deletions
                self._publish()
                pause_s = PAUSE_S[0]
                async for events in self._etcd.watch(prefix, end_of_prefix(prefix), revision + 1):
                    changes = [(one.kv.key, None if one.is_delete else one.kv.value, one.kv.mod_revision) for one in events]
                    self._table.apply(changes)
                    self._end_if_adopted()
                    self._publish()
                    self._recovered("core watch failed")
            except EtcdError as error:
                self._failed("core watch failed", error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S[1])

    def _end_if_adopted(self) -> bool:
        """Ends this broker if another node has its data directory; returns whether that is so."""
        uuid = self._view.uuid
        owner = adopter(self._table, uuid, self._term)
        if owner is None or self._is_fenced:
            return owner is not None
        self._is_fenced = True
        if not self._term:
            try:
                write_adopted(self._topology.data_dir, Adopted(owner, self._table.adoptions[uuid].value["since"]))
            except OSError as error:
                self._failed("adoption not noted", error)
        self._note_state("refused", f"the data directory belongs to an adoption by node {owner}")
        self._add("error", log_line("data directory adopted", by=owner, data_dir=self._topology.data_dir))
        os.kill(os.getppid(), signal.SIGTERM)
        return True

    async def _have_settings_applied(self) -> None:
        """Has the manager of a node that joins apply the settings of all nodes before the node knows the others, and so serves."""
        is_joining = not self._topology.core_file.exists()
        self._core_settings.publish(self._table)
        if is_joining and self._table.settings:
            await self._core_settings.applied(self._table)

    async def _check_version(self) -> None:
        """Warns of an etcd whose members may differ. Raises EtcdError for one that is too old."""
        version = (await self._etcd.status()).version
        if version == self._version:
            return
        number = tuple(int(part) if part.isdigit() else 0 for part in version.split("-")[0].split(".")[:3])
        if number < VERSION_LEAST:
            raise EtcdError(f"etcd: must have version {'.'.join(map(str, VERSION_LEAST))} or later, got {version}")
        self._version = version
        if number < VERSION_GOOD:
            fields = {"version": version, "endpoint": self._etcd.endpoint, "wanted": ".".join(map(str, VERSION_GOOD))}
            self._add("warning", log_line("etcd version has known faults", **fields))

    def _publish(self) -> None:
        """Writes the view if it has changed, and what could not be read to the log."""
        for problem in self._table.problems:
            self._repeated("core key not usable", "warning", problem)
        self._table.problems.clear()
        self._core_settings.publish(self._table)
        own = self._table.row("members", self._node_id)
        if self._table.revision >= self._registered_at and (own is None or own.value["incarnation"] != self._view.incarnation):
            self._registered = ""
        view = self._table.view()
        if view == self._written:
            return
        self._written = view
        text = encode_view(view)
        replace_file(self._topology.core_file, text, sync=False)
        try:
            self._topology.core_copy.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(self._topology.core_copy, text)
            self._recovered("core members not stored")
        except OSError as error:
            self._failed("core members not stored", error)

    # --- the lease --------------------------------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        """Renews the lease, three times as often as it needs."""
        ttl_s = max(2, round(self._settings.lease))
        await self._await_etcd()
        while True:
            begun = time.monotonic()
            pause_s = ttl_s / 3
            try:
                if not self._lease:
                    self._lease, self._registered = await self._etcd.grant(ttl_s), ""
                else:
                    await self._etcd.keep_alive(self._lease)
                self._counters.beat(self._slot, int(begun * 1000))
                self._error = ""
                self._recovered("core not reachable")
                if self._state.get("state") != "refused":
                    self._note_state("connected", "")
            except LeaseGone:
                self._lease, self._registered = 0, ""
                self._add("warning", log_line("core lease lost", node_id=self._node_id))
                continue
            except EtcdError as error:
                self._error = str(error)
                self._failed("core not reachable", error)
                pause_s = PAUSE_S[0]
            await asyncio.sleep(pause_s)

    async def _tick(self) -> None:
        """Brings the core up to date with the state of this node, and removes nodes that are gone for too long."""
        while True:
            await asyncio.sleep(TICK_S)
            self._log.flush()
            silent_ms = time.monotonic() * 1000 - self._counters.heartbeat(self._slot)
            if silent_ms > (self._settings.lease - 1) * 1000 and (self._error or self._state["state"] == "connected"):
                self._note_state("lost", self._error or "no answer in time")
            if not self._is_loaded or not self._lease or self._is_fenced:
                continue
            try:
                if self._registered != self._wanted_state():
                    await self._register()
                await self._core_settings.pass_on(self._etcd, self._lease)
                await self._clean()
            except EtcdError as error:
                self._failed("core registration failed", error)
                await asyncio.sleep(PAUSE_S[0])
            except RegistrationRefused as error:
                self._note_state("refused", str(error))
                self._repeated("core registration refused", "error", str(error))
                await asyncio.sleep(1.0)

    def _wanted_state(self) -> str:
        state = self._view.read().state
        if state in (NodeState.DRAINING, NodeState.LEFT):
            return DRAINING
        return UP if state in (NodeState.ALONE, NodeState.NORMAL) else JOINING

    async def _register(self) -> None:
        """Sets this node's key under its lease. Raises EtcdError, RegistrationRefused."""
        state, lease = self._wanted_state(), self._lease
        for _ in range(TRIES):
            lost = () if self._table.meta else self._core_settings.lost(self._table)
            serves = self._own.address if self._own is not None else ""
            wanted = registration(self._table, self._me, self._former, state, serves, lost, self._term)
            done = await self._change(wanted, lease)
            if done.succeeded:
                self._recovered("core registration refused")
                self._recovered("core registration failed")
                if self._state.get("state") == "refused":
                    self._note_state("connected", "")
                self._registered, self._registered_at = state if lease == self._lease else "", done.revision
                return
            await self._read_again()

    async def _read_again(self) -> None:
        """Reads the keys at once, since the watch may be behind."""
        rows, revision = await read_members(self._etcd, self._keys)
        settings = await self._core_settings.read(self._etcd, revision)
        if revision >= self._table.revision:
            self._table.load(rows, revision)
            self._core_settings.load(self._table, settings)
            self._publish()

    async def _change(self, change: Change, lease: int = 0) -> Txn:
        """Carries out a change if its conditions hold. Raises EtcdError."""
        operations = [
            put_op(one.key, one.value, lease if one.is_leased else 0) if isinstance(one, Put) else delete_op(one.key)
            for one in change.operations
        ]
        return await self._etcd.txn([unchanged(*condition) for condition in change.conditions], operations)

    # --- nodes that are gone ----------------------------------------------------------------------------------------------

    async def _clean(self) -> None:
        """Removes nodes that have had no lease for `cluster.autoclean`. Raises EtcdError."""
        view = self._table.view()
        for node_id in self._cleaner.due(self._table, self._linked(), int(time.monotonic() * 1000)):
            if await self._remove(node_id, "autoclean"):
                node = view.node(node_id)
                self._add("warning", log_line("node removed", name=node.name if node else node_id, by="autoclean"))

    def _linked(self) -> set[int]:
        """Returns the nodes to which this one has a link: they are running, whether or not they reach the core."""
        nodes = self._view.read().nodes.items()
        return {node_id for node_id, node in nodes if node.is_member and node.link in (LinkState.SYNCING, LinkState.UP)}

    async def _remove(self, node_id: int, by: str, forget: bool = False) -> bool:
        """Marks a node without a lease as gone, unless its keys change meanwhile. Raises EtcdError."""
        change = removal(self._table, node_id, by, int(time.time()), forget)
        return change is not None and (await self._change(change)).succeeded

    # --- requests of the manager ------------------------------------------------------------------------------------------

    async def _answer(self) -> None:
        """Answers {"id", "verb", "node": name, "address": of a witness} with {"id", "result", "error": text, empty if it was done}.

        Verbs: force-leave, forget, core status, core add, core remove, core recover, core leave, adopt check, begin, finish and
        stop with the `uuid` of the data directory, config read, config change with the parameters of CoreSettings.change.
        """
        loop = asyncio.get_running_loop()
        while True:
            request = cbor2.loads(await loop.sock_recv(self._requests, REQUEST_MAX))
            error, result = "", None
            try:
                if request["verb"].startswith("config "):
                    result = await self._change_settings(request)
                elif request["verb"].startswith("adopt "):
                    result = await self._change_adoption(request["verb"], request["node"], request["uuid"])
                elif request["verb"].startswith("core "):
                    result = await self._change_core(request["verb"], request["node"], request.get("address", ""))
                else:
                    error = await self._carry_out(request["verb"], request["node"])
            except CoreRefused as refused:
                error = str(refused)
            except EtcdError as failed:
                error = str(failed) if request["verb"] in ("core status", "config read") else f"the core was not changed: {failed}"
            except NotKnown as unknown:
                error = f"etcd has not answered, so it is not known whether settings have changed: {unknown}"
            with suppress(BlockingIOError):  # a manager that does not read has given up
                self._requests.send(cbor2.dumps({"id": request["id"], "error": error, "result": result}))

    async def _plan_to_leave(self) -> None:
        """Has this node leave the cluster when its broker stops; its etcd leaves the core now. Raises CoreRefused, EtcdError."""
        own = self._topology.node_name
        if self._changes is not None and any(one.name == own for one in await self._etcd.members()):
            await self._changes.remove(self._etcd, self._table, self._lease, own)
        replace_file(self._topology.leaves_file, b"", sync=False)

    async def _leave(self) -> None:
        """Removes this node, whose lease has ended, and frees its id."""
        name = self._topology.node_name
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._read_again()
                is_done = not self._lease and await self._remove(self._node_id, "leave", forget=True)
            reason = "the keys of this node have changed"
        except (EtcdError, TimeoutError) as error:
            is_done, reason = False, str(error) or "no answer in time"
        if is_done:
            self._add("warning", log_line("node left", name=name))
        else:
            self._add("error", log_line("node not left", name=name, reason=reason))

    async def _change_core(self, verb: str, node: str, address: str) -> Any:
        """Returns the members of etcd, or the size of the core after a change. Raises CoreRefused, EtcdError."""
        if verb == "core status":
            return await self._core_status()
        changes = self._changes
        if changes is None:
            if verb != "core leave":
                raise CoreRefused("nodes do not run etcd: cluster.core.mode is external, so its members are changed with etcdctl")
        elif verb == "core recover":
            return await changes.recover(self._etcd)
        hint = "if its majority is lost for good: ctl cluster core recover"
        if not self._is_loaded or not self._lease:
            raise CoreRefused(f"the core is not reached: {self._error or 'no lease yet'}; {hint}")
        try:
            await self._read_again()
            if changes is None or verb == "core leave":
                return await self._plan_to_leave()
            change = changes.add if verb == "core add" else changes.remove
            return await change(self._etcd, self._table, self._lease, node, address)
        except EtcdUnavailable as error:
            raise CoreRefused(f"the core is not reached: {error}; {hint}") from None

    async def _change_adoption(self, verb: str, name: str, uuid: bytes) -> dict[str, Any] | None:
        """Checks or changes the row of a data directory in `adopted/`; `check` and `begin` return id, term and etcd's endpoints.

        Raises CoreRefused, EtcdError."""
        now_s = int(time.time())
        for _ in range(TRIES):
            if not self._is_loaded or not self._lease:
                raise CoreRefused(f"{NOT_REACHED}: {self._error or 'no lease yet'}")
            try:
                await self._read_again()
                found, change = None, None
                if verb == "adopt finish":
                    change = completion(self._table, self._me, uuid, now_s)
                elif verb == "adopt stop":
                    change = release(self._table, self._me, uuid)
                else:
                    node_id, term, change = claim(self._table, self._me, name, uuid, now_s)
                    if change is not None and node_id in self._linked():
                        raise AdoptionRefused(f"node {name} is running: it is linked to this node")
                    found = {"id": node_id, "term": term, "endpoints": [*self._etcd.endpoints]}
                if change is None or verb == "adopt check" or (await self._change(change)).succeeded:
                    if change is not None and verb == "adopt finish":
                        self._add("warning", log_line("node removed", name=name, by="adopt"))
                    return found
            except EtcdUnavailable as error:
                raise CoreRefused(f"{NOT_REACHED}: {error}") from None
            except AdoptionRefused as refused:
                raise CoreRefused(str(refused)) from None
        raise CoreRefused(f"the keys of node {name} change all the time: try again")

    async def _change_settings(self, request: dict[str, Any]) -> Any:
        """Reads the settings of all nodes again, or changes them. Raises CoreRefused, EtcdError, NotKnown."""
        if not self._is_loaded or not self._lease:
            raise CoreRefused(f"etcd is not reached, and settings of all nodes are kept there: {self._error or 'no lease yet'}")
        if request["verb"] == "config change":
            return await self._core_settings.change(self._etcd, self._table, request, self._read_again)
        try:
            await self._read_again()
        except EtcdUnavailable as error:
            raise CoreRefused(f"etcd is not reached, and settings of all nodes are kept there: {error}") from None
        if not self._core_settings.is_read:
            raise CoreRefused("settings of all nodes cannot be read: see `core settings not read` in the log")
        if self._table.meta != self._topology.cluster_uuid:
            raise CoreRefused("etcd has no settings of this cluster: see `ctl cluster status`")
        return None

    async def _core_status(self) -> list[dict[str, Any]]:
        """Returns the members of etcd with their state. Raises EtcdError."""
        return [*await asyncio.gather(*(self._status_of(one) for one in await self._etcd.members()))]

    async def _status_of(self, member: Member) -> dict[str, Any]:
        found = {"name": member.name, "id": f"{member.id:x}", "peer": ",".join(member.peer_urls), "state": "stopped", "version": "",
                 "database_bytes": 0, "alarms": "", "client": ",".join(member.client_urls)}  # fmt: skip
        if not member.client_urls:
            return {**found, "state": "not started"}
        try:
            server = await self._etcd.status_of(member.client_urls[0])
        except EtcdError:
            return found
        role = "leader" if server.leader == member.id else "follower" if server.leader else "no leader"
        return {
            **found, "state": "learner" if member.is_learner else role, "version": server.version,
            "database_bytes": server.database_bytes, "alarms": ",".join(server.alarms),
        }  # fmt: skip

    async def _carry_out(self, verb: str, name: str) -> str:
        """Returns why a node was not removed; empty if it was. Raises EtcdError."""
        if not self._is_loaded:
            return f"the core was not reached yet: {self._state.get('error', '')}"
        await self._read_again()
        node = next((one for one in self._table.view().nodes if one.name == name), None)
        if node is None:
            return f"node {name} is not known"
        if node.incarnation:
            return f"node {name} is running: it has a lease in the core"
        if node.node_id in self._linked():
            return f"node {name} is running: it is linked to this node"
        if verb == "forget" and not node.is_gone:
            return f"node {name} is a member: ctl cluster force-leave {name}"
        if not await self._remove(node.node_id, verb, forget=verb == "forget"):
            return f"node {name} has changed meanwhile"
        self._add("warning", log_line("node removed", name=name, by=verb))
        return ""

    # --- state and log ----------------------------------------------------------------------------------------------------

    def _note_state(self, state: str, error: str) -> None:
        """Writes the state for the manager: connecting, connected, lost, refused."""
        found = {
            "state": state, "error": error, "endpoint": self._etcd.endpoint, "version": self._version, "alarms": [*self._alarms],
            "serves": self._own_endpoint(),
        }  # fmt: skip
        if found != self._state:
            if self._state.get("state") == "lost" and state == "connected":
                self._add("info", log_line("core reached again", endpoint=self._etcd.endpoint))
            self._state = found
            replace_file(self._topology.core_state, json.dumps(found).encode(), sync=False)

    def _own_endpoint(self) -> str:
        """Returns where the etcd of this node answers the nodes; empty: it runs none."""
        return self._own.url if self._own is not None and self._own.is_wanted else ""

    def _failed(self, phrase: str, error: Exception) -> None:
        self._repeated(phrase, "error", str(getattr(error, "strerror", None) or error))

    def _recovered(self, phrase: str) -> None:
        self._logged.pop(phrase, None)

    def _repeated(self, phrase: str, level: str, reason: str) -> None:
        """Logs a failure, unless the same one was logged recently."""
        before, now = self._logged.get(phrase), time.monotonic()
        if before is None or now - before[1] >= REPEAT_S:
            self._logged[phrase] = reason, now
            self._add(level, _PHRASES[phrase](reason))

    def _add(self, level: str, line: Line) -> None:
        self._log.add(level, of_process(CLUSTER, line))
        self._log.flush()


_PHRASES = {
    "core discovery failed": lambda reason: log_line("core discovery failed", reason=reason),
    "core not reachable": lambda reason: log_line("core not reachable", reason=reason),
    "core watch failed": lambda reason: log_line("core watch failed", reason=reason),
    "core registration failed": lambda reason: log_line("core registration failed", reason=reason),
    "core registration refused": lambda reason: log_line("core registration refused", reason=reason),
    "core members not stored": lambda reason: log_line("core members not stored", reason=reason),
    "core settings not read": lambda reason: log_line("core settings not read", reason=reason),
    "core settings not stored": lambda reason: log_line("core settings not stored", reason=reason),
    "adoption not noted": lambda reason: log_line("adoption not noted", reason=reason),
    "core key not usable": lambda reason: log_line("core key not usable", detail=reason),
}
