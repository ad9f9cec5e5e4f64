"""A web service in a process of its own, which a test stops and kills: `python -m tests.flows.sinks.service PORT FILE`.

Each request that it accepts is a line of FILE: {"path", "key", "type", "headers", "body"}. A body with "poison" is answered with
400; while FILE.status exists, all others are answered with the status in it.
"""

import json
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.harness import free_port, until
from tests.harness.waiting import stop

__all__ = ["Service"]


def main() -> None:
    port, path = int(sys.argv[1]), Path(sys.argv[2])
    status = path.with_name(path.name + ".status")
    file = path.open("a")

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        if b'"poison"' in body:
            return web.Response(status=400)
        if status.exists():
            return web.Response(status=int(status.read_text()))
        line = {
            "path": request.raw_path,
            "key": request.headers.get("Idempotency-Key"),
            "type": request.headers.get("Content-Type"),
            "headers": dict(request.headers),
            "body": body.decode(),
        }
        file.write(json.dumps(line) + "\n")
        file.flush()
        return web.Response()

    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{rest:.*}", take)
    web.run_app(app, host="127.0.0.1", port=port, print=None, handle_signals=False)


class Service:
    """The process, and what it has got."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.file = directory / "requests"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Service":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.flows.sinks.service", str(self.port), str(self.file)]
        self._process = subprocess.Popen(command)
        until(self._accepts, timeout_s=30)

    def _accepts(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def pause(self) -> None:
        assert self._process is not None
        stop(self._process.pid)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def answer_with(self, status: int | None) -> None:
        """None: as always."""
        path = self.file.with_name(self.file.name + ".status")
        if status is None:
            path.unlink()
        else:
            path.write_text(str(status))

    def requests(self) -> list[dict[str, Any]]:
        lines = self.file.read_text().splitlines(keepends=True) if self.file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written

    def rows(self) -> list[dict[str, Any]]:
        """Rows of all requests: each body is one, or an array of them."""
        found: list[dict[str, Any]] = []
        for request in self.requests():
            body = json.loads(request["body"])
            found += body if isinstance(body, list) else [body]
        return found

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Returns the requests once there are so many."""
        until(lambda: len(self.requests()) >= count)
        return self.requests()


if __name__ == "__main__":
    main()
