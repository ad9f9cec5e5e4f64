"""Entry point of the ExProto gateway."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from shardbroker.config.listeners import parse_address
from shardbroker.gateways import process
from shardbroker.gateways.connection import Device
from shardbroker.gateways.datagrams import Knock, Verdict
from shardbroker.gateways.exproto.adapter import Adapter, AdapterError
from shardbroker.gateways.exproto.contract import message
from shardbroker.gateways.exproto.handler import Handler, HandlerError
from shardbroker.gateways.exproto.session import FIGURES, ExProtoSession
from shardbroker.gateways.session import GatewaySession
from shardbroker.logs.phrases import log_line
from shm.topology import Topology

__all__ = ["run"]

DATAGRAM_MAX = 65_507
"""Longest datagram of UDP over IPv4, bytes."""
RAW_CLIENT = "exproto-raw"
"""Client id of RawPublish."""


def run(topology: Topology) -> None:
    """Serves until SIGTERM."""
    hub = _Hub(topology.node_name)
    process.run(topology, "exproto", 0, hub.make_session, FIGURES, _Door, hub)


class _Hub:
    """The connection to the program, the service for it, and all sessions by the name of their connection."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._sessions: dict[str, ExProtoSession] = {}
        self._tasks: dict[ExProtoSession, asyncio.Task[None]] = {}
        """Of sessions that are busy with an event."""
        self._handler: Handler | None = None
        self._adapter: Adapter | None = None
        self._in_force: tuple[Any, Any] = (None, None)
        """Settings that the adapter and the handler were made of."""
        self._problems: dict[str, str] = {}
        self._homes: Sequence[process.Outer] = ()
        self._settings: Any = None
        self._levels = 0
        self._figures: dict[str, int] = {}
        self._raw: _RawPublisher | None = None

    def make_session(
        self, settings: Any, levels: int, conn: str, server: str, figures: dict[str, int], now_s: float
    ) -> ExProtoSession:
        return ExProtoSession(self, settings, levels, conn, server, figures, now_s)

    # --- as the process sees it -----------------------------------------------------------------------------------------------

    async def apply(self, gateway: process.Gateway) -> None:
        """Takes the settings in force, and tries again what has failed."""
        settings = self._settings = gateway.own_settings
        self._homes, self._figures, self._levels = gateway.homes, gateway.figures, gateway.settings.mqtt.max_topic_levels
        adapter_of, handler_of = self._in_force
        if handler_of != settings.handler or self._handler is None:
            handler, self._handler = self._handler, None
            if handler is not None:
                await handler.close()
            try:
                self._handler = Handler(settings.handler)
                self._note(gateway, "handler", "")
            except HandlerError as error:
                self._note(gateway, "handler", str(error))
        if adapter_of != settings.server or self._adapter is None:
            adapter, self._adapter = self._adapter, None
            if adapter is not None:
                await adapter.close()
            adapter = Adapter(self.session, ExProtoSession.flush, gateway.figures)
            try:
                await adapter.open(settings.server)
                self._adapter = adapter
                self._note(gateway, "server", "")
            except AdapterError as error:
                self._note(gateway, "server", str(error))
        self._in_force = settings.server, settings.handler

    def _note(self, gateway: process.Gateway, part: str, problem: str) -> None:
        if problem and problem != self._problems.get(part):
            gateway.report("error", log_line("gateway service not opened", service=f"gateways.exproto.{part}", reason=problem))
        self._problems[part] = problem

    async def close(self) -> None:
        """Ends both, once the program has heard of the end of all connections."""
        if self._raw is not None:
            self._raw.end("the server shuts down")
        if self._tasks:
            await asyncio.wait([*self._tasks.values()], timeout=1.0)
        if self._adapter is not None:
            await self._adapter.close()
        if self._handler is not None:
            await self._handler.close()

    # --- as sessions see it ---------------------------------------------------------------------------------------------------

    def opened(self, session: ExProtoSession) -> None:
        self._sessions[session.conn] = session

    def closed(self, session: ExProtoSession) -> None:
        self._sessions.pop(session.conn, None)

    def wake(self, session: ExProtoSession) -> None:
        if session not in self._tasks:
            self._tasks[session] = asyncio.get_running_loop().create_task(self._pass_on(session))

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def _pass_on(self, session: ExProtoSession) -> None:
        try:
            while (event := session.next_event()) is not None:
                try:
                    if self._handler is None:
                        raise HandlerError(self._problems.get("handler", "there is no connection to it"))
                    await self._handler.call(event.method, session.conn, event.fields)
                except HandlerError as error:
                    session.event_failed(str(error))
                else:
                    session.event_done(event)
                session.flush()
        finally:
            del self._tasks[session]

    # --- as the adapter sees it -----------------------------------------------------------------------------------------------

    def session(self, conn: str) -> ExProtoSession | None:
        """Returns the session of a connection, or for the empty name that of RawPublish."""
        if conn:
            return self._sessions.get(conn)
        if self._raw is None or self._raw.session is None:
            if not self._homes:
                return None
            session = self.make_session(self._settings, self._levels, "", "", self._figures, asyncio.get_running_loop().time())
            self._raw = _RawPublisher(self._homes[0], session)
            session.authenticate(
                message("ClientInfo")(proto_name="exproto", proto_ver="1", clientid=RAW_CLIENT), "", lambda code, text: None)
            return session
        found = self._raw.session
        assert isinstance(found, ExProtoSession)
        return found


class _RawPublisher(Device):
    """The session that publishes for the program itself. There is no device."""

    __slots__ = ()

    def __init__(self, home: process.Outer, session: ExProtoSession) -> None:
        super().__init__(home)
        self.peer = self._own = parse_address(home.settings.bind)
        session.flush_by(self.flush)
        self.session = session

    def _send(self, messages: list[bytes]) -> None:
        """There is no device."""

    def _leave(self) -> None:
        """There is no device."""


class _Door:
    """Every datagram of an unknown sender opens a connection: what it is, only the program can know."""

    max_size = DATAGRAM_MAX

    def __init__(self, settings: Callable[[], Any], levels: int, client_id: str, figures: dict[str, int]) -> None:
        """There is nothing to decide."""

    def busy(self, message: bytes) -> bytes:
        """Returns no answer: the gateway does not know the protocol."""
        return b""

    def split(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        return b"", b"", data

    def knock(self, message: bytes) -> Knock:
        return Knock(Verdict.OPEN)

    def advertisement(self) -> None:
        return None

    def make_publisher(self, now_s: float) -> GatewaySession:
        raise NotImplementedError  # each datagram opens a connection
