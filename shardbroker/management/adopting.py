"""Adoption of the data directory of a node that died (`ctl cluster adopt`): docs/design/0019-adoption.md.

    claiming      the core gives the directory to this node, unless the node that died runs, or another one adopts it
    starting      a stand-in (supervisor/stand_in.py) recovers its sessions, as the node that died, without clients
    collecting    the other nodes send what has waited for it
    moving        it is evacuated to this node
    waiting       nothing is left to move; something else has to happen first, which `message` names
    finishing     the stand-in stops, and the core forgets the node
    done, failed

What was asked for is in a file (stores/adoption.py): after a restart of the manager, or of the broker, the adoption continues from
what the core and the directory have. The stand-in ends with the manager.
"""

import asyncio
import os
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import cbor2

from shardbroker.config import Settings
from shardbroker.config.cluster import Cluster, EtcdTls
from shardbroker.config.listeners import Listener, parse_address
from shardbroker.config.live import dump
from shardbroker.control import AsyncControl, ControlError
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shardbroker.management.adoption_source import Source, SourceError, count_of, look_at
from shardbroker.management.cluster_view import LinkReports, peers_of
from shardbroker.management.configuration import Configuration
from shardbroker.management.core_calls import CoreCalls
from shardbroker.management.nodes import Nodes
from shardbroker.stores.adoption import STAND_IN, Adopted, Adoption, read_adoptions, write_adopted, write_adoptions
from shardbroker.stores.evacuation import remove_evacuation
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["ADOPTIONS_MAX", "Adopter", "stand_in_settings"]

ADOPTIONS_MAX = 4
"""Adoptions at a time: each is a broker with as many workers as the node had."""
ENDED_MAX = 20
"""Adoptions that have ended and are still listed."""
POLL_S = 0.5
"""Between two looks at the stand-in."""
RETRY_S = 1.0, 30.0
"""Pause before the stand-in is started again, doubled up to the longest."""
SETTLED_S = 4.0
"""How long nothing may be left before the stand-in is stopped: other nodes report once a second what waits for it, and late
messages follow their session for 3 s."""
STOP_S = 40.0
"""Longest wait for the end of the stand-in, which has `DRAIN_S` for each of its processes."""
DRAIN_S = 10.0
LEAVE_S = 60.0
"""Longest wait for the end of the lease of the stand-in."""
RING_BYTES, PEER_RING_BYTES = 1 << 20, 1 << 18
"""Of the stand-in: half a dozen processes share what this node has left of /dev/shm."""
COMPARE_S = 60.0
"""Retained messages and users that are compared for longer are left behind, too, with --leave-behind."""
DELAYED_MAX = 1000
"""Delayed messages that are counted."""
LOG_FILE = "stand-in.log"
LOG_BYTES_MAX = 16 << 20
REASON_BYTES = 2000
"""Last bytes of the log of a stand-in, which have the reason of its end."""
INHERITED = ("LISTEN_", "NOTIFY_", "WATCHDOG_", "SHARDBROKER", "INVOCATION_ID", "MAINPID", "FDSTORE")
"""Beginnings of variables of the environment that are those of this broker: sockets, watchdog, settings."""


