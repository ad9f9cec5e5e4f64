"""The process of a gateway: its listeners, the settings in force, and what the manager shows of it.

The listening sockets are this process's own: while it is restarted, devices are refused and connect again. An address that cannot
be bound is tried again every RETRY_S, and makes the alarm `gateway_listener_failed`.
"""

import asyncio
import json
import secrets
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from math import inf
from typing import Any, Protocol

import uvloop

from acceptor.dtls import build_dtls
from acceptor.rules import AccessRules
from acceptor.tls import TlsError, build_context, watched_files
from shardbroker import __version__
from shardbroker.config.gateways import (
    DatagramListener,
    GatewayListener,
    inner_listeners,
    outer_listeners,
    state_file,
)  # fmt: skip
from shardbroker.config.listeners import parse_address, unix_path
from shardbroker.gateways.connection import Device, Peer, StreamDevice
from shardbroker.gateways.datagrams import RECEIVE_BUFFER, DatagramServer, Door
from shardbroker.gateways.session import GatewaySession
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import Line, log_line, of_process
from shardbroker.stores.files import replace_file, stamp_of
from shm.counters import Counters, ProcessState
from shm.in_force import InForce
from shm.topology import Topology

__all__ = ["Gateway", "MakeDoor", "MakeSession", "Outer", "Service", "run"]

_Listening = GatewayListener | DatagramListener
CLOSED_S = 0.05
"""After which a socket that was closed does not occupy its address."""
RETRY_S = 5.0
"""Between two attempts to open a listener."""
BACKLOG = 1024
"""Connections that may wait to be accepted; the kernel caps it with net.core.somaxconn."""
SETTINGS_S = 0.25
"""Interval between two checks for changed settings."""
STATE_S = 1.0
"""Interval between two records of state and counts."""
REPORTED_A_SECOND = 10
"""Most log lines per second about single devices."""
END_S = 1.0
"""Longest wait at the end of the process until devices have taken their last frame."""
MakeSession = Callable[[Any, int, str, str, dict[str, int], float], GatewaySession]
"""(settings of the gateway, most levels of a topic, a client id, name of the server, counts, time) -> session of a new device."""
MakeDoor = Callable[[Callable[[], Any], int, str, dict[str, int]], Door]
"""(settings of the gateway in force, most levels of a topic, a client id, counts) -> door of a listener of datagrams."""
Figures = tuple[str, ...]


class Service(Protocol):
    """What a gateway needs beside its listeners."""

    async def apply(self, gateway: "Gateway") -> None:
        """Takes the settings in force. Called again every RETRY_S, so that what has failed is tried again."""

    async def close(self) -> None:
        """Ends, after the devices."""


