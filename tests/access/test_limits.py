"""What bounds the questions to back ends, in a worker and in the process integrations (THREAT_MODEL.md)."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardbroker.access.contract import Client as Login
from shardbroker.access.contract import Outcome
from shardbroker.access.hashing import hash_password
from shardbroker.access.scram import scram_user
from shardbroker.access.stores import User
from shardbroker.access.wire import Kind, Status, decode_result, encode_request
from shardbroker.config import Settings
from shardbroker.control import Control
from shardbroker.integrations import main
from shardbroker.integrations.auth import stored as judges
from shardbroker.integrations.auth.backends import Backends
from shardbroker.integrations.auth.services import Stores
from tests.access.guarded import Answers, Guarded, http_server
from tests.access.scram_client import ScramClient
from tests.harness import Client, until, wire
from tests.harness.waiting import stopped

pytestmark = pytest.mark.own_broker

NOT_AUTHORIZED, BUSY = 0x87, 0x89
ALLOWED = 200, b'{"result": "allow"}'
LONGEST = "x" * 65_535
BEHIND_BYTES = 16_384
HASHING_NICENESS = 10
NICE = 16
"""Place of the niceness in /proc/PID/stat, behind the name."""
FOREVER_S = 3600.0


@pytest.fixture
def answers() -> Iterator[Answers]:
    with http_server() as served:
        yield served


# --- a worker ----------------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_decided_in_time_is_denied_and_delays_its_client_alone(answers: Answers) -> None:
    answers.answer = lambda path, fields: None if fields["clientid"] == "waits" else ALLOWED
    settings = {"acl.sources": ["http"], "acl.http.url": answers.url, "acl.timeout": "1s", "acl.http.timeout": "1m"}
    with Guarded(settings, workers=1) as broker, broker.client("waits") as waits, broker.client("other") as other:
        waits.send_raw(wire.subscribe(1, [("x", 1)]))
        until(lambda: answers.asked)
        other.publish("y", b"", 1)
        assert waits.recv(0) is None, "it still waits, and the other one has been served"
        assert waits.expect(wire.Suback, 20).codes == (NOT_AUTHORIZED,)


def test_questions_of_logins_are_bounded_by_their_bytes(answers: Answers) -> None:
    """Below auth.max_waiting: the longest user names and passwords, of which a back end answers none."""
    answers.answer = lambda path, fields: None
    settings = {"auth.chain": ["http"], "auth.http.url": answers.url, "auth.http.pool_size": 256, "auth.timeout": "1m"}
    login = Login("c00", LONGEST, LONGEST.encode(), "127.0.0.1", 50_000, "default", 5)
    size = len(encode_request(1 << 60, Kind.LOGIN, 0.1, login, [["http"], None, None]))
    with Guarded({**settings, "auth.http.timeout": "1m"}, workers=1) as broker, ExitStack() as stack:
        refusal = None
        for waiting in range(100):
            client = Client(broker.address, 5, f"c{waiting:02}", connect=False, username=LONGEST, password=LONGEST, timeout=20)
            stack.enter_context(client).send_raw(client._connect_packet)
            while len(answers.asked) <= waiting and (refusal := client.recv(0.01)) is None:
                pass
            if refusal is not None:
                break
        assert isinstance(refusal, wire.Connack) and refusal.code == BUSY, refusal
        assert (waiting - 1) * size < 8 << 20 <= (waiting + 1) * size, (waiting, size)
        broker.refused("small", BUSY, username="a", password="b")


@pytest.mark.parametrize("size", [100, 33_000])
def test_little_is_read_behind_a_connect_that_waits(answers: Answers, size: int) -> None:
    """Though a megabyte has arrived before the acceptor has seen any of it."""
    answers.answer = lambda path, fields: None
    settings = {"auth.chain": ["http"], "auth.http.url": answers.url, "auth.timeout": "1m", "auth.http.timeout": "1m"}
    will = wire.Will("topic", bytes(size))
    with Guarded(settings, workers=1) as broker:
        before = broker.count("bytes.received")
        with Client(broker.address, 5, "c", connect=False, username="a" * size, will=will) as client:
            with ExitStack() as still:
                for pid in broker.child_pids("acceptor"):
                    still.enter_context(stopped(pid))
                client.socket.setblocking(False)
                sent = client.socket.send(client._connect_packet + wire.publish("x", bytes(1 << 20)))
                assert sent > len(client._connect_packet) + 4 * BEHIND_BYTES
            until(lambda: answers.asked)
            time.sleep(0.1)
            behind = broker.count("bytes.received") - before - len(client._connect_packet)
            assert 0 <= behind <= BEHIND_BYTES


LOOKING = '''
import gc


def load(plugin):
    secret = plugin.settings["backwards"][::-1].encode()

    def look(point):
        found = {
            type(holder).__name__
            for holder in gc.get_objects()
            for one in gc.get_referents(holder)
            if isinstance(one, bytes) and one is not secret and secret in one
        }
        plugin.log("info", f"at {point}: {sorted(found)}")

    for point in ("client.authenticate", "message.publish"):
        plugin.hook(point, lambda *arguments, point=point: look(point))
'''
"""Names what refers to a password. Freed memory and buffers of sockets are not looked at."""


def test_a_worker_drops_a_password_once_its_login_is_decided() -> None:
    broker = Guarded({"auth.chain": ["builtin"]}, users={"ada": "t0psecret"}, workers=1)
    (broker.folder / "looking.py").write_text(LOOKING)
    broker.settings["plugins.dir"] = str(broker.folder)
    with broker, Control(broker.data_dir) as control:
        control.call("plugins load", name="looking", setting={"backwards": "t0psecret"[::-1]})
        with broker.client("c", username="ada", password="t0psecret") as client:
            assert "Client" in broker.logged("at client.authenticate:"), "what the login is decided by has it, and is found"
            client.publish("x", b"", 1)
            assert "at message.publish: []" in broker.logged("at message.publish:")
        control.call("plugins unload", name="looking")


def test_topics_whose_rights_a_connection_remembers_are_bounded(answers: Answers) -> None:
    """32 by default: one more, and the oldest is asked about again."""
    answers.answer = lambda path, fields: ALLOWED
    with Guarded({"acl.sources": ["http"], "acl.http.url": answers.url}, workers=1) as broker, broker.client("c") as client:

        def questions(*numbers: int) -> int:
            """How many the back end is asked while these topics are published to."""
            before = len(answers.asked)
            for number in numbers:
                client.publish(f"topic/{number}", b"", 1)
            return len(answers.asked) - before

        assert questions(*range(32)) == 32
        assert questions(*range(32)) == 0
        assert questions(32) == 1
        assert questions(*range(1, 33)) == 0
        assert questions(0) == 1


# --- integrations ------------------------------------------------------------------------------------------------------------


class Link:
    """Takes results in place of a worker."""

    worker = 0

    def __init__(self) -> None:
        self.results: list[Any] = []

    def send(self, result: bytes) -> None:
        self.results.append(decode_result(result))


def service_of(backends: Any, stores: Any = None) -> Any:
    """The real service without its sockets and files."""
    service = main._Service.__new__(main._Service)
    service._backends, service._stores = backends, stores
    service._tasks, service._conversations = set(), main.OrderedDict()
    return service


async def no_subscriptions(client: Any) -> None:
    """There are no sources of subscriptions."""


def question(number: int, kind: Kind, *details: Any) -> bytes:
    login = Login("c", "ada", b"secret", "127.0.0.1", 1, "default", 5)
    return encode_request(number, kind, asyncio.get_running_loop().time() + FOREVER_S, login, details)


def test_questions_in_integrations_are_bounded() -> None:
    async def run() -> None:
        async def authenticate(*_: object) -> Any:
            await over.wait()
            raise RuntimeError

        over, link = asyncio.Event(), Link()
        service = service_of(SimpleNamespace(authenticate=authenticate))
        service._report = lambda *_: None
        for number in range(20_000):
            service.take(link, question(number, Kind.LOGIN, ["builtin"], None, None))
        assert len(service._tasks) == 20_000 and not link.results
        service.take(link, question(20_000, Kind.LOGIN, ["builtin"], None, None))
        assert [(one.id, one.status) for one in link.results] == [(20_000, Status.FAILED)], "it fails at once"
        over.set()
        await asyncio.gather(*service._tasks)
        assert not service._tasks and len(link.results) == 20_001

    asyncio.run(run())


def test_the_oldest_scram_conversation_makes_room(tmp_path: Path) -> None:
    said = ScramClient("sha256", "ada", "pencil")

    async def run(service: Any, link: Link) -> None:
        async def ask(number: int, kind: Kind, *details: Any) -> Any:
            service.take(link, question(number, kind, *details))
            await asyncio.gather(*service._tasks)
            return link.results[-1]

        for number in range(1, 10_001):
            assert (await ask(number, Kind.LOGIN, ["scram"], "SCRAM-SHA-256", said.first())).status is Status.CONTINUE
        assert len(service._conversations) == 10_000
        challenge = (await ask(10_001, Kind.LOGIN, ["scram"], "SCRAM-SHA-256", said.first())).details[0]
        assert len(service._conversations) == 10_000
        lost = await ask(20_000, Kind.AUTH, 1, b"")
        assert (lost.status, lost.details) == (Status.FAILED, ["SCRAM exchange was lost"])
        assert (await ask(20_001, Kind.AUTH, 2, b"")).status is Status.DENY, "the second oldest is still there"
        assert (await ask(20_002, Kind.AUTH, 10_001, said.final(challenge))).status is Status.OK
        assert len(service._conversations) == 9_998, "those that are over are forgotten"

    stores = Stores(tmp_path)
    try:
        stores.users().put_scram("sha256", scram_user("ada", "pencil", "sha256", 4096, False))
        asyncio.run(run(service_of(SimpleNamespace(settings=Settings(), subscriptions=no_subscriptions), stores), Link()))
    finally:
        stores.close()


def test_passwords_are_hashed_by_two_threads() -> None:
    """More logins than that at once. Threads of a pool stay, and those of this one can be told by their niceness."""
    with Guarded({"auth.chain": ["builtin"]}, users={"ada": "secret"}, workers=1) as broker, ExitStack() as stack:
        (pid,) = broker.child_pids("integrations")
        clients = [
            stack.enter_context(Client(broker.address, 5, f"c{number}", connect=False, username="ada", password="secret"))
            for number in range(12)
        ]
        for client in clients:
            client.send_raw(client._connect_packet)
        for client in clients:
            client.expect(wire.Connack, 20, code=0)
        threads = [stat.read_text().rpartition(")")[2].split() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
        assert [fields[NICE] for fields in threads].count(str(HASHING_NICENESS)) == 2
    assert hash_password(b"x").startswith("$argon2id$v=19$m=19456,t=2,p=1$"), "19 MB, two passes"


def test_a_login_that_has_timed_out_is_not_hashed_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    held = threading.Event()

    def verify(scheme: object, kept: str, salt: str, password: bytes) -> bool:
        hashed.append(password)
        return held.wait(20)

    async def run(backends: Backends) -> None:
        under_way = [asyncio.create_task(login(backends, b"first", 20)) for _ in range(2)]
        while len(hashed) < 2:
            await asyncio.sleep(0.01)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await login(backends, b"late", 0.01)
        held.set()
        await asyncio.gather(*under_way)
        await login(backends, b"last", 20)

    async def login(backends: Backends, password: bytes, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            answer, _ = await backends.authenticate(["builtin"], Login("c", "ada", password, "127.0.0.1", 1, "default", 5))
            assert answer.outcome is Outcome.OK

    stores = Stores(tmp_path)
    monkeypatch.setattr(judges, "verify", verify)
    try:
        stores.users().put("username", User("ada", hash_password(b"x"), False))
        settings = Settings.model_validate({"auth": {"chain": ["builtin"]}})
        backends = Backends(settings, stores, lambda *_: None)
        asyncio.run(run(backends))
        assert hashed == [b"first", b"first", b"last"]
    finally:
        held.set()
        stores.close()