def stand_in_settings(
    settings: Settings, adoption: Adoption, address: str, bind: str, endpoints: list[str], socket_path: Path
) -> Settings:  # fmt: skip
    """Returns the settings of a stand-in: limits, journals and cluster of this node; no service for clients, and nothing that acts
    on messages. endpoints: of etcd."""
    own = settings.cluster
    values: dict[str, Any] = {name: getattr(own, name) for name in Cluster.model_fields}
    values |= {"role": "auto", "discovery": "manual", "advertise": address, "suback": "local", "ring_size": PEER_RING_BYTES}
    values["core"] = own.core.model_copy(update={"mode": "external", "members": []})
    values["link"] = own.link.model_copy(update={"bind": bind})
    etcd = own.etcd.model_copy(update={"endpoints": endpoints})
    if own.is_managed:
        tls = own.tls
        files = {"cacertfile": tls.cacertfile, "certfile": tls.certfile, "keyfile": tls.keyfile} if tls.enable else {}
        etcd = etcd.model_copy(update={"username": "", "password": "", "tls": EtcdTls(**files)})
    values["etcd"] = etcd
    if own.tls.enable:
        values["tls"] = own.tls.model_copy(update={"certfile": adoption.certfile, "keyfile": adoption.keyfile})
    process = settings.process.model_copy(
        update={
            "workers": adoption.workers, "acceptors": 1, "worker_cores": "auto", "worker_weights": "auto", "acceptor_cores": "auto",
            "data_dir": Path(adoption.directory), "drain_time": 0.0, "drain_timeout": DRAIN_S, "ring_size": RING_BYTES,
        }
    )  # fmt: skip
    return Settings(
        process=process,
        node=settings.node.model_copy(update={"name": adoption.node, "id": 0}),
        listeners={"stand-in": Listener(bind=f"unix:{socket_path}")},
        mqtt=settings.mqtt, delayed=settings.delayed, durability=settings.durability, journal=settings.journal,
        retainer=settings.retainer, overload=settings.overload, log=settings.log,
        cluster=Cluster.model_construct(**values),
        api=settings.api.model_copy(update={"bind": "disabled"}),
    )  # fmt: skip


