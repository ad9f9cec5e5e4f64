"""How many steps of TLS handshakes an acceptor takes in one pass: the connections that it pumps are served in between."""

import os
import select
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from acceptor.secrets import Secrets
from tests.acceptor.conftest import FakeBroker, wait_until
from tests.acceptor.connects import connect, id_for
from tests.edge.certificates import Authority
from tests.edge.test_tls import PUMPED
from tests.harness.waiting import stopped

CLIENTS = 50
STEPS, STEPS_BESIDE_PUMPS = 16, 4
PROXY = b"PROXY TCP4 10.0.0.1 10.0.0.2 1000 1883\r\n"


class Passes:
    """The steps of each pass. The acceptor is given an order that it never takes, so each of its passes looks for it once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        step = Secrets.step

        def stepped(secrets: Secrets, tls: ssl.SSLObject) -> None:
            os.write(writer, b"s")
            step(secrets, tls)

        def no_order(*_: object) -> None:
            os.write(writer, b"|")

        monkeypatch.setattr(Secrets, "step", stepped)
        monkeypatch.setattr("acceptor.acceptor.receive_order", no_order)
        self._writer, self._seen = writer, b""

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)

    def counts(self) -> list[int]:
        while select.select([self._reader], [], [], 0)[0]:
            self._seen += os.read(self._reader, 1 << 16)
        return [len(one) for one in self._seen.split(b"|")]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Passes]:
    made = Passes(monkeypatch)
    yield made
    made.close()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(tmp_path_factory.mktemp("certificates"))
    made.issue("broker", "broker", ("localhost",))
    return made


def hello(context: ssl.SSLContext) -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("pumps", [False, True])
def test_steps_of_a_pass_are_bounded(
    fake: Callable[..., FakeBroker], authority: Authority, passes: Passes, pumps: bool, proxied: bool
) -> None:
    certfile = str(authority.directory / "broker.pem")
    broker = fake(listener={"type": "ssl", "tls": {"certfile": certfile}, "proxy_protocol": proxied})
    before = PROXY if proxied else b""
    with ExitStack() as stack:
        if pumps:
            pumped(broker, authority, before, stack)
        begun = sum(passes.counts())
        assert broker.process.pid is not None
        with stopped(broker.process.pid):
            broker.control[0].send(b"never taken")
            for _ in range(CLIENTS):
                client = stack.enter_context(broker.connect())
                client.sendall(before + hello(authority.client()))
        wait_until(lambda: sum(passes.counts()) - begun == CLIENTS)
        assert max(passes.counts()[1:]) == (STEPS_BESIDE_PUMPS if pumps else STEPS)


def pumped(broker: FakeBroker, authority: Authority, before: bytes, stack: ExitStack) -> None:
    """A connection whose TLS stays in the acceptor."""
    context = authority.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(PUMPED)
    plain = stack.enter_context(broker.connect())
    plain.sendall(before)
    secure = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
    secure.sendall(connect(id_for(0, 2)))
    stack.callback(os.close, broker.receive(0).fd)
