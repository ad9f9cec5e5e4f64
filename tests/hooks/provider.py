"""Programs that take part in hooks over gRPC: grpc.aio servers, with stubs that protoc makes of exhook.proto, as anybody would."""

import asyncio
import importlib
import inspect
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import grpc
from grpc_tools import protoc

from tests.harness import free_port
from tests.harness.waiting import until

PROTO = Path(__file__).parents[2] / "shardbroker/integrations/exhook/exhook.proto"
STOP_S = 10.0


@cache
def stubs() -> Any:
    """Messages of exhook.proto."""
    folder = tempfile.TemporaryDirectory(prefix="shardbroker-stubs-")
    arguments = ["protoc", f"-I{PROTO.parent}", f"--python_out={folder.name}", str(PROTO)]
    assert protoc.main(arguments) == 0
    sys.path.insert(0, folder.name)
    try:
        return importlib.import_module("exhook_pb2")
    finally:
        sys.path.remove(folder.name)
        folder.cleanup()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all programs: grpc.aio wants it so."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="programs", daemon=True).start()
    return loop


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run_coroutine_threadsafe(work, _loop()).result(STOP_S)


class Provider:
    """Writes down every call. `hooks`: what it wants, point -> filters; `answers`: method -> what it returns, a function of the
    request, or a coroutine function."""

    def __init__(self, hooks: dict[str, Iterable[str]] | Iterable[str] = (), port: int = 0, version: int = 2) -> None:
        self.messages = stubs()
        self.hooks = dict(hooks) if isinstance(hooks, dict) else dict.fromkeys(hooks, ())
        self.answers: dict[str, Callable[[Any], Any]] = {}
        self.calls: list[tuple[str, Any]] = []
        self.port = port or free_port()
        self.service = f"emqx.exhook.v{version}.HookProvider"
        self._server: Any = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Provider":
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, credentials: Any = None) -> None:
        _run(self._start(credentials))

    async def _start(self, credentials: Any) -> None:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers = {}
        for method in self.messages.DESCRIPTOR.services_by_name["HookProvider"].methods:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(
                self._method(method.name, method.output_type.name),
                request_deserializer=getattr(self.messages, method.input_type.name).FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(self.service, handlers)])
        address = f"127.0.0.1:{self.port}"
        bound = (
            self._server.add_insecure_port(address) if credentials is None else self._server.add_secure_port(address, credentials)
        )
        assert bound == self.port
        await self._server.start()

    def _method(self, name: str, output: str) -> Any:
        async def called(request: Any, _context: object) -> Any:
            self.calls.append((name, request))
            if name == "OnProviderLoaded":
                specs = [self.messages.HookSpec(name=point, topics=topics) for point, topics in self.hooks.items()]
                return self.messages.LoadedResponse(hooks=specs)
            answer = self.answers.get(name)
            if answer is None:
                return getattr(self.messages, output)(**({"type": "IGNORE"} if output == "ValuedResponse" else {}))
            made = answer(request)
            return await made if inspect.isawaitable(made) else made

        return called

    def stop(self) -> None:
        """At once: whoever waits for an answer gets none."""
        if self._server is not None:
            _run(self._server.stop(None))
            self._server = None

    # --- answers --------------------------------------------------------------------------------------------------------------

    def says(self, decision: bool, type: str = "STOP_AND_RETURN") -> Any:
        return self.messages.ValuedResponse(type=type, bool_result=decision)

    def becomes(self, message: Any, type: str = "STOP_AND_RETURN", **changes: Any) -> Any:
        """A message with other fields."""
        made = self.messages.Message()
        made.CopyFrom(message)
        headers = changes.pop("headers", {})
        for name, value in changes.items():
            setattr(made, name, value)
        made.headers.update(headers)
        return self.messages.ValuedResponse(type=type, message=made)

    # --- what it saw ----------------------------------------------------------------------------------------------------------

    def seen(self, method: str, fits: Callable[[Any], bool] = lambda request: True) -> list[Any]:
        return [request for name, request in [*self.calls] if name == method and fits(request)]

    def request(self, method: str, fits: Callable[[Any], bool] = lambda request: True) -> Any:
        """The first that fits, once there is one."""
        return until(lambda: self.seen(method, fits), lambda: str(self.calls))[0]


def hang(_request: object) -> Any:
    """An answer that does not come."""
    return asyncio.sleep(3600)


def server(provider: Provider, name: str = "main", **settings: object) -> str:
    """A table of exhook.servers."""
    given = {"name": name, "url": provider.url, "auto_reconnect": "200ms", "request_timeout": "10s", "pool_size": 2, **settings}
    return "{ " + ", ".join(f"{key} = {_toml(value)}" for key, value in given.items()) + " }"


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return str(value).lower() if isinstance(value, bool | int) else f'"{value}"'


def servers(*tables: str) -> dict[str, object]:
    """As a setting."""
    return {"exhook.servers": "[" + ", ".join(tables) + "]"}


