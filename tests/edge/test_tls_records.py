"""TLS records made here against OpenSSL's, and against each other where OpenSSL would not do what is needed."""

import contextlib
import ssl
import struct
from collections.abc import Callable

import pytest

from acceptor.secrets import KeyLog, Secrets
from acceptor.tls import build_context
from shardbroker.config.listeners import Tls
from shardbroker.transport.tls import Records, TlsRecordError
from tests.edge.certificates import Authority

SIZES = (0, 1, 64, 16384, 16385, 100_000)
OLDER = (
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
)
REKEY_RECORDS = 1 << 24
SEQUENCE_AT = 3, 3 + 8 + 48 + 32 + 12
"""Where the two counters stand in what pack() gives."""


class Ends:
    """A handshake in memory: `client` is OpenSSL's end, `records` ours behind it."""

    def __init__(
        self, authority: Authority, client: Callable[[ssl.SSLContext], None] = lambda context: None, tickets: bool = False
    ) -> None:
        settings = Tls(certfile=str(authority.directory / "broker.pem"), session_tickets=tickets)
        with contextlib.closing(KeyLog()) as keylog:
            self._shake_hands(settings, authority, client, keylog)

    def _shake_hands(self, settings: Tls, authority: Authority, client: Callable[[ssl.SSLContext], None], keylog: KeyLog) -> None:
        context = authority.client()
        client(context)
        self.to_client, self.to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.client = context.wrap_bio(self.to_client, self.to_server, server_hostname="localhost")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = build_context(settings, False, keylog.path).wrap_bio(incoming, outgoing, server_side=True)
        secrets, done, output = Secrets(keylog), False, b""
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.client.do_handshake()
            if done:
                break
            incoming.write(self.to_server.read())
            with contextlib.suppress(ssl.SSLWantReadError):
                secrets.step(server)
                done = True
            output = outgoing.read()
            secrets.note_output(output)
            self.to_client.write(output)
        made = secrets.records(server, output)
        assert made is not None
        self.records = made

    def from_client(self, data: bytes) -> bytes:
        """What a client's write becomes on the wire."""
        if data:
            self.client.write(data)
        return self.to_server.read()

    def at_client(self, sealed: bytes) -> bytes:
        """What the client reads of records."""
        self.to_client.write(sealed)
        parts = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while part := self.client.read(1 << 20):
                parts.append(part)
        return b"".join(parts)

    def sealed(self, data: bytes) -> bytes:
        self.records.encode(data)
        return self.records.take_output()

    def both_ways(self) -> None:
        for size in SIZES:
            data = bytes(i % 251 for i in range(size))
            assert self.records.decode(self.from_client(data)) == data
            assert self.at_client(self.sealed(data)) == data


def pair(authority: Authority) -> tuple[Records, Records]:
    """Both ends of ours, of one connection of TLS 1.3."""
    own = Ends(authority).records.pack()
    first, second = SEQUENCE_AT
    end = 2 * second - first
    return Records.unpack(own), Records.unpack(own[:first] + own[second:end] + own[first:second] + own[end:])


def speaking(version: ssl.TLSVersion, ciphers: str = "") -> Callable[[ssl.SSLContext], None]:
    def change(context: ssl.SSLContext) -> None:
        context.maximum_version = version
        if ciphers:
            context.set_ciphers(ciphers)

    return change


@pytest.mark.parametrize("tickets", [False, True])
def test_data_of_all_sizes_both_ways(authority: Authority, tickets: bool) -> None:
    """Tickets are records of their own, made before ours."""
    Ends(authority, tickets=tickets).both_ways()


@pytest.mark.parametrize("tickets", [False, True])
@pytest.mark.parametrize("cipher", OLDER)
def test_data_of_all_sizes_over_tls_1_2(authority: Authority, cipher: str, tickets: bool) -> None:
    Ends(authority, speaking(ssl.TLSVersion.TLSv1_2, cipher), tickets).both_ways()


