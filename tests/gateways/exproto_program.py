"""A program behind the ExProto gateway, by gRPC's own server and stubs: a protocol of lines.

    CONNECT id [user] [password]   PUB qos topic text   RAW qos topic text   SUB qos filter   UNSUB filter   TIMER seconds
    BYE                            ECHO text

Each line is answered by `CODE number text`; messages come as `MSG qos topic payload`.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc

from shardbroker.gateways.exproto.contract import ADAPTER, PACKAGE, message, methods

__all__ = ["Program"]


class Program:
    """Serves at 127.0.0.1:port; calls the gateway's service at `adapter`. `heard`: (method, request) of all events in order."""

    def __init__(self, port: int, adapter: str, service: str = "ConnectionUnaryHandler", credentials: Any = None) -> None:
        self.port, self.adapter, self.service = port, adapter, service
        self.heard: list[tuple[str, Any]] = []
        self.hold = threading.Event()
        """Cleared: events are not answered."""
        self.hold.set()
        self.tls: tuple[Any, Any] | None = credentials
        """Credentials of the server and of the channel."""
        self._lines: dict[str, bytes] = defaultdict(bytes)
        self._channel = grpc.insecure_channel(adapter) if credentials is None else grpc.secure_channel(adapter, credentials[1])
        self._stubs = {
            name: self._channel.unary_unary(f"/{ADAPTER}/{name}", request.SerializeToString, answer.FromString)
            for name, (request, answer) in methods(ADAPTER).items()
        }
        self._server: grpc.Server | None = None

    def start(self) -> "Program":
        """Begins to serve, also after stop()."""
        self._server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        name = f"{PACKAGE}.{self.service}"
        handlers = {}
        for method, (request, answer) in methods(name).items():
            if self.service == "ConnectionUnaryHandler":
                handlers[method] = grpc.unary_unary_rpc_method_handler(
                    self._unary(method), request.FromString, answer.SerializeToString)
            else:
                handlers[method] = grpc.stream_unary_rpc_method_handler(
                    self._stream(method), request.FromString, answer.SerializeToString)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        address = f"127.0.0.1:{self.port}"
        bound = self._server.add_insecure_port(address) if self.tls is None else self._server.add_secure_port(address, self.tls[0])
        assert bound
        self._server.start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()

    def __enter__(self) -> "Program":
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.hold.set()
        self.stop()
        self._channel.close()

    def call(self, method: str, **fields: Any) -> Any:
        """The answer of the gateway to a call."""
        request, _ = methods(ADAPTER)[method]
        return self._stubs[method](request(**fields), timeout=20, wait_for_ready=True)

    def methods_of(self, conn: str) -> list[str]:
        """Events of a connection, in order."""
        return [method for method, request in list(self.heard) if request.conn == conn]

    def _unary(self, method: str) -> Callable[[Any, Any], Any]:
        def handle(request: Any, context: Any) -> Any:
            self._hear(method, request)
            return message("EmptySuccess")()

        return handle

    def _stream(self, method: str) -> Callable[[Iterator[Any], Any], Any]:
        def handle(requests: Iterator[Any], context: Any) -> Any:
            for request in requests:
                self._hear(method, request)
            return message("EmptySuccess")()

        return handle

    def _hear(self, method: str, request: Any) -> None:
        self.heard.append((method, request))
        self.hold.wait(20)
        if method == "OnReceivedBytes":
            *lines, self._lines[request.conn] = (self._lines[request.conn] + request.bytes).split(b"\n")
            for line in lines:
                self._line(request.conn, line.decode())
        elif method == "OnReceivedMessages":
            for one in request.messages:
                self.call("Send", conn=request.conn, bytes=b"MSG %d %s %s\n" % (one.qos, one.topic.encode(), one.payload))

    def _line(self, conn: str, line: str) -> None:
        command, *words = line.split(" ")
        if command == "CONNECT":
            name, user, password = [*words, "", ""][:3]
            info = message("ClientInfo")(proto_name="lines", proto_ver="1", clientid=name, username=user)
            answer = self.call("Authenticate", conn=conn, clientinfo=info, password=password)
        elif command == "PUB":
            answer = self.call("Publish", conn=conn, qos=int(words[0]), topic=words[1], payload=" ".join(words[2:]).encode())
        elif command == "RAW":
            answer = self.call("RawPublish", qos=int(words[0]), topic=words[1], payload=" ".join(words[2:]).encode())
        elif command == "SUB":
            answer = self.call("Subscribe", conn=conn, qos=int(words[0]), topic=words[1])
        elif command == "UNSUB":
            answer = self.call("Unsubscribe", conn=conn, topic=words[0])
        elif command == "TIMER":
            answer = self.call("StartTimer", conn=conn, type=0, interval=int(words[0]))
        elif command == "BYE":
            self.call("Close", conn=conn)
            return
        else:
            self.call("Send", conn=conn, bytes=f"{' '.join(words)}\n".encode())
            return
        self.call("Send", conn=conn, bytes=f"CODE {answer.code} {answer.message}\n".encode())
