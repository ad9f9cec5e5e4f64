"""Fuzzes TLS records: records sealed by `cryptography` are opened here, records sealed here are opened by it, and no others.

    python fuzz/fuzz_tls.py --seconds 60 [--seed N]

Each input is a connection with random keys and a random cipher, TLS 1.3 or 1.2: records of any type, of any size, with padding and
key updates, some of them changed in transit and all cut into pieces anywhere. The output must be what the standard requires for the
records before the first one that breaks it. That one must end the connection with a TlsRecordError: no other error, and no byte of
the changed record. On a finding the exit code is 1, and the seed of the input is printed.
"""

import argparse
import random
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, HashAlgorithm
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from shardbroker.transport.tls import Records, TlsRecordError

CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, DATA = 20, 21, 22, 23
KEY_UPDATE = 24
HEADER, NONCE, TAG = 5, 12, 16
PLAIN_MAX, SEALED_MAX = 16384, 16640
UPDATES_FREE = 32
CHACHA = 2
SUITES: tuple[tuple[int, int, HashAlgorithm], ...] = ((0, 16, SHA256()), (1, 32, SHA384()), (CHACHA, 32, SHA256()))
"""Number of the cipher as packed by Records, bytes of its key, hash of the suite."""
DIGESTS = {"sha256": 0, "sha384": 1}
KEYS = struct.Struct("=Q48s32s12s")
"""Keys of one direction in the result of pack(): counter, secret, key, IV."""


LONGEST = (512, 1024, 2048, 4096, PLAIN_MAX)
"""Plaintext sizes of a record that a handshake may agree on, bytes."""
STATE_BYTES = 3 + 2 * KEYS.size + 2


@dataclass
class Key:
    """One direction of a connection, by the standard alone (RFC 8446 §5 and §7, RFC 5246 §6.2 with RFC 5288 and RFC 7905)."""

    cipher: int
    digest: HashAlgorithm
    older: bool
    secret: bytes
    key: bytes
    iv: bytes
    sequence: int

    @classmethod
    def drawn(cls, rng: random.Random, suite: tuple[int, int, HashAlgorithm], older: bool) -> "Key":
        cipher, size, digest = suite
        secret, key, iv = rng.randbytes(digest.digest_size), rng.randbytes(size), rng.randbytes(NONCE)
        if older and cipher != CHACHA:
            iv = iv[:4]
        return cls(cipher, digest, older, secret, key, iv, rng.choice((0, 1, rng.getrandbits(20))))

    def packed(self) -> bytes:
        return KEYS.pack(self.sequence, self.secret, self.key, self.iv)

    def update(self) -> None:
        """Updates the key as in RFC 8446 §7.2."""
        self.secret = self._expand(b"traffic upd", self.digest.digest_size)
        self.key, self.iv = self._expand(b"key", len(self.key)), self._expand(b"iv", NONCE)
        self.sequence = 0

    def seal(self, kind: int, plain: bytes, padding: int = 0) -> bytes:
        nonce, explicit = self._nonce(None)
        inner = plain if self.older else plain + bytes([kind]) + bytes(padding)
        header = struct.pack(">BHH", kind if self.older else DATA, 0x0303, len(explicit) + len(inner) + TAG)
        sealed = self._aead().encrypt(nonce, inner, self._known(header, len(inner)))
        self.sequence += 1
        return header + explicit + sealed

    def open(self, record: bytes) -> tuple[int, bytes]:
        """Opens a record; returns its type and content. Raises InvalidTag."""
        header, body = record[:HEADER], record[HEADER:]
        nonce, explicit = self._nonce(body)
        body = body[len(explicit) :]
        inner = self._aead().decrypt(nonce, body, self._known(header, len(body) - TAG))
        self.sequence += 1
        if self.older:
            return header[0], inner
        inner = inner.rstrip(b"\0")
        return inner[-1], inner[:-1]

    def _aead(self) -> AESGCM | ChaCha20Poly1305:
        return (ChaCha20Poly1305 if self.cipher == CHACHA else AESGCM)(self.key)

    def _nonce(self, body: bytes | None) -> tuple[bytes, bytes]:
        """Returns the nonce, and the part of it that the record contains."""
        number = self.sequence.to_bytes(8)
        if self.older and self.cipher != CHACHA:
            explicit = number if body is None else body[:8]
            return self.iv + explicit, explicit
        return bytes(a ^ b for a, b in zip(self.iv, bytes(4) + number, strict=True)), b""

    def _known(self, header: bytes, size: int) -> bytes:
        return self.sequence.to_bytes(8) + header[:3] + struct.pack(">H", size) if self.older else header

    def _expand(self, label: bytes, size: int) -> bytes:
        info = struct.pack(">HB", size, 6 + len(label)) + b"tls13 " + label + b"\0"
        return HKDFExpand(self.digest, size, info).derive(self.secret)


