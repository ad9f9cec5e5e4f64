"""What each process of a broker has: keys of certificates, sockets with a name, the store of users (THREAT_MODEL.md)."""

import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.test_tls import NEWER, OLDER, PUMPED, dial, speaking
from tests.harness import Client, free_port, until

pytestmark = pytest.mark.own_broker
CHUNK = 1 << 20
"""Bytes of a process's memory that are read at once."""
KINDS = {"acceptor", "api", "integrations", "manager", "worker"}
PUMPED_CLIENTS = 5


@pytest.fixture(scope="module")
def whole(authority: Authority) -> Iterator[Edge]:
    """A broker with a process of each kind, and TLS."""
    options = {"type": "ssl", "tls.certfile": str(authority.directory / "broker.pem"), "enable_authn": False}
    settings: dict[str, object] = {"api.bind": f"127.0.0.1:{free_port()}", "auth.chain": "builtin"}
    with Edge({"ssl": options}, settings=settings) as own:
        until(lambda: set(by_kind(own)) == KINDS)
        yield own


def by_kind(broker: Edge) -> dict[str, list[psutil.Process]]:
    found: dict[str, list[psutil.Process]] = {}
    for child in broker.children():
        if title := re.match(r"sb-([a-z]+)", child.name()):
            found.setdefault(title.group(1), []).append(child)
    return found


def holds(process: psutil.Process, secret: bytes) -> bool:
    """Whether these bytes are somewhere in the writable memory of a process."""
    with open(f"/proc/{process.pid}/maps") as maps, open(f"/proc/{process.pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if rights[:2] != "rw" or "/dev/shm" in line:
                continue
            start, end = (int(part, 16) for part in span.split("-"))
            rest = b""
            for at in range(start, end, CHUNK):
                try:
                    memory.seek(at)
                    piece = rest + memory.read(min(CHUNK, end - at))
                except OSError:
                    break
                if secret in piece:
                    return True
                rest = piece[-len(secret) :]
    return False


def test_only_acceptors_have_the_private_key(whole: Edge, authority: Authority) -> None:
    """As OpenSSL stores the number: little endian."""
    key = load_pem_private_key((authority.directory / "broker.pem").read_bytes(), None)
    secret = key.private_numbers().private_value.to_bytes(32, "little")  # type: ignore[union-attr]
    with Client(whole.address, 5, "spoken", dial=dial(whole.at("ssl"), speaking(authority, NEWER))) as client:
        client.ping()
        found = {kind: [holds(process, secret) for process in processes] for kind, processes in by_kind(whole).items()}
    assert all(found.pop("acceptor")), "the bytes that are looked for are those of the key"
    assert found and not any(any(each) for each in found.values()), found


def test_sockets_between_processes_have_no_name(whole: Edge) -> None:
    """The control socket is the only one that another process can find by a path."""
    named = {
        (kind, str(one.laddr))
        for kind, processes in by_kind(whole).items()
        for process in processes
        for one in process.net_connections("unix")
        if one.laddr
    }
    assert {kind for kind, _ in named} == {"manager"}, named
    assert len({path for _, path in named}) == 1, named


def test_who_listens(whole: Edge) -> None:
    """Integrations and workers accept nothing from anywhere."""
    listening = {
        (kind, one.laddr.port)
        for kind, processes in by_kind(whole).items()
        for process in processes
        for one in process.net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    }
    assert {kind for kind, _ in listening} == {"acceptor", "api"}, listening


def test_workers_do_not_open_the_store_of_users(whole: Edge) -> None:
    def stores(kind: str) -> set[str]:
        maps = (Path(f"/proc/{process.pid}/maps").read_text() for process in by_kind(whole)[kind])
        return {name for text in maps for name in re.findall(r"/access/(\w+)/data\.mdb", text)}

    assert "users" in stores("integrations") and stores("worker") and "users" not in stores("worker"), stores("integrations")


def test_a_connection_that_is_pumped_takes_two_descriptors_and_others_none(whole: Edge, authority: Authority) -> None:
    def descriptors() -> int:
        return sum(process.num_fds() for process in by_kind(whole)["acceptor"])

    def connected(name: str, version: ssl.TLSVersion, ciphers: str = "") -> Client:
        return Client(whole.address, 5, name, keepalive=0, dial=dial(whole.at("ssl"), speaking(authority, version, ciphers)))

    with ExitStack() as stack:
        stack.enter_context(connected("first", NEWER))
        before = descriptors()
        direct = [stack.enter_context(connected(f"direct{n}-{v}", v)) for n in range(PUMPED_CLIENTS) for v in (OLDER, NEWER)]
        until(lambda: descriptors() == before)
        pumped = [stack.enter_context(connected(f"pumped{n}", OLDER, PUMPED)) for n in range(PUMPED_CLIENTS)]
        until(lambda: descriptors() == before + 2 * PUMPED_CLIENTS)
        for client in (*direct, *pumped):
            client.ping()
    until(lambda: descriptors() == before)
