"""Frames cut anywhere give the same bytes."""

import random
import struct

import pytest

from shardbroker.transport.websocket import Framing, WebSocketError, client_frame, close_code_of

BINARY, CONTINUATION, PING, PONG, CLOSE, FIN = 2, 0, 9, 10, 8, 0x80


def stream(seed: int) -> tuple[bytes, bytes, bytes]:
    """(what a client sends, the MQTT bytes in it, the payload of its last ping) of random messages, fragments and pings."""
    chance = random.Random(seed)
    sent, plain, ping = b"", b"", b""
    for _ in range(chance.randrange(1, 8)):
        parts = chance.randrange(1, 4)
        for part in range(parts):
            payload = chance.randbytes(chance.choice([0, 1, 5, 7, 8, 9, 125, 126, 127, 1000, 65535, 65536]))
            first = (BINARY if part == 0 else CONTINUATION) | (FIN if part == parts - 1 else 0)
            sent += client_frame(payload, first, chance.randbytes(4))
            plain += payload
            if chance.random() < 0.3:
                ping = chance.randbytes(chance.randrange(126))
                sent += client_frame(ping, FIN | PING) + client_frame(ping, FIN | PONG)
    return sent, plain, ping


@pytest.mark.parametrize("seed", range(60))
def test_frames_cut_anywhere(seed: int) -> None:
    sent, plain, _ = stream(seed)
    chance = random.Random(seed)
    for longest in (len(sent), 1 if len(sent) < 3000 else 50, 7, 5000):
        framing, at, got = Framing(1 << 20), 0, b""
        while at < len(sent):
            size = chance.randrange(1, longest + 1)
            got += framing.decode(sent[at : at + size])
            at += size
        assert got == plain


def test_pongs_and_the_close_frame() -> None:
    framing = Framing(1 << 20)
    assert (
        framing.decode(client_frame(b"abc", FIN | PING) + client_frame(b"x") + client_frame(struct.pack("!H", 1001), FIN | CLOSE))
        == b"x"
    )
    assert framing.close_code == 1001
    assert framing.close_frame(1000) == b"\x8a\x03abc\x88\x02" + struct.pack("!H", 1001)
    assert framing.decode(client_frame(b"after the end")) == b""


def test_pongs_that_wait_are_bounded() -> None:
    framing, ping = Framing(1 << 20), client_frame(b"p" * 125, FIN | PING)
    for _ in range(100):
        framing.decode(ping * 1000)
    pong = b"\x8a\x7d" + b"p" * 125
    waiting = framing.close_frame(1000)[:-4]
    assert waiting == pong * (len(waiting) // len(pong)) and 512 - len(pong) < len(waiting) < 512 + len(pong)


@pytest.mark.parametrize("seed", range(200))
def test_changed_bytes_end_in_an_error_or_in_bytes(seed: int) -> None:
    sent, _, _ = stream(seed)
    chance = random.Random(seed)
    changed = bytearray(sent[:3000])
    for _ in range(3):
        changed[chance.randrange(min(len(changed), 40))] ^= 1 << chance.randrange(8)
    framing = Framing(1 << 16)
    try:
        assert len(framing.decode(bytes(changed))) <= len(changed)
    except WebSocketError as error:
        assert error.code in (1002, 1003, 1009)


def test_close_codes() -> None:
    assert [close_code_of(code) for code in (0x00, 0x8B, 0x8E, 0x82, 0x95, 0x87)] == [1000, 1001, 1000, 1002, 1009, 1008]