class Adopter:
    """The adoptions of this node. `nodes`: the managers of the others, set once they are known."""

    def __init__(
        self, topology: Topology, configuration: Configuration, core: CoreCalls, view: ViewSegment | None, log: Log
    ) -> None:
        self._topology, self._configuration, self._core, self._view, self._log = topology, configuration, core, view, log
        self.nodes: Nodes | None = None
        self._running: dict[str, _Running] = {}
        self._ended: deque[dict[str, Any]] = deque(maxlen=ENDED_MAX)

    # --- requests ------------------------------------------------------------------------------------------------------

    async def check(self, node: str, directory: str, certfile: str, keyfile: str, address: str) -> dict[str, Any]:
        """Returns what an adoption would do. Raises ControlError with what speaks against it; nothing has changed in any case."""
        source = await self._look(node, directory, certfile, keyfile, address)
        await self._core.ask("adopt check", node, uuid=source.uuid)
        found = await asyncio.to_thread(count_of, source)
        return {
            "node": node, "directory": str(source.path), "uuid": source.uuid.hex(), "id": source.enrolled.node_id,
            "sessions": None if found is None else found.sessions, "messages": None if found is None else found.messages,
            "workers": source.workers, "bytes": source.bytes, "journal_bytes": source.journal_bytes,
            "spool_bytes": source.spool_bytes, "free_bytes": source.free_bytes,
        }  # fmt: skip

    async def start(self, wanted: Adoption) -> "_Running":
        """Begins an adoption, or continues the one of this node that is under way. Raises ControlError."""
        running = self._running.get(wanted.node)
        if running is not None:
            if running.adoption.directory != str(Path(wanted.directory).resolve()):
                text = f"node {wanted.node} is being adopted from {running.adoption.directory}"
                raise ControlError("ALREADY_EXISTS", f"{text}: ctl cluster stop-adoption {wanted.node} ends that")
            running.allow(wanted.leave_behind)
            return running
        if len(self._running) >= ADOPTIONS_MAX:
            raise ControlError("TRY_AGAIN", f"{ADOPTIONS_MAX} adoptions are under way at this node: wait for one of them")
        source = await self._look(wanted.node, wanted.directory, wanted.certfile, wanted.keyfile, wanted.address)
        found = await self._core.ask("adopt begin", wanted.node, uuid=source.uuid)
        if wanted.node in self._running:
            return self._running[wanted.node]  # the same command twice
        adoption = Adoption(
            wanted.node, str(source.path), source.uuid.hex(), source.workers, wanted.address, wanted.sess_rate,
            wanted.leave_behind, wanted.certfile, wanted.keyfile, int(time.time()),
        )  # fmt: skip
        running = _Running(self, adoption)
        self._running[wanted.node] = running
        try:
            if found["term"] == 1:
                remove_evacuation(source.path)  # of the node that died
            self._store()
        except OSError as error:
            del self._running[wanted.node]
            raise ControlError("NOT_AVAILABLE", f"{error.filename}: {error.strerror}; repeat the command") from None
        self._add("warning", log_line("adoption begins", node=wanted.node, directory=source.path, term=found["term"]))
        running.start()
        return running

    async def stop(self, node: str) -> dict[str, Any]:
        """Ends an adoption: what has moved stays here, and the node may start with the rest. Raises ControlError."""
        running = self._running.get(node)
        if running is None:
            names = ", ".join(self._running) or "none is under way"
            raise ControlError("NOT_FOUND", f"node: must be one that this node adopts ({names}), got {node}")
        await running.end()
        await self._core.ask("adopt stop", node, uuid=bytes.fromhex(running.adoption.uuid))
        with suppress(OSError):
            remove_evacuation(Path(running.adoption.directory))
        self._forget(running, "stopped")
        self._add("warning", log_line("adoption stopped", node=node, directory=running.adoption.directory))
        return running.row()

    def rows(self) -> list[dict[str, Any]]:
        """Returns the adoptions of this node, those that have ended last."""
        return [*(one.row() for one in self._running.values()), *self._ended]

    # --- the work ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Continues what was under way, until it is cancelled; the stand-ins end then."""
        if not self._topology.settings.cluster.has_core:
            await asyncio.Event().wait()
        for adoption in read_adoptions(self._topology.data_dir)[:ADOPTIONS_MAX]:
            self._running[adoption.node] = _Running(self, adoption)
            self._running[adoption.node].start()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.gather(*(one.end() for one in self._running.values()), return_exceptions=True)

    async def _look(self, node: str, directory: str, certfile: str, keyfile: str, address: str) -> Source:
        """Raises ControlError."""
        topology, cluster = self._topology, self._topology.settings.cluster
        if node == topology.node_name:
            raise ControlError("BAD_REQUEST", f"node: must be another one than this node, got {node}")
        if topology.settings.durability.level == "none":
            raise ControlError("BAD_REQUEST", "durability.level: must be process or machine to keep what is adopted, got none")
        if cluster.registry != "on":
            raise ControlError("BAD_REQUEST", "cluster.registry: must be on for sessions to move, got off")
        if cluster.tls.enable and not certfile:
            text = "certfile: must be a PEM file with a certificate of node"
            raise ControlError("BAD_REQUEST", f"{text} {node}, since cluster.tls is enabled, got none")
        for key, path in ("certfile", certfile), ("keyfile", keyfile):
            if path and not os.access(path, os.R_OK):
                raise ControlError("BAD_REQUEST", f"{key}: must be a file that the broker can read, got {path}")
        self._address(address)
        try:
            return await asyncio.to_thread(
                look_at, Path(directory), topology.data_dir, cluster.place, topology.cluster_uuid
            )  # fmt: skip
        except SourceError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None

    def _address(self, text: str) -> tuple[str, int, str]:
        """Returns the host of an address, its port, and the host to bind to. Raises ControlError."""
        own = parse_address(self._topology.link_address)[0]
        if not text:
            return own, 0, parse_address(self._topology.settings.cluster.link_bind)[0]
        try:
            host, port = parse_address(text)
        except ValueError:
            port = -1
        if port < 0 or not host or host.startswith("/"):
            text = f"address: must be HOST:PORT, by which other nodes reach this machine, such as {own}:5371, got {text}"
            raise ControlError("BAD_REQUEST", text)
        return host, port, host

    def addresses(self, text: str) -> tuple[str, str]:
        """Returns the address of the links of a stand-in for other nodes, and where it listens. Raises ControlError, OSError."""
        host, port, bind = self._address(text)
        if not port:
            family = socket.AF_INET6 if ":" in bind else socket.AF_INET
            with socket.socket(family) as probe:
                probe.bind((bind, 0))
                port = probe.getsockname()[1]
        shown, bound = (f"[{one}]" if ":" in one else one for one in (host, bind))
        return f"{shown}:{port}", f"{bound}:{port}"

    def settings_of(self, adoption: Adoption, endpoints: list[str]) -> Settings:
        """Returns the settings of a stand-in. Raises ControlError, OSError."""
        address, bind = self.addresses(adoption.address)
        path = self._topology.runtime_dir / f"stand-in-{adoption.uuid[:8]}.sock"
        return stand_in_settings(self._configuration.settings, adoption, address, bind, endpoints, path)

    async def ask(self, verb: str, adoption: Adoption) -> Any:
        """Returns the answer of the core. Raises ControlError."""
        return await self._core.ask(verb, adoption.node, uuid=bytes.fromhex(adoption.uuid))

    @property
    def name(self) -> str:
        return self._topology.node_name

    async def spools(self, node: str) -> dict[str, int]:
        """Returns the bytes that linked nodes have for a node, this one included; those that do not answer are left out."""
        assert self._view is not None
        found, reports = {}, LinkReports(self._topology)
        peers = peers_of(self._view.read(), self._topology)
        for peer in peers:
            if peer.name == node:
                found[self.name] = int(reports.link(peer)["spool_bytes"])
        others = [peer.name for peer in peers if peer.is_up and peer.name != node]
        if self.nodes is None:
            return found
        answers = await asyncio.gather(
            *(self.nodes.call(other, "cluster status", {}, "") for other in others), return_exceptions=True
        )  # fmt: skip
        for other, answer in zip(others, answers, strict=True):
            if isinstance(answer, ControlError):
                continue  # cluster.management, or a node that is about to be down
            if isinstance(answer, BaseException):
                raise answer
            found[other] = _bytes_for(answer, node)
        return found

    def changed(self) -> None:
        """Notes what is under way, as far as the disk takes it."""
        with suppress(OSError):
            self._store()

    def complete(self, running: "_Running") -> None:
        """Takes the end of an adoption. Raises OSError."""
        adoption = running.adoption
        write_adopted(Path(adoption.directory), Adopted(self.name, adoption.since))
        self._forget(running, "done")
        self._add(
            "warning",
            log_line("adoption ended", node=adoption.node, directory=adoption.directory, sessions=running.moved),
        )

    def stand_in_ended(self, node: str, reason: str) -> None:
        self._add("error", log_line("stand-in ended", node=node, reason=reason))

    def _forget(self, running: "_Running", state: str) -> None:
        running.state = state
        if self._running.get(running.adoption.node) is running:
            del self._running[running.adoption.node]
            self._ended.append(running.row())
        self.changed()

    def _store(self) -> None:
        write_adoptions(self._topology.data_dir, (one.adoption for one in self._running.values()))

    def _add(self, level: str, line: Any) -> None:
        self._log.add(level, line)
        self._log.flush()


