"""Keys of TLS session tickets: the same in all acceptors, replaced every two hours, kept in shared memory only.

    file `ticket-keys` of the runtime directory:   period | seed of this period | master of the one before
    seed --HMAC--> master of this period --HMAC--> key of a listener, for tickets
         `-HMAC--> seed of the next period

Each acceptor makes the keys of a period from those of the last one by itself, so acceptors need no messages. A seed does not lead
back to earlier ones: a stolen seed reads tickets of its period, the one before and later ones, but no older ones.
"""

import fcntl
import hashlib
import hmac
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from acceptor.openssl import KEY_BYTES, SessionTickets

__all__ = ["FILE", "PERIOD_S", "TicketKeys", "label_of"]

FILE = "ticket-keys"
"""In the runtime directory."""
PERIOD_S = 7200
"""Seconds between two keys: OpenSSL's lifetime of a session, so that the last two keys read each ticket that has not expired."""
SECRET_BYTES = 32
LAYOUT = struct.Struct(f"!Q{SECRET_BYTES}s{SECRET_BYTES}s")
LATE_MAX = 1000
"""Periods for which the keys are made one after another, 83 days; a file that is older, or from the future, is replaced."""


class _Period(NamedTuple):
    number: int
    seed: bytes
    before: bytes
    """Master of the period before; zeros: it is unknown."""

    @property
    def master(self) -> bytes:
        return hmac.digest(self.seed, b"master", "sha256")

    def following(self) -> "_Period":
        return _Period(self.number + 1, hmac.digest(self.seed, b"next", "sha256"), self.master)


class TicketKeys:
    """The keys of one acceptor. path: file that the acceptors of the broker share. Raises OSError."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self._path, self._now_s = path, now_s
        self._given: dict[bytes, SessionTickets] = {}
        self._period = self._shared()

    def of(self, label: bytes) -> SessionTickets:
        """Returns the keys of a listener: they differ between labels, and do not change with its certificate."""
        if label not in self._given:
            self._given[label] = SessionTickets()
            self._change(label)
        return self._given[label]

    def turn(self) -> None:
        """Changes all keys if a period is over. Called for each handshake."""
        number = int(self._now_s() // PERIOD_S)
        if number == self._period.number:
            return
        try:
            self._period = self._shared()
        except OSError:  # the same keys as those of the others
            while self._period.number < number:
                self._period = self._period.following()
        for label in self._given:
            self._change(label)

    def _change(self, label: bytes) -> None:
        before = self._period.before
        self._given[label].change(_key(self._period.master, label), _key(before, label) if any(before) else b"")

    def _shared(self) -> _Period:
        """Returns the period in force; the first acceptor that needs it writes it."""
        number = int(self._now_s() // PERIOD_S)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            period = _Period(number, os.urandom(SECRET_BYTES), bytes(SECRET_BYTES))
            with suppress(struct.error):  # of a new file
                found = _Period(*LAYOUT.unpack(os.pread(descriptor, LAYOUT.size, 0)))
                if 0 <= number - found.number <= LATE_MAX:
                    period = found
            while period.number < number:
                period = period.following()
            os.pwrite(descriptor, LAYOUT.pack(*period), 0)
        return period


def label_of(name: str, tls: Any) -> bytes:
    """Returns what the keys of a listener belong to: a ticket is of no use at another listener, nor once others are trusted here.

    name: of the listener. tls: `shardbroker.config.listeners.Tls`. Raises OSError.
    """
    trusted = hashlib.sha256()
    for part in (tls.cacertfile, tls.crlfile):
        content = Path(part).read_bytes() if part else b""
        trusted.update(hashlib.sha256(content).digest())
    return f"{name} {tls.verify} {tls.fail_if_no_peer_cert} {trusted.hexdigest()}".encode()


def _key(master: bytes, label: bytes) -> bytes:
    """Returns KEY_BYTES."""
    return (hmac.digest(master, b"1" + label, "sha512") + hmac.digest(master, b"2" + label, "sha512"))[:KEY_BYTES]
