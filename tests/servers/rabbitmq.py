"""RabbitMQ from Debian, with its management plug-in, whose HTTP is the server's own client."""

import base64
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.processes import account, answers, folder, quietly, running
from tests.servers.service import Service, service

__all__ = ["PASSWORD", "USER", "RabbitServer", "rabbitmq_server"]

USER = PASSWORD = "guest"
SCRIPTS = Path("/usr/lib/rabbitmq/lib")
PAGE = 5000
"""Messages of one request."""


class RabbitServer:
    """A server, and what its HTTP shows."""

    def __init__(self, process: Service, port: int, http_port: int) -> None:
        self.process, self.port, self._http_port = process, port, http_port
        self.variables: dict[str, object] = {}
        """Of the environment of the server and its programs."""
        self.scripts = Path()

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Raises urllib.error.HTTPError."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{self._http_port}/api/{path}", data, method=method)
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def declare(self, queue: str, **arguments: object) -> None:
        """Makes a durable queue."""
        self.request("PUT", f"queues/%2F/{quote(queue, safe='')}", {"durable": True, "arguments": arguments})

    def delete(self, queue: str) -> None:
        self.request("DELETE", f"queues/%2F/{quote(queue, safe='')}")

    def exchange(self, name: str, kind: str, *bindings: tuple[str, str]) -> None:
        """Makes a durable exchange with bindings (queue, routing key)."""
        self.request("PUT", f"exchanges/%2F/{name}", {"type": kind, "durable": True})
        for queue, key in bindings:
            self.request("POST", f"bindings/%2F/e/{name}/q/{queue}", {"routing_key": key})

    def publish(self, routing_key: str, payload: bytes, exchange: str = "amq.default", **properties: object) -> None:
        """Publishes one message, persistent."""
        text = base64.b64encode(payload).decode()
        body = {"routing_key": routing_key, "payload": text, "payload_encoding": "base64"}
        self.request("POST", f"exchanges/%2F/{exchange}/publish", {**body, "properties": {"delivery_mode": 2, **properties}})

    def get(self, queue: str) -> list[dict[str, Any]]:
        """Takes all messages of a queue, in order; `payload` is bytes."""
        found: list[dict[str, Any]] = []
        while True:
            asked = {"count": PAGE, "ackmode": "ack_requeue_false", "encoding": "base64"}
            page = self.request("POST", f"queues/%2F/{quote(queue, safe='')}/get", asked)
            if not page:
                return found
            found += [{**one, "payload": base64.b64decode(one["payload"])} for one in page]

    def rabbitmqctl(self, *words: str) -> None:
        """Has the server's own program do something."""
        environment = [f"{name}={value}" for name, value in self.variables.items()]
        quietly([needed("env"), *environment, str(self.scripts / "rabbitmqctl"), *words])

    def is_up(self) -> bool:
        if not answers(self.port):
            return False
        with suppress(urllib.error.URLError, OSError):
            self.request("GET", "whoami")
            return True
        return False


@contextmanager
def rabbitmq_server(more: str = "") -> Iterator[RabbitServer]:
    """more: lines of rabbitmq.conf. The package's own script insists on its user."""
    with folder() as where:
        scripts = sorted(SCRIPTS.glob("rabbitmq_server-*/sbin/rabbitmq-server"))
        if not scripts:
            if os.environ.get("CI"):
                pytest.fail("rabbitmq-server is not installed")
            pytest.skip("rabbitmq-server is not installed")
        port, http_port, names_port, peer_port = (free_port() for _ in range(4))
        (where / "rabbitmq.conf").write_text(f"""
listeners.tcp.default = {port}
management.tcp.port = {http_port}
management.tcp.ip = 127.0.0.1
disk_free_limit.absolute = 1MB
vm_memory_high_watermark.absolute = 512MB
{more}
""")
        (where / "plugins").write_text("[rabbitmq_management].\n")
        variables = {
            "HOME": where, "RABBITMQ_NODENAME": f"test{port}@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": peer_port, "RABBITMQ_MNESIA_BASE": where / "data", "RABBITMQ_LOG_BASE": where / "log",
            "RABBITMQ_PID_FILE": where / "pid", "RABBITMQ_ENABLED_PLUGINS_FILE": where / "plugins",
            "RABBITMQ_CONFIG_FILE": where / "rabbitmq", "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": names_port,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_LOGS": "-",
        }  # fmt: skip
        names = [needed("env"), f"HOME={where}", needed("epmd"), "-port", str(names_port), "-address", "127.0.0.1"]
        command = [needed("env"), *(f"{name}={value}" for name, value in variables.items()), str(scripts[-1])]
        named = where / "names"
        named.mkdir()
        if account():
            os.chown(named, *_ids())
        with running(names, lambda: answers(names_port), named):
            probe = RabbitServer(None, port, http_port)  # type: ignore[arg-type]
            with service(command, port, probe.is_up, where) as one:
                server = RabbitServer(one, port, http_port)
                server.variables, server.scripts = variables, scripts[-1].parent
                yield server


def _ids() -> tuple[int, int]:
    import pwd

    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid
