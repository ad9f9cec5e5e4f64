"""Listeners that are added, changed and removed while the broker runs: `ctl listeners add|update|remove`."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.harness import Client, Closed, free_port, until

pytestmark = pytest.mark.own_broker


def ctl(broker: Edge, *words: str, problem: str = "") -> Any:
    command = [str(Path(sys.executable).with_name("shardbroker")), "ctl", "--data-dir", str(broker.data_dir), "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode != 0) == bool(problem), done.stdout + done.stderr
    assert problem in done.stderr
    return None if problem else json.loads(done.stdout)


def names(broker: Edge) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in ctl(broker, "listeners", "list")["data"]}


def at(port: int, source: str = "127.0.0.1") -> Any:
    return lambda: socket.create_connection(("127.0.0.1", port), 5, source_address=(source, 0))


def closed(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_add_change_and_remove(authority: Authority, name: str) -> None:
    certfile = authority.directory / "broker.pem"
    port, other = free_port(), free_port()
    with Edge({"ws": {"type": "ws"}}) as own, Client(own.address, 5, f"{name}-stays") as stays:
        ctl(own, "listeners", "add", "late", f"bind=127.0.0.1:{port}")
        assert set(names(own)) == {"default", "ws", "late"}
        came = Client(own.address, 5, f"{name}-came", dial=at(port))
        came.subscribe(name)

        # Acceptors that are started again know it too.
        for pid in own.child_pids("acceptor"):
            own.kill_process(pid)
        until(lambda: names(own)["late"]["current_connections"] == 1)
        Client(own.address, 5, f"{name}-again", dial=at(port)).close()

        # Other settings hold for those who come from now on.
        ctl(own, "listeners", "update", "late", 'access_rules=["deny 127.0.0.1"]')
        with pytest.raises(Closed):
            Client(own.address, 5, f"{name}-denied", dial=at(port))
        Client(own.address, 5, f"{name}-let-in", dial=at(port, "127.0.0.2")).close()

        # Another address and TLS.
        ctl(
            own, "listeners", "update", "late", f"bind=127.0.0.1:{other}", "type=ssl", f"tls.certfile={certfile}", "access_rules=[]"
        )
        assert closed(port)
        context = authority.client()
        secure = Client(
            own.address, 5, f"{name}-secure", dial=lambda: context.wrap_socket(at(other)(), server_hostname="localhost")
        )
        assert names(own)["late"]["bind"] == f"127.0.0.1:{other}"

        ctl(own, "listeners", "remove", "late")
        assert closed(other)
        assert set(names(own)) == {"default", "ws"}
        # Whoever came by it is still there.
        stays.publish(name, b"still here", 1)
        assert came.recv().payload == b"still here"  # type: ignore[union-attr]
        secure.ping()
        secure.close()
        came.close()
        # A number is given again only when its connections are gone.
        ctl(own, "listeners", "add", "late", f"bind=127.0.0.1:{port}", "max_connections=1")
        Client(own.address, 5, f"{name}-new", dial=at(port)).close()
        stays.ping()


def test_what_cannot_be_done_changes_nothing(tmp_path: Path) -> None:
    taken = free_port()
    with Edge({}) as own, socket.create_server(("127.0.0.1", taken)):
        before = names(own)
        for words, problem in (
            (("add", "default", "bind=127.0.0.1:1"), "already exists"),
            (("add", "Bad", "bind=127.0.0.1:1"), "a-z"),
            (("add", "x", "bind=nonsense"), "HOST:PORT"),
            (("add", "x", "bund=127.0.0.1:1"), "bund"),
            (("add", "x", f"bind=127.0.0.1:{taken}"), "in use"),
            (("add", "x", f"bind=127.0.0.1:{free_port()}", "type=ssl"), "tls.certfile"),
            (("update", "default", "type=ssl", "tls.certfile=/none.pem"), "/none.pem"),
            (("update", "default", f"bind=127.0.0.1:{taken}"), "in use"),
            (("update", "nobody", "max_connections=1"), "no listener nobody"),
            (("remove", "nobody"), "no listener nobody"),
        ):
            ctl(own, "listeners", *words, problem=problem)
        assert names(own) == before
        Client(own.address, 5, "still").close()
