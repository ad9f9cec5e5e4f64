"""A broker with users and rules, and a small real HTTP server for back ends that are asked by HTTP."""

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from shardbroker.config import Settings, load
from shardbroker.management.access import AccessAdmin
from tests.harness.broker import Broker
from tests.harness.client import Client

WAIT_S = 5.0


class Guarded(Broker):
    """A Broker; `admin` changes what its stores hold while it runs. Secrets go into a file, as they must."""

    def __init__(
        self, settings: Mapping[str, object], *, users: Mapping[str, str] | None = None, secrets: str = "", workers: int = 2
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shardbroker-access-")
        self.folder = Path(self._folder.name)
        arguments: tuple[str, ...] = ()
        if secrets:
            file = self.folder / "secrets.toml"
            file.write_text(secrets)
            arguments = (f"--config={file}",)
        texts = {key: json.dumps(value) if isinstance(value, list | dict) else value for key, value in settings.items()}
        texts = {key: toml_table(value) if isinstance(settings[key], dict) else value for key, value in texts.items()}
        super().__init__(workers, texts, self.folder / "data", arguments=arguments)
        self.admin = AccessAdmin(self._loaded(), self.data_dir)
        for name, password in (users or {}).items():
            self.admin.add_user(name, password)

    def _loaded(self) -> Settings:
        return load(None, None, [f"{key}={value}" for key, value in self.settings.items()]).settings

    def start(self) -> None:
        self.admin.close()
        self.admin = AccessAdmin(self._loaded(), self.data_dir)  # paths of files have come since
        super().start()

    def __exit__(self, *exc: object) -> None:
        try:
            super().__exit__(*exc)
        finally:
            self.admin.close()
            self._folder.cleanup()

    def client(self, client_id: str, version: int = 5, *, code: int | None = 0, **options: Any) -> Client:
        """Connects; `code` is what CONNACK must say."""
        client = Client(self.address, version, client_id, connect=False, **options)
        try:
            client.connect(code)
        except BaseException:
            client.close()
            raise
        return client

    def refused(self, client_id: str, code: int, version: int = 5, **options: Any) -> str:
        """CONNACK says so and the connection ends; the Reason String."""
        client = self.client(client_id, version, code=code, **options)
        client.expect_close()
        assert client.connack is not None
        return str(client.connack.properties.get("reason_string", ""))

    def logged(self, *words: str) -> str:
        """Waits for a log line with all of these."""
        deadline = time.monotonic() + WAIT_S
        while True:
            for line in [*self.output]:
                if all(word in line for word in words):
                    return line
            assert time.monotonic() < deadline, f"no line with {words} in\n{''.join(self.output)}"
            time.sleep(0.02)

    def count(self, name: str) -> int:
        """A counter, summed over all processes."""
        from shm.counters import Counters

        (instance,) = self._instances
        return int(Counters.attach(f"/dev/shm/shardbroker-{instance}/counters").totals()[name])


def toml_table(text: object) -> str:
    """A JSON object of texts as an inline table of TOML."""
    return "{ " + ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in json.loads(str(text)).items()) + " }"


class Answers:
    """What the HTTP server answers, and what it was asked: (path, headers, fields)."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.answer: Callable[[str, dict[str, Any]], tuple[int, bytes] | None] = lambda path, fields: (204, b"")
        self.compresses = False
        """Whether answers are compressed for clients that take it, as web servers in front of a service do."""
        self.port = 0
        self.released = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def http_server() -> Iterator[Answers]:
    """Runs in a thread. An answer of None hangs until the server stops."""
    answers = Answers()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        fields = json.loads(body) if body else dict(request.query)
        answers.asked.append((request.raw_path, dict(request.headers), fields))
        answer = answers.answer(request.path, fields)
        if answer is None:
            await stop.wait()
            return web.Response(status=500)
        response = web.Response(status=answer[0], body=answer[1], content_type="application/json")
        if answers.compresses:
            response.enable_compression()
        return response

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        answers.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield answers
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(WAIT_S)
        loop.close()