def test_ciphers_that_only_openssl_speaks(authority: Authority) -> None:
    with pytest.raises(AssertionError):
        Ends(authority, speaking(ssl.TLSVersion.TLSv1_2, "ECDHE-ECDSA-AES128-SHA256"))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_records_cut_anywhere_and_in_another_process(authority: Authority, version: ssl.TLSVersion) -> None:
    ends = Ends(authority, speaking(version))
    wire = ends.from_client(b"first") + ends.from_client(b"") + ends.from_client(b"second" * 5)
    got = b""
    for byte in wire:
        got += ends.records.decode(bytes([byte]))
        ends.records = Records.unpack(ends.records.pack())
    assert got == b"first" + b"second" * 5
    assert ends.at_client(ends.sealed(b"answer")) == b"answer"


def test_an_end_is_told_and_understood(authority: Authority) -> None:
    ends = Ends(authority)
    with contextlib.suppress(ssl.SSLWantReadError):
        ends.client.unwrap()
    assert (ends.records.decode(ends.from_client(b"")), ends.records.ended) == (b"", True)
    with pytest.raises(ValueError, match="not the state"):
        Records.unpack(b"short")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda wire: wire[:-1] + bytes([wire[-1] ^ 1]), "fails authentication"),
        (lambda wire: wire[:7] + bytes([wire[7] ^ 0x80]) + wire[8:], "fails authentication"),
        (lambda wire: wire[1:], "cannot be read"),
        (lambda wire: b"\x17\x02" + wire[2:], "cannot be read"),
        (lambda wire: b"\x14\x03\x03\x00\x01\x01" + wire, "not allowed after the handshake"),
        (lambda wire: b"\x17\x03\x03\x41\x01" + wire, "too long"),
        (lambda wire: b"\x17\x03\x03\x00\x10" + bytes(16), "cannot be read"),
        (lambda wire: b"\x17\x03\x03\x00\x20" + bytes(32), "fails authentication"),
        (lambda wire: wire + wire, "fails authentication"),
    ],
)
def test_records_that_are_wrong_end_it_with_an_alert(authority: Authority, spoil: Callable[[bytes], bytes], words: str) -> None:
    ends = Ends(authority)
    data, more = ends.from_client(b"data"), ends.from_client(b"more")
    with pytest.raises(TlsRecordError, match=words):
        ends.records.decode(spoil(data))
    assert ends.records.ended
    assert ends.records.closed
    with pytest.raises(ssl.SSLError, match="alert"):
        ends.at_client(ends.records.take_output())
    assert ends.records.decode(more) == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_all_of_a_header_is_authenticated(authority: Authority, version: ssl.TLSVersion) -> None:
    """RFC 8446 §5.2, RFC 5246 §6.2.3.3: type, version and length are those that the sender has sealed."""
    ends = Ends(authority, speaking(version))
    data = ends.from_client(b"data")
    for at in range(5):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(TlsRecordError):
            Records.unpack(ends.records.pack()).decode(bytes(changed) + bytes(256 if at > 2 else 0))
    assert ends.records.decode(data) == b"data"


def test_keys_are_changed_before_they_have_served_too_long(authority: Authority) -> None:
    ours, peer = (bytearray(end.pack()) for end in pair(authority))
    struct.pack_into("=Q", ours, SEQUENCE_AT[1], REKEY_RECORDS - 2)
    struct.pack_into("=Q", peer, SEQUENCE_AT[0], REKEY_RECORDS - 2)
    sender, receiver = Records.unpack(bytes(ours)), Records.unpack(bytes(peer))
    wire = b""
    for number in range(5):
        sender.encode(b"%d" % number)
        wire += sender.take_output()
    assert receiver.decode(wire) == b"01234"
    (counter,) = struct.unpack_from("=Q", sender.pack(), SEQUENCE_AT[1])
    assert counter == 3
    receiver.encode(b"back")
    assert sender.decode(receiver.take_output()) == b"back"