def run(
    topology: Topology, kind: str, make_session: MakeSession, figures: Figures, make_door: MakeDoor | None = None,
    service: Service | None = None,
) -> None:  # fmt: skip
    """Serves until SIGTERM. figures: names of the counts that sessions make. make_door: for listeners of datagrams."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Gateway(topology, kind, make_session, figures, make_door, service).serve())


class Gateway:
    """make_session, make_door: see MakeSession and MakeDoor."""

    def __init__(
        self, topology: Topology, kind: str, make_session: MakeSession, figures: Figures, make_door: MakeDoor | None,
        service: Service | None,
    ) -> None:  # fmt: skip
        self.kind, self.make_session, self.make_door, self._service = kind, make_session, make_door, service
        self.topology = topology
        self._counters = Counters.attach(topology.counters_name)
        self._slot = topology.slot_of(f"gateway-{kind}")
        self._in_force = InForce(topology, self._counters, self._slot)
        self._log = Log(self._in_force.settings.log.level)
        self.figures = dict.fromkeys(("accepted", "refused", *figures), 0)
        self._started_ms = time.time_ns() // 1_000_000
        self._listeners: dict[str, Outer] = {}
        self._reports = (0, 0)
        self._written = b""

    @property
    def settings(self) -> Any:
        return self._in_force.settings

    @property
    def own_settings(self) -> Any:
        """Returns the settings of this gateway."""
        return getattr(self.settings.gateways, self.kind)

    @property
    def homes(self) -> "list[Outer]":
        """Returns the listeners."""
        return [*self._listeners.values()]

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides when to stop this process
        await self._apply()
        self._write_state()
        self._counters.set_state(self._slot, ProcessState.READY)
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._look_after())]
        await stop.wait()
        for task in tasks:
            task.cancel()
        for one in [*self._listeners.values()]:
            one.close("the server shuts down")
        deadline_s = loop.time() + END_S
        while any(one.devices for one in self._listeners.values()) and loop.time() < deadline_s:
            await asyncio.sleep(0.01)
        if self._service is not None:
            await self._service.close()
        self._log.close()
        self._counters.set_state(self._slot, ProcessState.DOWN)

    async def _follow(self) -> None:
        """Applies changed settings. After a failure the manager reports this process as behind."""
        while True:
            await asyncio.sleep(SETTINGS_S)
            if not self._in_force.is_due:
                continue
            try:
                self._in_force.load()
            except OSError as error:
                self.report("error", log_line("settings not applied", reason=error))
                continue
            self._log.level = self.settings.log.level
            await self._apply()
            self._in_force.applied()

    async def _apply(self) -> None:
        wanted = {id: one for kind, _, id, one in outer_listeners(self.settings) if kind == self.kind}
        inner = inner_listeners(self.settings, self.topology.runtime_dir)
        for id, outer in [*self._listeners.items()]:
            if id not in wanted:
                outer.close("the listener is closed")
                del self._listeners[id]
        for id, one in wanted.items():
            path = str(unix_path(inner[id].bind))
            known = self._listeners.get(id)
            if known is None:
                known = self._listeners[id] = Outer(self, id, one, path)
            elif known.settings != one:
                is_open = known.server is not None and known.address_of(known.settings) == known.address_of(one)
                known.use(one)
                if is_open:
                    continue
                known.stop()
                await asyncio.sleep(CLOSED_S)
            else:
                continue
            await known.open()
        if self._service is not None:
            await self._service.apply(self)

    async def _look_after(self) -> None:
        """Tries again what could not be opened, and records state and counts."""
        loop = asyncio.get_running_loop()
        retry_s = loop.time() + RETRY_S
        while True:
            await asyncio.sleep(STATE_S)
            if loop.time() >= retry_s:
                retry_s = loop.time() + RETRY_S
                for one in [*self._listeners.values()]:
                    if one.problem:
                        await one.open()
                if self._service is not None:
                    await self._service.apply(self)
            for one in [*self._listeners.values()]:
                await one.renew()
            self._write_state()
            self._log.flush()

    def _write_state(self) -> None:
        rows = [
            {"id": one.id, "running": one.server is not None, "problem": one.problem, "current_connections": len(one.devices)}
            for one in self._listeners.values()
        ]
        state = {"started_at": self._started_ms, "listeners": rows, "figures": self.figures}
        data = json.dumps(state).encode()
        if data != self._written:
            with suppress(OSError):  # tried again with the next one
                replace_file(state_file(self.topology.runtime_dir, self.kind), data, sync=False)
                self._written = data

    def report(self, level: str, line: Line) -> None:
        """Logs a line of this process."""
        self._log.add(level, of_process(f"gateway-{self.kind}", line))
        self._log.flush()

    def report_device(self, line: Line) -> None:
        """Logs a line about a single device, unless there were too many in this second."""
        now_s = int(time.monotonic())
        count = self._reports[1] + 1 if self._reports[0] == now_s else 1
        self._reports = now_s, count
        if count <= REPORTED_A_SECOND:
            self.report("info", line)


class Outer:
    """One listener of the gateway, with its devices."""

    def __init__(self, gateway: Gateway, id: str, settings: _Listening, broker_path: str) -> None:
        self._gateway = gateway
        self.id, self.broker_path = id, broker_path
        self.server: asyncio.Server | DatagramServer | None = None
        self.figures = gateway.figures
        self.problem = ""
        self.devices: set[Device] = set()
        self._stamps: tuple[Any, ...] = ()
        self.use(settings)

    def use(self, settings: _Listening) -> None:
        """Takes other settings, for later connections."""
        self.settings = settings
        self._rules = AccessRules(settings.access_rules)

    @staticmethod
    def address_of(settings: _Listening) -> tuple[Any, ...]:
        """Returns the settings whose change needs another socket."""
        return settings.bind, settings.type, settings.tls

    async def renew(self) -> None:
        """Listens again if TLS files have changed; new ones that cannot be used are logged once, and the old ones stay in use."""
        if self.server is None or not self.settings.secure or self._stamps == self._stamped():
            return
        self._stamps = self._stamped()
        try:
            context = self._context()
        except TlsError as error:
            self._gateway.report("error", log_line("gateway tls files not reloaded", listener=self.id, reason=error))
            return
        if isinstance(self.server, DatagramServer):
            self.server.use(context)
            return
        self.stop()
        await asyncio.sleep(CLOSED_S)
        await self.open()

    def _stamped(self) -> tuple[Any, ...]:
        return tuple(stamp_of(path) for path in watched_files(self.settings.tls))

    async def open(self) -> None:
        """Listens; a problem is logged once and kept for the state."""
        settings = self.settings
        self._stamps = self._stamped()
        try:
            context = self._context()
            options = {"ssl": context, "ssl_handshake_timeout": settings.tls.handshake_timeout} if context is not None else {}
            listening = _listen(settings.bind, settings.for_datagrams)
            loop: Any = asyncio.get_running_loop()
            if settings.for_datagrams:
                timeout_s, peers = settings.tls.handshake_timeout, 2 * settings.max_connections
                self.server = DatagramServer(self, self._make_door(), listening, context, timeout_s, peers)
            else:
                self.server = await loop.create_server(lambda: StreamDevice(self), sock=listening, backlog=BACKLOG, **options)
        except (OSError, TlsError) as error:
            problem = f"{settings.bind}: {getattr(error, 'strerror', None) or error}"
            if problem != self.problem:
                self._gateway.report("error", log_line("gateway listener not opened", listener=self.id, reason=problem))
            self.problem = problem
            return
        self.problem = ""
        self._gateway.report("info", log_line("gateway listener opened", listener=self.id, bind=settings.bind))

    def _context(self) -> Any:
        """Returns what the sockets of the listener are secured by, None without it. Raises TlsError."""
        settings = self.settings
        if not settings.secure:
            return None
        return build_dtls(settings.tls) if settings.for_datagrams else build_context(settings.tls, False)

    def _make_door(self) -> Door:
        gateway = self._gateway
        assert gateway.make_door is not None
        levels, name = gateway.settings.mqtt.max_topic_levels, self.id.replace(":", "-")
        return gateway.make_door(lambda: gateway.own_settings, levels, name, gateway.figures)

    def stop(self) -> None:
        """Accepts no more; connections stay."""
        server, self.server, self.problem = self.server, None, ""
        if server is not None:
            server.close()

    def close(self, reason: str) -> None:
        """Ends the listener and its connections."""
        self.stop()
        for device in [*self.devices]:
            device.end(reason)

    # --- as devices see it ------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return bool(self.settings.max_connections) and len(self.devices) >= self.settings.max_connections

    @property
    def max_unknown_rate(self) -> float:
        return getattr(self.settings, "max_unknown_rate", inf)

    def admits(self, device: Device, peer: Peer) -> bool:
        refusal = ""
        if self.is_full:
            refusal = f"max_connections = {self.settings.max_connections} is reached"
        elif not self._rules.open and not self._rules.allow(_packed(peer[0])):
            refusal = "access_rules"
        if refusal:
            self._gateway.figures["refused"] += 1
            self._gateway.report_device(log_line("gateway client refused", listener=self.id, peer=_shown(peer), reason=refusal))
            return False
        self._gateway.figures["accepted"] += 1
        self.devices.add(device)
        return True

    def make_session(self, now_s: float) -> GatewaySession:
        gateway = self._gateway
        settings = gateway.settings
        return gateway.make_session(
            gateway.own_settings, settings.mqtt.max_topic_levels, f"{gateway.kind}-{secrets.token_hex(10)}",
            f"shardbroker/{__version__}", gateway.figures, now_s,
        )  # fmt: skip

    def gone(self, device: Device, reason: str) -> None:
        self.devices.discard(device)
        if reason:
            self._gateway.report_device(log_line(
                "gateway client disconnected", listener=self.id, peer=_shown(device.peer), reason=reason[:200]))


def _listen(bind: str, for_datagrams: bool) -> socket.socket:
    """Returns a bound socket. Raises OSError."""
    host, port = parse_address(bind)
    kind = socket.SOCK_DGRAM if for_datagrams else socket.SOCK_STREAM
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    one = socket.socket(family, kind)
    try:
        if for_datagrams:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        else:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # A device without heart-beats whose network has gone is found by the kernel.
            one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.bind(address)
        one.setblocking(False)
    except OSError:
        one.close()
        raise
    return one


def _packed(host: str) -> bytes:
    address = ip_address(host.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return bytes((mapped or address).packed)


def _shown(peer: Peer) -> str:
    return f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"
