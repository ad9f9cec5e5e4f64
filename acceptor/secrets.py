"""Export of TLS keys from OpenSSL: the result of a handshake, as `Records` that can be passed to a worker.

Python's ssl module exposes session keys in one place only: it writes them to `SSLContext.keylog_filename`, line by line, in the
format of NSS. Here that name leads to a pipe of which this process holds both ends. It is emptied at each step of a handshake, so
its content belongs to the connection of that step and never reaches a file.
"""

import os
import ssl
from contextlib import suppress

from shardbroker.transport.crypto import AVAILABLE
from shardbroker.transport.tls import Records

__all__ = ["KeyLog", "Secrets"]

READ_BYTES = 65536
"""Capacity of a pipe; one step of a handshake writes less than a thousand bytes."""

CLIENT, SERVER, MASTER = b"CLIENT_TRAFFIC_SECRET_0", b"SERVER_TRAFFIC_SECRET_0", b"CLIENT_RANDOM"
"""Labels of the two secrets of TLS 1.3, and of the one of TLS 1.2."""

RECORD_HEADER, RECORD_DATA, RECORD_HANDSHAKE, SERVER_HELLO = 5, 23, 22, 2
RANDOM = slice(11, 43)
"""Place of the server's random in its first record: after the headers of record and message and the version."""


class KeyLog:
    """The pipe of one acceptor, made for its first listener with TLS."""

    def __init__(self) -> None:
        self._reader = self._writer = -1

    @property
    def path(self) -> str:
        """Returns the path for `SSLContext.keylog_filename`; empty where the keys could not be used anyway. Raises OSError."""
        if not AVAILABLE:
            return ""
        if self._reader < 0:
            self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        path = f"/proc/self/fd/{self._writer}"
        return path if os.path.exists(path) else ""

    def take(self) -> bytes:
        """Returns the bytes written since the last call."""
        if self._reader >= 0:
            with suppress(BlockingIOError):
                return os.read(self._reader, READ_BYTES)
        return b""

    def close(self) -> None:
        """Closes the pipe. No handshake may be under way."""
        for descriptor in {self._reader, self._writer} - {-1}:
            os.close(descriptor)
        self._reader = self._writer = -1


FRAGMENT_LENGTH = 1
"""Extension max_fragment_length, RFC 6066 §4: its one byte is 1 to 4 for 512 to 4096 bytes. Small clients have no room for more."""
HELLO_MAX = 1 << 16
"""Bytes of a ClientHello that are kept to search for it; OpenSSL rejects longer ones, too."""


def fragment_length(sent: bytes) -> int:
    """Returns the fragment length requested in a ClientHello, bytes. 0: it is absent, or the ClientHello is incomplete."""
    hello, at = b"", 0
    while len(sent) >= at + RECORD_HEADER and sent[at] == RECORD_HANDSHAKE:
        end = at + RECORD_HEADER + int.from_bytes(sent[at + 3 : at + 5])
        hello += sent[at + RECORD_HEADER : end]
        at = end
    body = hello[4 : 4 + int.from_bytes(hello[1:4])]
    place = 2 + 32  # version, random
    for width in (1, 2, 1):  # session id, cipher suites, compression methods
        place += width + int.from_bytes(body[place : place + width])
    place += 2
    while place + 4 <= len(body):
        kind, size = int.from_bytes(body[place : place + 2]), int.from_bytes(body[place + 2 : place + 4])
        if kind == FRAGMENT_LENGTH and size == 1 and 1 <= body[place + 4] <= 4:
            return 256 << body[place + 4]
        place += 4 + size
    return 0


class Secrets:
    """Secrets that one handshake has revealed so far."""

    def __init__(self, keylog: KeyLog) -> None:
        self._keylog = keylog
        self._lines: list[bytes] = []
        self._server_random = b""
        self._hello = bytearray()

    def note_input(self, data: bytes) -> None:
        """Records input of the handshake. Its start has the client's extensions, which the ssl module does not expose."""
        if len(self._hello) < HELLO_MAX:
            self._hello += data

    def step(self, tls: ssl.SSLObject) -> None:
        """Performs one step of the handshake. Raises the errors of SSLObject.do_handshake."""
        try:
            tls.do_handshake()
        finally:
            self._lines += self._keylog.take().splitlines()

    def note_output(self, data: bytes) -> None:
        """Records output of the handshake. Its start has the server's random."""
        if (
            not self._server_random
            and len(data) >= RANDOM.stop
            and data[0] == RECORD_HANDSHAKE
            and data[RECORD_HEADER] == SERVER_HELLO
        ):
            self._server_random = data[RANDOM]

    def records(self, tls: ssl.SSLObject, last_output: bytes) -> Records | None:
        """Returns the state that continues the connection without OpenSSL. `last_output`: bytes to send of the last step.

        Returns None if only OpenSSL can continue it, since `Records` does not implement the cipher.
        """
        made = self._records(tls, last_output)
        length = fragment_length(bytes(self._hello)) if made is not None else 0
        if made is not None and length:
            made.send_at_most(length)
        return made

    def _records(self, tls: ssl.SSLObject, last_output: bytes) -> Records | None:
        suite = tls.cipher()
        version = tls.version()
        if suite is None:
            return None
        if version == "TLSv1.3":
            (_, peer), (_, own) = self._words(CLIENT), self._words(SERVER)
            return Records.after_handshake(suite[0], peer, own, _data_records(last_output)) if peer and own else None
        if version == "TLSv1.2":
            client_random, master = self._words(MASTER)
            known = master and self._server_random
            return Records.after_older_handshake(suite[0], master, client_random, self._server_random, True) if known else None
        return None

    def _words(self, label: bytes) -> tuple[bytes, bytes]:
        """Returns the client's random and the secret of the line with this label; empty ones without it."""
        for line in self._lines:
            name, _, rest = line.partition(b" ")
            if name == label:
                client_random, _, secret = rest.decode().partition(" ")
                return bytes.fromhex(client_random), bytes.fromhex(secret)
        return b"", b""


def _data_records(output: bytes) -> int:
    """Returns the number of records encrypted with the server's last key: its session tickets, after the client's Finished."""
    count = at = 0
    while at + RECORD_HEADER <= len(output):
        count += output[at] == RECORD_DATA
        at += RECORD_HEADER + int.from_bytes(output[at + 3 : at + 5])
    return count
