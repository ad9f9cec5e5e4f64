"""Runs the wire table, and checks the notation that it is written in."""

from collections.abc import Callable, Iterator

import pytest

from tests.conformance.wire_table import CASES, Case, Step, encode
from tests.harness import AnyBroker, Client, Closed, statement, wire
from tests.harness.client import TIMEOUT_S

_VERSION_NAMES = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def _parameters() -> Iterator[object]:
    for case in CASES:
        for version in case.versions:
            marks = [statement("5.0" if version == 5 else "3.1.1", *case.statements)] if version > 3 else []
            yield pytest.param(case, version, id=f"{case.name}-{_VERSION_NAMES[version]}", marks=marks)


class _Runner:
    """Carries out the steps of one case on one connection."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.socket = client.socket
        self.socket.settimeout(TIMEOUT_S)

    def run(self, step: Step) -> None:
        getattr(self, "_" + step.action)(encode(step.data, self.client.version))

    def _read(self, size: int) -> bytes:
        """At most `size` bytes, fewer only at the end of the connection."""
        got = b""
        while len(got) < size:
            try:
                more = self.socket.recv(size - len(got))
            except ConnectionError:
                break
            except TimeoutError:
                pytest.fail(f"the connection is still open, after {got.hex(' ') or 'no byte'}")
            if not more:
                break
            got += more
        return got

    def _online(self, _: bytes) -> None:
        self.client.connect()

    def _send(self, data: bytes) -> None:
        self.client.send_raw(data)

    def _expect(self, data: bytes) -> None:
        assert self._read(len(data)).hex(" ") == data.hex(" ")

    def _alive(self, _: bytes) -> None:
        self._send(wire.pingreq())
        self._expect(b"\xd0\x00")

    def _closed(self, _: bytes) -> None:
        assert self._read(1) == b""

    def _refused(self, data: bytes) -> None:
        assert self._read(len(data) + 1) in (b"", data)

    def _unheeded(self, data: bytes) -> None:
        assert self._read(len(data)) in (b"", data)


@pytest.mark.parametrize(("case", "version"), list(_parameters()))
def test_wire(case: Case, version: int, broker: AnyBroker, new_id: Callable[[], str]) -> None:
    with Client(broker.address, version, new_id(), connect=False) as client:
        runner = _Runner(client)
        for step in case.steps:
            runner.run(step)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_connect_packet_is_encoded_alike_by_both_notations(version: int) -> None:
    expected = wire.connect("abc", version)
    properties = "00" if version == 5 else ""
    assert encode(f"10 [<proto> 02 003c {properties} ('abc')]", version) == expected


@pytest.mark.parametrize("wrong", ["1", "[00", "(00]", "'a", "zz"])
def test_notation_refuses_what_it_cannot_read(wrong: str) -> None:
    with pytest.raises(ValueError):
        encode(wrong, 4)


def test_names_are_unique_and_begin_with_a_statement() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    for case in CASES:
        if case.statements:
            first = case.statements[0].lower().replace("-", "_").replace(".", "_")
            assert case.name.startswith(first + "_"), case.name


def test_closed_is_reported_by_the_client(broker: AnyBroker, new_id: Callable[[], str]) -> None:
    with Client(broker.address, 4, new_id()) as client, pytest.raises(Closed):
        client.send_raw(b"\x00\x00")
        client.recv()
