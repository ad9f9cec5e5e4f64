"""The process of a gateway: its listeners, the settings in force, and what the manager shows of it.

The listening sockets are this process's own: while it is restarted, devices are refused and connect again. An address that cannot
be bound is tried again every RETRY_S, and makes the alarm `gateway_listener_failed`.
"""

import asyncio
import json
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Any, Protocol

import uvloop

from acceptor.dtls import build_dtls
from acceptor.rules import AccessRules
from acceptor.tls import TlsError, build_context, watched_files
from shardbroker import __version__
from shardbroker.config.gateways import (
    DatagramListener,
    GatewayListener,
    handoff_path,
    inner_listeners,
    outer_listeners,
    state_file,
)  # fmt: skip
from shardbroker.config.listeners import parse_address, unix_path
from shardbroker.gateways.connection import Device, Peer, StreamDevice
from shardbroker.gateways.datagrams import RECEIVE_BUFFER, DatagramServer, Door
from shardbroker.gateways.handoff import Offer, Shared, Succession
from shardbroker.gateways.session import GatewaySession
from shardbroker.gateways.timers import Timers
from shardbroker.gateways.uplinks import Uplinks
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
    topology: Topology, kind: str, number: int, make_session: MakeSession, figures: Figures, make_door: MakeDoor | None = None,
    service: Service | None = None, shared: Shared | None = None,
) -> None:  # fmt: skip
    """Serves until SIGTERM. number: of the process among those of the gateway. figures: names of the counts that sessions make.
    make_door: for listeners of datagrams. shared: what all sessions of this process have in common, if there is such a thing."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Gateway(topology, kind, number, make_session, figures, make_door, service, shared).serve())


class Gateway:
    """make_session, make_door: see MakeSession and MakeDoor."""

    def __init__(
        self, topology: Topology, kind: str, number: int, make_session: MakeSession, figures: Figures, make_door: MakeDoor | None,
        service: Service | None, shared: Shared | None = None,
    ) -> None:  # fmt: skip
        self.kind, self.make_session, self.make_door, self._service = kind, make_session, make_door, service
        self.topology, self.number, self._shared = topology, number, shared
        place = topology.places_of(f"gateway-{kind}")[number]
        self.processes = len(topology.places_of(f"gateway-{kind}"))
        self._title, self._slot, self._moves = place.title, place.slot, place.role.moves
        self._succession = None if topology.predecessor is None else Succession(topology.predecessor[0], place.title)
        self._counters = Counters.attach(topology.counters_name)
        self._in_force = InForce(topology, self._counters, self._slot)
        self._log = Log(self._in_force.settings.log.level)
        self._state_file = state_file(topology.runtime_dir, kind, number)
        self.figures = dict.fromkeys(("accepted", "refused", *figures), 0) | self._last_figures()
        self.secret = _shared_secret(topology.runtime_dir / f"gateway-{kind}.key")
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
        loop = self.loop = asyncio.get_running_loop()
        self.uplinks, self.timers = Uplinks(loop), Timers(loop)
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides when to stop this process
        if self._succession is not None:
            self._succession.take_over(self)
        await self._apply()
        self._write_state()
        offer = self._offer()
        self._counters.set_state(self._slot, ProcessState.READY)
        tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._look_after())]
        await stop.wait()
        if offer is not None:
            offer.close()
        for task in tasks:
            task.cancel()
        for one in [*self._listeners.values()]:
            one.close("the server shuts down")
        deadline_s = loop.time() + END_S
        while any(one.devices for one in self._listeners.values()) and loop.time() < deadline_s:
            await asyncio.sleep(0.01)
        if self._service is not None:
            await self._service.close()
        self.uplinks.close()
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

    # --- for the process that replaces this one, and in it ----------------------------------------------------------------------

    def _offer(self) -> Offer | None:
        """Awaits a successor. Without one the gateway serves, too: it is restarted in an upgrade then."""
        if not self._moves:
            return None
        try:
            return Offer(self, handoff_path(self.topology.runtime_dir, self.kind, self.number))
        except OSError as error:
            self.report("error", log_line("gateway not replaced", reason=f"no socket for a successor: {error.strerror or error}"))
            return None

    @property
    def is_behind(self) -> bool:
        """Whether settings have changed that this process has not applied."""
        return self._in_force.is_due

    def image(self) -> tuple[dict[str, Any], list[int]]:
        """Returns the state as plain values, and the descriptors of its sockets."""
        descriptors: list[int] = []
        listeners = {id: one.image(descriptors) for id, one in self._listeners.items() if isinstance(one.server, DatagramServer)}
        taken = {*descriptors}
        closing = [one for one in self.uplinks if one.is_closing and one.number not in taken]
        descriptors += [one.number for one in closing]
        state = {
            "format": self._moves, "figures": self.figures, "listeners": listeners,
            "closing": [one.image() for one in closing], "shared": None if self._shared is None else self._shared.image(),
        }  # fmt: skip
        return state, descriptors

    def adopt(self, state: Mapping[str, Any], descriptors: list[int]) -> None:
        """Takes the state and the sockets of the predecessor. Nothing is read or sent before the loop runs again. Raises
        ValueError, OSError, TlsError."""
        if state["format"] != self._moves:
            raise ValueError(f"format {state['format']} of the state, this process reads {self._moves}")
        self._in_force.load()
        self._in_force.applied()
        self.figures.update(state["figures"])
        if self._shared is not None:
            self._shared.adopt(state["shared"])
        left = iter(descriptors)
        wanted = {id: one for kind, _, id, one in outer_listeners(self.settings) if kind == self.kind}
        inner = inner_listeners(self.settings, self.topology.runtime_dir)
        for id, values in state["listeners"].items():
            if id not in wanted:
                raise ValueError(f"settings have changed: there is no listener {id}")
            outer = self._listeners[id] = Outer(self, id, wanted[id], str(unix_path(inner[id].bind)))
            outer.adopt(values, left)
        for one in state["closing"]:
            self.uplinks.adopt(next(left), None, one)

    def serve_on(self, by_s: float) -> None:
        """Continues where the predecessor was, after a time in which no device was read."""
        devices = 0
        for one in self._listeners.values():
            devices += one.serve_on(by_s)
        self.report("info", log_line("gateway replaced", devices=devices, pause=f"{by_s * 1000:.0f}ms"))

    def shift(self, by_s: float) -> None:
        """Continues as the process that it was, after a time in which no device was read."""
        for one in self._listeners.values():
            if isinstance(one.server, DatagramServer):
                one.server.shift(by_s)

    def note_owner(self, pid: int) -> None:
        """Records the process that has the place, before it is told so: the supervisor must not end the one that serves."""
        self._counters.note_pid(self._slot, pid)

    def leave(self) -> None:
        """Ends what does not move; everything else is another process's."""
        for one in self._listeners.values():
            if isinstance(one.server, DatagramServer):
                one.server.end_secure()
        self._log.close()

    def _last_figures(self) -> dict[str, int]:
        """Returns the counts that an earlier process in this place has recorded: sums never fall."""
        try:
            found = json.loads(self._state_file.read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return dict(found["figures"]) if found.get("broker") == self.topology.started_ms else {}

    def _write_state(self) -> None:
        rows = [
            {"id": one.id, "running": one.server is not None, "problem": one.problem, "current_connections": len(one.devices)}
            for one in self._listeners.values()
        ]
        state = {
            "broker": self.topology.started_ms, "started_at": self._started_ms, "listeners": rows, "figures": self.figures,
        }  # fmt: skip
        data = json.dumps(state).encode()
        if data != self._written:
            with suppress(OSError):  # tried again with the next one
                replace_file(self._state_file, data, sync=False)
                self._written = data

    def report(self, level: str, line: Line) -> None:
        """Logs a line of this process."""
        self._log.add(level, of_process(self._title, line))
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
        self.loop, self.uplinks, self.timers = gateway.loop, gateway.uplinks, gateway.timers
        self.server: asyncio.Server | DatagramServer | None = None
        self.figures = gateway.figures
        self.problem = ""
        self.devices: set[Device] = set()
        self._stamps: tuple[Any, ...] = ()
        self._adopted: list[tuple[Device, Mapping[str, Any]]] = []
        """Devices of the predecessor, with what it has written of them, until they are served."""
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
            listening = _listen(settings.bind, settings.for_datagrams, self._gateway.processes > 1)
            loop: Any = asyncio.get_running_loop()
            if settings.for_datagrams:
                self.server = self._datagrams(listening, context)
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

    def _datagrams(self, listening: socket.socket, context: Any) -> DatagramServer:
        return DatagramServer(
            self, self._make_door(), listening, context, self.settings.tls.handshake_timeout, 2 * self.limit
        )  # fmt: skip

    def _context(self) -> Any:
        """Returns what the sockets of the listener are secured by, None without it. Raises TlsError."""
        settings = self.settings
        if not settings.secure:
            return None
        return build_dtls(settings.tls, self._gateway.secret) if settings.for_datagrams else build_context(settings.tls, False)

    def _make_door(self) -> Door:
        gateway = self._gateway
        assert gateway.make_door is not None
        levels, name = gateway.settings.mqtt.max_topic_levels, self.id.replace(":", "-")
        if gateway.number:
            name = f"{name}-{gateway.number}"  # the processes would take one session from each other
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

    # --- for the process that replaces this one, and in it ----------------------------------------------------------------------

    def image(self, descriptors: list[int]) -> dict[str, Any]:
        """Returns the state as plain values, and appends the descriptors that belong to it: the bound socket, and then those of
        the connections to the broker that `uplinks` has."""
        assert isinstance(self.server, DatagramServer)
        descriptors.append(self.server.socket.fileno())
        uplinks = []
        for place, device in enumerate(self.server.movable):
            if device.broker is not None and device.broker.number >= 0:
                uplinks.append((place, False, device.broker.image()))
                descriptors.append(device.broker.number)
        places = {device.open_again: place for place, device in enumerate(self.server.movable)}
        for uplink in self._gateway.uplinks:
            if uplink.then in places:
                uplinks.append((places[uplink.then], True, uplink.image()))
                descriptors.append(uplink.number)
        return {"at": [self.settings.bind, self.settings.type], "server": self.server.image(), "uplinks": uplinks}

    def adopt(self, values: Mapping[str, Any], descriptors: Iterator[int]) -> None:
        """Takes the listener of another process. Raises ValueError, OSError, TlsError."""
        settings = self.settings
        if values["at"] != [settings.bind, settings.type]:
            raise ValueError(f"settings have changed: {self.id} has another address")
        listening = socket.socket(fileno=next(descriptors))
        self._stamps = self._stamped()
        self.server = self._datagrams(listening, self._context())
        devices = self.server.adopt(values["server"])
        self.devices.update(self.server.devices.values())
        for place, leaves, one in values["uplinks"]:
            uplink = self.uplinks.adopt(next(descriptors), None if leaves else devices[place], one)
            if leaves:
                devices[place].leave_broker(uplink)
            else:
                devices[place].adopt_broker(uplink)
        self._adopted = [*zip(devices, values["server"]["devices"] + [values["server"]["publisher"]], strict=False)]

    def serve_on(self, by_s: float) -> int:
        """Continues after a time in which no device was read; returns the number of devices."""
        adopted, self._adopted = self._adopted, []
        for device, values in adopted:
            device.serve(values["is_opening"], by_s)
        return len(self.devices)

    # --- as devices see it ------------------------------------------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        """Whether what is done once for all processes is done here."""
        return self._gateway.number == 0

    @property
    def limit(self) -> int:
        """Most devices at a time in this process; 0: no limit."""
        return -(-self.settings.max_connections // self._gateway.processes)

    @property
    def is_full(self) -> bool:
        return bool(self.limit) and len(self.devices) >= self.limit

    @property
    def max_unknown_rate(self) -> float:
        return getattr(self.settings, "max_unknown_rate", inf) / self._gateway.processes

    def admits(self, device: Device, peer: Peer) -> bool:
        refusal = ""
        if self.is_full:
            part = "" if self._gateway.processes == 1 else f", {self.limit} in this process,"
            refusal = f"max_connections = {self.settings.max_connections}{part} is reached"
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


def _shared_secret(path: Path) -> bytes:
    """Returns the key that all processes of a gateway have in common, which the first of them makes. Raises OSError."""
    own = path.with_suffix(f".{os.getpid()}")
    own.touch(mode=0o600)
    own.write_bytes(secrets.token_bytes(32))
    with suppress(FileExistsError):
        os.link(own, path)
    own.unlink()
    return path.read_bytes()


def _listen(bind: str, for_datagrams: bool, is_shared: bool) -> socket.socket:
    """Returns a bound socket. is_shared: with other processes of the gateway. Raises OSError."""
    host, port = parse_address(bind)
    kind = socket.SOCK_DGRAM if for_datagrams else socket.SOCK_STREAM
    family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    one = socket.socket(family, kind)
    try:
        if is_shared:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
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
