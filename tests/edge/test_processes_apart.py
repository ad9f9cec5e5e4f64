"""What each process of a broker has: keys, messages, sockets with a name, files, the store of users (THREAT_MODEL.md)."""

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.edge.test_tls import NEWER, OLDER, PUMPED, dial, speaking
from tests.harness import Client, Publish, free_port, until

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
    with Edge({"ssl": options, "plain": {"enable_authn": False}}, settings=settings) as own:
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


def found_in(broker: Edge, secret: bytes) -> set[str]:
    """The kinds of processes that have these bytes in their memory."""
    return {kind for kind, processes in by_kind(broker).items() if any(holds(process, secret) for process in processes)}


def open_files(process: psutil.Process) -> list[str]:
    """What its descriptors lead to: paths of files, `pipe:[inode]`, and more."""
    found = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(link))
    return found


@pytest.mark.parametrize("way", ["plain", "direct", "pumped"])
def test_messages_are_in_acceptors_only_if_their_connection_is_pumped(whole: Edge, authority: Authority, way: str) -> None:
    """Behind CONNACK: what arrives together with a CONNECT passes through the acceptor along with it."""
    secure = dial(whole.at("ssl"), speaking(authority, OLDER, PUMPED) if way == "pumped" else speaking(authority, NEWER))
    secret = f"{os.urandom(8).hex()} {way}".encode()
    with Client(whole.at("plain"), 5, f"message-{way}", dial=None if way == "plain" else secure) as client:
        client.subscribe(f"message/{way}", 1)
        client.publish(f"message/{way}", secret, 1)
        assert client.expect(Publish).payload == secret
        assert found_in(whole, secret) == ({"worker", "acceptor"} if way == "pumped" else {"worker"})


def test_the_api_has_no_session_and_no_message(whole: Edge) -> None:
    """It opens the accounts and the counters; all else it asks the manager for."""
    retained, queued = (f"{os.urandom(8).hex()} {kind}".encode() for kind in ("retained", "queued"))
    lasting = {"session_expiry_interval": 60}
    with Client(whole.at("plain"), 5, "api-sleeper", properties=lasting) as sleeper:
        sleeper.subscribe("api/queued", 1)
    with Client(whole.at("plain"), 5, "api-publisher") as client:
        client.publish("api/retained", retained, 1, retain=True)
        client.publish("api/queued", queued, 1)
        assert found_in(whole, queued) == {"worker"}
        assert "api" not in found_in(whole, retained) | found_in(whole, b"api-sleeper")
        client.publish("api/retained", b"", 1, retain=True)
    (api,) = by_kind(whole)["api"]
    maps = Path(f"/proc/{api.pid}/maps").read_text()
    files = {*open_files(api), *re.findall(r"(/\S+)$", maps, re.MULTILINE)}
    own = {Path(name).relative_to(whole.data_dir).parts[0] for name in files if name.startswith(str(whole.data_dir))}
    assert {re.sub("-(wal|shm)$", "", name) for name in own} == {"accounts.sqlite3", "lock"}
    assert {Path(name).name for name in files if "/shardbroker-" in name and name.startswith("/dev/shm")} == {"counters"}
    with Client(whole.at("plain"), 5, "api-sleeper", clean=False) as sleeper:
        assert sleeper.expect(Publish).payload == queued


def test_keys_of_a_tls_session_are_in_its_acceptor_and_its_worker_and_in_no_file(
    whole: Edge, authority: Authority, tmp_path: Path
) -> None:
    context = speaking(authority, NEWER)
    context.keylog_filename = str(tmp_path / "keys")
    with Client(whole.address, 5, "keys", dial=dial(whole.at("ssl"), context)) as client:
        client.ping()
        lines = (tmp_path / "keys").read_text().splitlines()
        (text,) = [line.split()[2] for line in lines if line.startswith("CLIENT_TRAFFIC_SECRET_0 ")]
        key = bytes.fromhex(text)
        assert [holds(process, key) for process in by_kind(whole)["worker"]].count(True) == 1, "that of the connection"
        assert found_in(whole, key) | found_in(whole, text.encode()) == {"worker", "acceptor"}
        everyone = [psutil.Process(whole.pid), *whole.children()]
        assert not holds(everyone[0], key)
        opened = {process: open_files(process) for process in everyone}
        for acceptor in by_kind(whole)["acceptor"]:
            others = {name for process in everyone if process != acceptor for name in opened[process]}
            own = [name for name in opened[acceptor] if name not in others]
            assert any(own.count(name) >= 2 for name in own if name.startswith("pipe:")), "both ends of the pipe of the keys"
            assert all(name.startswith(("pipe:", "socket:", "anon_inode:", f"/proc/{acceptor.pid}/")) for name in own), own
        shared = {Path(name).parent for names in opened.values() for name in names if name.endswith("/counters")}
        files = {path for folder in (whole.data_dir, *shared) for path in folder.rglob("*") if path.is_file()}
        files |= {Path(name) for names in opened.values() for name in names if name.startswith("/") and Path(name).is_file()}
        assert files
        for file in files:
            data = file.read_bytes()
            assert key not in data and text.encode() not in data, file


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