@dataclass
class Script:
    """The output of a peer, and the result that it must have."""

    rng: random.Random
    key: Key
    wire: list[bytes] = field(default_factory=list)
    plain: bytes = b""
    ended: bool = False
    """The peer has ended its output; not an error."""
    wrong: bool = False
    """A record has broken a rule; later ones are ignored."""
    updates: int = 0
    half: bytes = b""
    """Received part of a KeyUpdate."""

    def go_on(self) -> None:
        """Adds one more record."""
        act = self.rng.random()
        if act < 0.55:
            self.data(self.rng.randbytes(self.rng.choice((0, 1, 2, 64, 1000, self.rng.randint(0, PLAIN_MAX), PLAIN_MAX))))
        elif act < 0.7:
            self.key_update()
        elif act < 0.74:
            self.put(ALERT, bytes([self.rng.choice((1, 2)), self.rng.randrange(256)]))
        elif act < 0.8:
            self.put(self.rng.randrange(1, 256), self.rng.randbytes(self.rng.randint(0, 8)))  # 0 in TLS 1.3 would be padding
        elif act < 0.84:
            self.put(HANDSHAKE, bytes([self.rng.choice((KEY_UPDATE, 4))]) + self.rng.randbytes(self.rng.randint(0, 6)))
        elif act < 0.86 and not self.key.older:
            self.put_inner(bytes(self.rng.randint(1, 40)))
        elif act < 0.88:
            self.bare(struct.pack(">BHH", self.rng.randrange(256), self.rng.getrandbits(16), self.rng.randrange(1 << 16)))
        elif act < 0.94:
            self.change()
        else:
            self.data(self.rng.randbytes(self.rng.randint(PLAIN_MAX + 1, PLAIN_MAX + 200)))

    def data(self, plain: bytes) -> None:
        self.put(DATA, plain, self.rng.choice((0, 0, 1, 100)))

    def key_update(self) -> None:
        """Adds a KeyUpdate, whole or split over several records."""
        message = bytes([KEY_UPDATE, 0, 0, 1, self.rng.randrange(2)])
        cuts = [0, self.rng.randint(1, 4), 5] if self.rng.random() < 0.3 else [0, 5]
        for begin, end in pairwise(cuts):
            self.put(HANDSHAKE, message[begin:end])

    def put(self, kind: int, plain: bytes, padding: int = 0) -> None:
        """Adds a correctly sealed record with any content."""
        if self.key.older:
            padding = 0
        self.wire.append(self.key.seal(kind, plain, padding))
        if self.ended or self.wrong:
            return
        size = len(self.wire[-1]) - HEADER
        if size > SEALED_MAX or len(plain) > PLAIN_MAX or (self.key.older and not CHANGE_CIPHER_SPEC <= kind <= DATA):
            self.wrong = True
        elif kind == DATA and not self.half:
            self.plain += plain
        elif kind == ALERT and len(plain) == 2 and not self.half:
            self.ended = True
        elif kind == HANDSHAKE and not self.key.older and plain:
            self._handshake(plain)
        else:
            self.wrong = True

    def _handshake(self, piece: bytes) -> None:
        self.half += piece
        self.wrong = (
            len(self.half) > 5
            or self.half[0] != KEY_UPDATE
            or (len(self.half) == 5 and (self.half[1:4] != b"\0\0\1" or self.half[4] > 1 or self.updates == UPDATES_FREE))
        )
        if len(self.half) == 5 and not self.wrong:
            self.half = b""
            self.updates += 1
            self.key.update()

    def put_inner(self, zeros: bytes) -> None:
        """Adds a record of TLS 1.3 without a type: padding alone."""
        header = struct.pack(">BHH", DATA, 0x0303, len(zeros) + TAG)
        nonce, _ = self.key._nonce(None)
        self.wire.append(header + self.key._aead().encrypt(nonce, zeros, header))
        self.key.sequence += 1
        self.wrong = self.wrong or not self.ended

    def bare(self, header: bytes) -> None:
        """Adds a record that was not sealed."""
        self.wire.append(header + self.rng.randbytes(int.from_bytes(header[3:])))
        self.wrong = self.wrong or not self.ended

    def change(self) -> None:
        """Changes a bit of a sealed record."""
        if not self.wire or self.ended or self.wrong:
            return
        changed = bytearray(self.key.seal(DATA, self.rng.randbytes(self.rng.randint(0, 300))))
        # The length stays: with a longer one the reader would only wait for more.
        at = self.rng.choice([0, 1, 2, *range(HEADER, len(changed))])
        changed[at] ^= 1 << self.rng.randrange(8)
        self.wire.append(bytes(changed))
        self.wrong = True


