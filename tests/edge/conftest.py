"""A broker with a listener of each type, and the certificates for it."""

import itertools
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.edge.certificates import Authority
from tests.harness import Broker, Client, free_port, until

numbers = itertools.count(1)


class Edge(Broker):
    """`listeners`: name to settings; bind defaults to a free port. `address` is the plain one called "default"."""

    def __init__(self, listeners: dict[str, dict[str, Any]], workers: int = 2, settings: dict[str, object] | None = None) -> None:
        super().__init__(workers, settings)
        self.ports = {name: free_port() for name in listeners}
        lines = ["[listeners.default]", f'bind = "127.0.0.1:{self.address[1]}"']
        for name, options in listeners.items():
            lines += [f"[listeners.{name}]", f'bind = "127.0.0.1:{self.ports[name]}"' if "bind" not in options else ""]
            lines += [f"{key} = {_toml(value)}" for key, value in options.items()]
        self.file = Path(tempfile.mkstemp(suffix=".toml")[1])
        self.file.write_text("\n".join(lines))

    def command(self) -> list[str]:
        return [*(part for part in super().command() if not part.startswith("--listen")), f"--config={self.file}"]

    def at(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", self.ports[name]

    def log(self) -> str:
        return "".join(self.output)

    def wait_for_log(self, *words: str) -> str:
        """The first line with all these words; fails if none comes."""
        return until(lambda: next((line for line in list(self.output) if all(word in line for word in words)), None), self.log)

    def _clean(self) -> None:
        self.file.unlink(missing_ok=True)
        super()._clean()


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {_toml(one)}' for key, one in value.items()) + " }"
    return str(value) if isinstance(value, int | float) else f'"{value}"'


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    made.issue("broker", "broker", ("localhost", "127.0.0.1"))
    made.issue("other-name", "other", ("broker.example",))
    made.issue("alice", "alice", organization="Plant, West")
    made.issue("mallory", "mallory")
    made.revoke("mallory")
    return made


@pytest.fixture(scope="session")
def edge(authority: Authority) -> Iterator[Edge]:
    """One broker for most tests: ssl, mutual (client certificates), ws, wss, six, unix, proxied."""
    certfile = str(authority.directory / "broker.pem")
    directory = tempfile.mkdtemp()
    mutual = {
        "tls.certfile": certfile,
        "tls.cacertfile": str(authority.cafile),
        "tls.crlfile": str(authority.directory / "revoked.crl"),
        "tls.verify": "verify_peer",
        "tls.fail_if_no_peer_cert": True,
    }
    listeners: dict[str, dict[str, Any]] = {
        "ssl": {
            "type": "ssl",
            "tls.certfile": certfile,
            "tls.sni": {"broker.example": {"certfile": str(authority.directory / "other-name.pem")}},
        },
        "mutual": {"type": "ssl", "peer_cert_as_username": "dn", "peer_cert_as_clientid": "cn", **mutual},
        "ws": {"type": "ws"},
        "wss": {"type": "wss", "tls.certfile": certfile},
        "small": {"type": "ws", "websocket.max_frame_size": "1KB", "websocket.check_origins": ["https://plant.example"]},
        "six": {"bind": f"[::1]:{free_port()}"},
        "unix": {"bind": f"unix:{directory}/mqtt.sock"},
        "proxied": {"proxy_protocol": True, "proxy_protocol_timeout": "300ms"},
        "walled": {"access_rules": ["allow 127.0.0.2", "deny 127.0.0.0/30", "allow all"]},
        "quick": {"type": "ssl", "tls.certfile": certfile, "tls.handshake_timeout": "500ms"},
    }
    with ExitStack() as stack:
        stack.callback(os.rmdir, directory)
        broker = stack.enter_context(Edge(listeners))
        broker.unix_path = f"{directory}/mqtt.sock"  # type: ignore[attr-defined]
        yield broker


@pytest.fixture
def name() -> str:
    """A client id and topic of the test's own."""
    return f"edge{next(numbers)}"


@pytest.fixture
def alive(edge: Edge, name: str) -> Iterator[Callable[[], None]]:
    """alive(): a client that was there before the test began, and one that comes now, are served."""
    with Client(edge.address, 5, f"{name}-before") as before:
        before.subscribe(f"{name}/alive", 1)

        def check() -> None:
            with Client(edge.address, 5, f"{name}-now") as now:
                now.publish(f"{name}/alive", b"yes", 1)
            assert before.recv().payload == b"yes"  # type: ignore[union-attr]

        check()
        yield check
        check()


def context_for(authority: Authority, **options: Any) -> ssl.SSLContext:
    return authority.client(**options)
