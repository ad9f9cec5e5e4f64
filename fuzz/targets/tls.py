"""transport/tls.pyx: records in any pieces give the same plaintext, or fail alike; an invalid state is refused.

An input is a script: the cipher, then the steps of a peer that seals content of the script by the standard (fuzz/fuzz_tls.py) and
changes bytes in marked records. Raw bytes would never pass the tag.
"""

import random
from collections.abc import Iterable

from fuzz.engine import exact, pieces
from fuzz.fuzz_tls import STATE_BYTES, SUITES, Key, packed_state
from shardbroker.transport.tls import Records, TlsRecordError

MAX_LEN = 400
KEYS_SEED = 1
DATA_STEP, CONTROL_STEP, RAW_STEP, CHANGED_STEP = range(4)
KINDS = (20, 21, 22, 23, 24, 0)


def seeds() -> Iterable[bytes]:
    hello, key_update = b"\x05hello", bytes([CONTROL_STEP, 2, 5, 24, 0, 0, 1, 1])
    for suite in range(6):
        yield bytes([suite, DATA_STEP, 0]) + hello + key_update + bytes([DATA_STEP, 3]) + hello + bytes([CONTROL_STEP, 1, 2, 1, 0])
        yield bytes([suite, RAW_STEP, 0]) + hello
        for changed in (2, 7):  # the version, and the sealed content
            yield bytes([suite, DATA_STEP, 0]) + hello + bytes([CHANGED_STEP, changed]) + hello
        zero = KINDS.index(0)
        for content in (b"hello\x17\0\0", b"\x18\0\0\1\1\x16\0"):  # a type 0 is padding behind the real type
            yield bytes([suite, CONTROL_STEP, zero, len(content)]) + content + bytes([DATA_STEP, 3]) + hello
    yield b"\xff" + bytes(STATE_BYTES)


def check(data: bytes) -> None:
    if not data:
        return
    if data[0] == 0xFF:
        _check_state(data[1:])
        return
    number, older = data[0] % 3, data[0] % 6 >= 3
    suite, rng = SUITES[number], random.Random(KEYS_SEED)
    theirs, own = Key.drawn(rng, suite, older), Key.drawn(rng, suite, older)
    state = packed_state(theirs, own)
    wire, plain = _wire(theirs, data[1:])
    ways = ([exact(wire)], pieces(wire, 1), pieces(wire, len(wire) // 2 + 1))
    outcomes = [_outcome(Records.unpack(exact(state)), parts) for parts in ways]
    for got, failed, ended in outcomes:
        assert (failed, ended) == outcomes[0][1:], outcomes
        # An error discards the plaintext before it in the same piece.
        assert got == outcomes[1][0] or (failed and outcomes[1][0].startswith(got)), outcomes
    assert plain.startswith(outcomes[1][0]), (plain, outcomes)
    for cut in {len(wire) // 3, len(wire) // 2}:
        _check_handed_over(state, wire, cut, outcomes[1])


def _wire(key: Key, script: bytes) -> tuple[bytes, bytes]:
    """Returns the peer's output, and all the plaintext that may result from it."""
    wire, plain, at = b"", b"", 0
    while at + 2 < len(script):
        step, kind, size = script[at] % 4, script[at + 1], script[at + 2]
        body = script[at + 3 : at + 3 + size]
        at += 3 + size
        if step == RAW_STEP:
            wire += body
            continue
        if step == CONTROL_STEP:
            wire += key.seal(KINDS[kind % len(KINDS)], body)
            content, body = (KINDS[kind % len(KINDS)], body) if key.older else _unpadded(KINDS[kind % len(KINDS)], body)
            if content == 22 and body[:4] == b"\x18\0\0\1" and len(body) == 5 and not key.older:
                key.update()
            elif content == 23:
                plain += body
            continue
        sealed = key.seal(23, body, 0 if key.older else kind % 8)
        if step == CHANGED_STEP:
            where = kind % len(sealed)
            sealed = sealed[:where] + bytes([sealed[where] ^ 1]) + sealed[where + 1 :]
        else:
            plain += body
        wire += sealed
    return wire, plain


def _unpadded(content: int, body: bytes) -> tuple[int, bytes]:
    """Returns (content type, content) as TLS 1.3 defines them (RFC 8446, 5.4): the type is the last byte that is not zero."""
    inner = (body + bytes([content])).rstrip(b"\0")
    return (inner[-1], inner[:-1]) if inner else (0, b"")


def _outcome(records: Records, parts: list[bytes]) -> tuple[bytes, bool, bool]:
    """Returns (plaintext, whether it failed, whether the peer has ended)."""
    plain = b""
    try:
        for part in parts:
            plain += records.decode(part)
    except TlsRecordError:
        return plain, True, bool(records.ended)
    return plain, False, bool(records.ended)


def _check_handed_over(state: bytes, wire: bytes, cut: int, wanted: tuple[bytes, bool, bool]) -> None:
    """Checks that another process can continue from pack(). A truncated KeyUpdate is not part of the state."""
    records = Records.unpack(state)
    try:
        first = records.decode(exact(wire[:cut]))
    except TlsRecordError:
        return
    if records.ended or records.pack()[:3] != state[:3]:
        return
    packed = records.pack()
    assert Records.unpack(exact(packed)).pack() == packed, "a state is another one after unpack()"
    assert wanted[0].startswith(first), (first, wanted)


def _check_state(state: bytes) -> None:
    try:
        records = Records.unpack(state)
    except ValueError:
        return
    assert records.pack() == state or state[2] not in (0, 1), "a state is another one after unpack()"
    try:
        records.decode(exact(b"\x17\3\3\0\x20" + bytes(32)))
        records.encode(b"hello")
    except TlsRecordError:
        pass
    records.take_output()