def pieces(rng: random.Random, wire: bytes) -> Iterator[bytes]:
    """Yields pieces, cut anywhere; sometimes byte by byte for a while."""
    at = 0
    while at < len(wire):
        size = rng.choice((1, 2, 5, 100, 5000, 40_000, len(wire)))
        yield wire[at : at + size]
        at += size


def receive(rng: random.Random, ours: Records, script: Script) -> None:
    got, failed = b"", False
    for piece in pieces(rng, b"".join(script.wire)):
        try:
            got += ours.decode(piece)
        except TlsRecordError:
            failed = True
            break
    # A record that fails discards the plaintext before it in the same piece: the connection is over anyway.
    assert script.plain == got or (failed and script.plain.startswith(got)), f"{len(got)} bytes in place of {len(script.plain)}"
    assert failed == script.wrong, "an unexpected error" if failed else "no error"
    assert ours.ended == (script.ended or script.wrong), "ended" if ours.ended else "not ended"
    assert ours.closed or not failed, "no alert"


def send(rng: random.Random, ours: Records, key: Key, longest: int) -> None:
    """Checks that the standard opens records sealed here, and that the answer to a KeyUpdate is a KeyUpdate."""
    wanted, got, at = b"", b"", 0
    for _ in range(0 if ours.closed else rng.randint(0, 4)):
        plain = rng.randbytes(rng.choice((0, 1, 100, PLAIN_MAX, rng.randint(0, 3 * PLAIN_MAX))))
        ours.encode(plain)
        wanted += plain
    sent = ours.take_output()
    while at < len(sent):
        size = HEADER + int.from_bytes(sent[at + 3 : at + 5])
        kind, plain = key.open(sent[at : at + size])
        at += size
        if kind == DATA:
            assert len(plain) <= longest, f"{len(plain)} bytes in a record, agreed were {longest}"
            got += plain
        elif kind == HANDSHAKE:
            assert plain == bytes([KEY_UPDATE, 0, 0, 1, 0]), plain
            key.update()
        else:
            assert kind == ALERT and len(plain) == 2 and at == len(sent), f"type {kind}: {plain!r}"
    assert got == wanted, f"{len(got)} bytes in place of {len(wanted)}"


def packed_state(theirs: Key, own: Key, longest: int = PLAIN_MAX) -> bytes:
    """Returns the result of Records.pack() for a connection with these keys and no data yet."""
    head = bytes([theirs.cipher, DIGESTS[theirs.digest.name], theirs.older])
    return head + theirs.packed() + own.packed() + struct.pack("=H", longest)


def check(seed: int) -> None:
    """Checks one connection."""
    rng = random.Random(seed)
    suite, older = rng.choice(SUITES), rng.random() < 0.4
    theirs, own = Key.drawn(rng, suite, older), Key.drawn(rng, suite, older)
    longest = rng.choice(LONGEST)
    state = packed_state(theirs, own, longest)
    ours = Records.unpack(state)
    assert ours.pack() == state
    script = Script(rng, theirs)
    for _ in range(rng.randint(1, 12)):
        script.go_on()
    receive(rng, ours, script)
    send(rng, ours, own, longest)


def check_states(seed: int) -> None:
    """Checks that an invalid state is refused, or belongs to a connection that fails on any record."""
    rng = random.Random(seed)
    around = (STATE_BYTES - 1, STATE_BYTES, STATE_BYTES + 1, STATE_BYTES + SEALED_MAX + HEADER + 1)
    state = rng.randbytes(rng.choice((0, 3, 300, *around)))
    if len(state) > 2 and rng.random() < 0.7:
        state = bytes([rng.randrange(4), rng.randrange(4), rng.randrange(2)]) + state[3:]
    try:
        records = Records.unpack(state)
        records.decode(rng.randbytes(100))
        records.take_output()
    except (ValueError, TlsRecordError):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz TLS records.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first input; increases by 1 per input")
    arguments = parser.parse_args()
    first = arguments.seed if arguments.seed is not None else random.SystemRandom().getrandbits(32)
    print(f"seed {first}", flush=True)
    seed, end = first, time.monotonic() + arguments.seconds
    while seed == first or time.monotonic() < end:
        try:
            check(seed)
            check_states(seed)
        except (Exception, InvalidTag):
            print(f"input of seed {seed}", file=sys.stderr, flush=True)
            raise
        seed += 1
    print(f"{seed - first} inputs in {arguments.seconds:g} s, no finding", flush=True)


if __name__ == "__main__":
    main()
