"""The service for the program's calls."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from shardbroker.config.gateways import ExProtoServer
from shardbroker.gateways.exproto.contract import ADAPTER, methods
from shardbroker.gateways.exproto.session import Code, ExProtoSession, Reply

__all__ = ["Adapter", "AdapterError", "Sessions"]

CLOSE_S = 0.5
"""Longest wait for calls under way at the end."""
REQUEST_MAX = 300 << 20
"""Size limit of a request, bytes: above that of a packet."""
Sessions = Callable[[str], ExProtoSession | None]
"""The session of a connection by its name; that of RawPublish by the empty name."""


class AdapterError(Exception):
    """The service cannot be offered; the text says why."""


class Adapter:
    """sessions: see Sessions. flush: sends what a session has got by a call. figures: counts by name."""

    def __init__(self, sessions: Sessions, flush: Callable[[ExProtoSession], None], figures: dict[str, int]) -> None:
        self._sessions, self._flush, self._figures = sessions, flush, figures
        self._server: grpc.aio.Server | None = None
        self._answer = methods(ADAPTER)["Send"][1]

    async def open(self, settings: ExProtoServer) -> None:
        """Listens. Raises AdapterError."""
        server = grpc.aio.server(options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", REQUEST_MAX),
        ])  # fmt: skip
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._method(name), request.FromString, _serialized)
            for name, (request, _) in methods(ADAPTER).items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ADAPTER, handlers),))
        try:
            if settings.ssl_options.enable:
                server.add_secure_port(settings.bind, _credentials(settings))
            else:
                server.add_insecure_port(settings.bind)
        except RuntimeError as error:
            raise AdapterError(f"{settings.bind}: {error}") from None
        except OSError as error:
            raise AdapterError(f"gateways.exproto.server.ssl_options: {error.filename}: {error.strerror}") from None
        await server.start()
        self._server = server

    async def close(self) -> None:
        """Listens no more."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(CLOSE_S)

    def _method(self, name: str) -> Callable[[Any, Any], Awaitable[Any]]:
        act = getattr(self, f"_{name.lower()}")

        async def handle(request: Any, context: Any) -> Any:
            self._figures["calls"] += 1
            done: asyncio.Future[tuple[Code, str]] = asyncio.get_running_loop().create_future()

            def reply(code: Code, text: str) -> None:
                if not done.done():
                    done.set_result((code, text))

            conn = "" if name == "RawPublish" else request.conn
            if name != "RawPublish" and not conn:
                reply(Code.REQUIRED_PARAMS_MISSED, "conn: must be set")
            else:
                session = self._sessions(conn)
                if session is None:
                    reply(Code.CONN_PROCESS_NOT_ALIVE, "no connection has this name")
                else:
                    act(session, request, reply)
                    self._flush(session)
            code, text = await done
            self._figures["calls_refused"] += code != Code.SUCCESS
            return self._answer(code=int(code), message=text)

        return handle

    def _send(self, session: ExProtoSession, request: Any, reply: Reply) -> None:
        session.send(request.bytes, reply)

    def _close(self, session: ExProtoSession, request: Any, reply: Reply) -> None:
        session.close(reply)

    def _authenticate(self, session: ExProtoSession, request: Any, reply: Reply) -> None:
        session.authenticate(request.clientinfo, request.password, reply)

    def _starttimer(self, session: ExProtoSession, request: Any, reply: Reply) -> None:
        session.start_timer(request.type, request.interval, reply)

    def _publish(self, session: ExProtoSession, request: Any, reply: Reply) -> None:
        session.publish(request.topic, request.qos, request.payload, reply)

    _rawpublish = _publish

    def _subscribe(self, session: ExProtoSession, request: Any, reply: Reply) -> None:
        session.subscribe(request.topic, request.qos, reply)

    def _unsubscribe(self, session: ExProtoSession, request: Any, reply: Reply) -> None:
        session.unsubscribe(request.topic, reply)


def _serialized(answer: Any) -> bytes:
    return bytes(answer.SerializeToString())


def _credentials(settings: ExProtoServer) -> grpc.ServerCredentials:
    """Raises OSError."""
    tls = settings.ssl_options
    certificate, key = Path(tls.certfile).read_bytes(), Path(tls.keyfile).read_bytes()
    root = Path(tls.cacertfile).read_bytes() if tls.cacertfile else None
    return grpc.ssl_server_credentials([(key, certificate)], root, require_client_auth=root is not None)