class _Running:
    """One adoption, until it has ended."""

    def __init__(self, adopter: Adopter, adoption: Adoption) -> None:
        self._adopter, self.adoption = adopter, adoption
        self.state = "claiming"
        self._message = ""
        self._problem = ""
        self._left: dict[str, Any] = {}
        self.moved = 0
        self._initial: int | None = None
        self._compares_s: float | None = None
        """Monotonic s from which other nodes have compared retained messages or users with the stand-in without a pause."""
        self._task: asyncio.Task[None] | None = None
        self._child: Process | None = None
        self.changed = asyncio.Event()
        """Set when the row may have changed; a reader clears it before it waits."""

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def allow(self, leave_behind: bool) -> None:
        """Has an adoption that waits leave behind what cannot move."""
        if leave_behind and not self.adoption.leave_behind:
            self.adoption = Adoption(**{**self.adoption.__dict__, "leave_behind": True})
            self._adopter.changed()

    @property
    def has_ended(self) -> bool:
        return self._task is not None and self._task.done()

    def raise_failure(self) -> None:
        """Raises what ended the task, if that was an error of this module."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def end(self) -> None:
        """Ends the work and the stand-in."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._end_child()

    def row(self) -> dict[str, Any]:
        """Returns the state."""
        adoption = self.adoption
        return {
            "node": adoption.node, "state": self.state, "sessions": self._left.get("sessions"), "initial": self._initial,
            "delayed": self._left.get("delayed"), "message": self._message, "problem": self._problem,
            "directory": adoption.directory, "since": adoption.since,
        }  # fmt: skip

    def _go(self, state: str, message: str = "") -> None:
        if (state, message) != (self.state, self._message):
            self.state, self._message = state, message
        self.changed.set()

    # --- steps ---------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Adopts, again after each failure."""
        pause_s = RETRY_S[0]
        while True:
            begun = time.monotonic()
            try:
                if await self._attempt():
                    self.changed.set()
                    return
            except (ControlError, OSError, ValueError) as error:  # the last of settings that do not fit each other
                self._problem = str(error)
                self.changed.set()
            finally:
                await self._end_child()
            pause_s = RETRY_S[0] if time.monotonic() - begun > RETRY_S[1] else min(2 * pause_s, RETRY_S[1])
            await asyncio.sleep(pause_s)

    async def _attempt(self) -> bool:
        """Returns whether the adoption has ended; otherwise the stand-in has. Raises ControlError, OSError."""
        self._go("claiming")
        claimed = await self._adopter.ask("adopt begin", self.adoption)
        if claimed["term"]:
            self._go("starting")
            await self._start_child(claimed["term"], claimed["endpoints"])
            if not await self._follow():
                return False
        self._go("finishing", self._message)
        await self._end_child()
        await self._finish()
        self._adopter.complete(self)
        return True

    async def _start_child(self, term: int, endpoints: list[str]) -> None:
        settings = self._adopter.settings_of(self.adoption, endpoints)
        given = cbor2.dumps({"settings": dump(settings), "parent": os.getpid()})
        environment = {key: value for key, value in os.environ.items() if not key.startswith(INHERITED)}
        environment[STAND_IN] = str(term)
        log = self._open_log()
        try:
            self._child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "shardbroker.supervisor.stand_in", stdin=PIPE, stdout=log, stderr=log, env=environment
            )
        finally:
            os.close(log)
        assert self._child.stdin is not None
        with suppress(ConnectionError, RuntimeError):  # it has ended, which _follow notices
            self._child.stdin.write(given)
            await self._child.stdin.drain()
            self._child.stdin.close()

    def _open_log(self) -> int:
        """Raises OSError."""
        path = Path(self.adoption.directory) / LOG_FILE
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        log = os.open(path, flags, 0o600)
        if os.fstat(log).st_size > LOG_BYTES_MAX:
            os.ftruncate(log, 0)
        return log

    async def _follow(self) -> bool:
        """Follows the stand-in until nothing is left; returns False if it ends before. Raises ControlError."""
        child = self._child
        assert child is not None
        ended = asyncio.ensure_future(child.wait())
        settled_s: float | None = None
        control = AsyncControl(Path(self.adoption.directory))
        try:
            while True:
                await asyncio.wait([ended], timeout=POLL_S)
                if ended.done():
                    self._problem = f"the stand-in has ended with code {child.returncode}: {self._last_words()}"
                    self._adopter.stand_in_ended(self.adoption.node, self._problem)
                    self._go("starting")
                    return False
                try:
                    is_settled = await self._look(control)
                    self._problem = ""
                except ControlError as error:
                    if self.state != "starting":
                        self._problem = str(error)
                    is_settled = False
                settled_s = (settled_s or time.monotonic()) if is_settled else None
                self.changed.set()
                if settled_s is not None and time.monotonic() - settled_s >= SETTLED_S:
                    return True
        finally:
            ended.cancel()
            await control.close()

    def _last_words(self) -> str:
        """Returns the last line of the log of the stand-in."""
        with suppress(OSError):
            log = self._open_log()
            try:
                size = os.fstat(log).st_size
                text = os.pread(log, REASON_BYTES, max(0, size - REASON_BYTES)).decode(errors="replace").strip()
            finally:
                os.close(log)
            return text.rpartition("\n")[2] or "see its log"
        return "see its log"

    async def _look(self, control: AsyncControl) -> bool:
        """Takes what the stand-in reports; returns whether nothing is left. Raises ControlError."""
        state = await control.call("cluster status")
        evacuation = await control.call("node evacuate status")
        own = next((peer for peer in state["peers"] if peer["name"] == self._adopter.name), None)
        if own is None or own["link"] != "up":
            problem = own["error"] if own is not None else state["core"]["error"]
            self._go("starting", f"the stand-in is not linked to this node{f': {problem}' if problem else ''}")
            return False
        linked = [peer for peer in state["peers"] if peer["link"] == "up"]
        away = [peer["name"] for peer in state["peers"] if peer["link"] != "up"]
        if evacuation["status"] == "disabled":
            return await self._collect(control, away)
        stats = evacuation["stats"]
        self._initial = max(self._initial or 0, stats["initial_sessions"])
        delayed = len((await control.call("delayed list", limit=DELAYED_MAX))["data"])
        self._left = {"sessions": stats["current_sessions"], "delayed": delayed}
        self.moved = max(0, self._initial - stats["current_sessions"])
        if evacuation["state"] != "prohibiting":
            self._go("moving", evacuation["message"])
            return False
        waits = [f"{peer['name']} has not taken {peer['spool_bytes']} bytes" for peer in linked if peer["spool_bytes"]]
        compares = [f"{peer['name']} compares its stores" for peer in linked if "syncing" in (peer["retained"], peer["access"])]
        self._compares_s = (self._compares_s or time.monotonic()) if compares else None
        waits += [f"{name} has {size} bytes" for name, size in (await self._adopter.spools(self.adoption.node)).items() if size]
        stays = [f"{stats['current_sessions']} sessions cannot move"] if stats["current_sessions"] else []
        is_slow = self._compares_s is not None and time.monotonic() - self._compares_s >= COMPARE_S
        (stays if is_slow else waits).extend(compares)
        stays += [f"{delayed} delayed messages are not due"] if delayed else []
        stays += [f"{name} is not linked and may have messages" for name in away]
        if waits or (stays and not self.adoption.leave_behind):
            hint = "; --leave-behind ends the adoption without that" if stays and not waits else ""
            self._go("waiting", f"{', '.join(waits + stays)}{hint}")
            return False
        self._go("waiting", f"left behind: {', '.join(stays)}" if stays else "nothing is left")
        return True

    async def _collect(self, control: AsyncControl, away: list[str]) -> bool:
        """Begins the evacuation once the nodes that are linked have sent what has waited."""
        found = {name: size for name, size in (await self._adopter.spools(self.adoption.node)).items() if size}
        if found:
            self._go("collecting", ", ".join(f"{name} has {size} bytes" for name, size in found.items()))
            return False
        await control.call(
            "node evacuate start", wait="0s", wait_takeover="0s", sess_rate=self.adoption.sess_rate, migrate_to=[self._adopter.name]
        )  # fmt: skip
        self._go("moving")
        return False

    async def _finish(self) -> None:
        """Has the core forget the node, once the lease of the stand-in has ended. Raises ControlError."""
        until_s = time.monotonic() + LEAVE_S
        while True:
            try:
                await self._adopter.ask("adopt finish", self.adoption)
                return
            except ControlError as error:
                if time.monotonic() >= until_s:
                    raise
                self._problem = str(error)
            await asyncio.sleep(POLL_S)

    async def _end_child(self) -> None:
        """Stops the stand-in, if there is one."""
        child, self._child = self._child, None
        if child is None or child.returncode is not None:
            return
        with suppress(ProcessLookupError):
            child.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(child.wait())), STOP_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def _bytes_for(answer: Any, node: str) -> int:
    """Returns what a node reports that it has for another one; its answer may be anything."""
    peers = answer.get("peers") if isinstance(answer, dict) else None
    for peer in peers if isinstance(peers, list) else []:
        if isinstance(peer, dict) and peer.get("name") == node and isinstance(peer.get("spool_bytes"), int):
            return int(peer["spool_bytes"])
    return 0
