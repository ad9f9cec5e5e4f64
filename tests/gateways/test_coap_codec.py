"""gateways/coap/codec.py and requests.py against messages that are written from the norm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbroker.gateways.coap.codec import CoapError, Decoder, Message, decode, encode, uint, uint_of
from shardbroker.gateways.coap.messages import EXCHANGE_LIFETIME_S, IDS_AT_ONCE, Confirmable, MessageIds, Recent
from shardbroker.gateways.coap.requests import Block, parse_request
from tests.gateways import coap_client as norm
from tests.gateways.coap_client import ACK, CON, NON, RST

options = st.lists(st.tuples(st.integers(0, 65535), st.binary(max_size=300)), max_size=8)
tokens = st.binary(max_size=8)


def reset_of(data: bytes) -> bytes:
    with pytest.raises(CoapError) as caught:
        decode(data)
    return caught.value.answer


@given(st.integers(0, 3), st.sampled_from([1, 2, 69, 132, 163]), st.integers(0, 65535), tokens, options, st.binary(max_size=50))
def test_messages_are_those_of_the_norm(
    kind: int, code: int, mid: int, token: bytes, found: list[tuple[int, bytes]], payload: bytes
) -> None:
    data = encode(kind, code, mid, token, found, payload)
    assert data == norm.message(kind, code, mid, token, found, payload)
    assert decode(data) == Message(kind, code, mid, token, tuple(sorted(found, key=lambda one: one[0])), payload)


def test_the_example_of_the_norm() -> None:
    """RFC 7252 appendix A, figure 16."""
    assert decode(bytes.fromhex("41017d342 0bb74656d7065726174757265".replace(" ", ""))) == Message(
        CON, 1, 0x7D34, b"\x20", ((11, b"temperature"),)
    )


@given(st.binary(max_size=60))
def test_nothing_but_coap_error(data: bytes) -> None:
    try:
        message = decode(data)
    except CoapError as error:
        assert error.answer in (b"", b"\x70\x00" + data[2:4])
    else:
        assert decode(encode(*message)) == message


@pytest.mark.parametrize("version", [0, 2, 3])
def test_another_version_is_ignored(version: int) -> None:
    assert reset_of(bytes([version << 6, 1, 0, 1])) == b""


@pytest.mark.parametrize(
    "tail",
    [
        b"\x49\x01\x00\x07" + b"x" * 9,  # a token of 9 bytes
        b"\x4f\x01\x00\x07" + b"x" * 15,
        b"\x44\x01\x00\x07xxx",  # the token ends early
        b"\x40\x01\x00\x07\xff",  # no payload behind its marker
        b"\x40\x01\x00\x07\xf0",  # difference 15
        b"\x40\x01\x00\x07\x0f",  # length 15
        b"\x40\x01\x00\x07\xd0",  # without the byte more
        b"\x40\x01\x00\x07\xe0\x00",
        b"\x40\x01\x00\x07\x05abc",  # a value that ends early
        b"\x40\x01\x00\x07\xe0\xff\xff",  # option 65804
        b"\x41\x00\x00\x07x",  # Empty, with a token
        b"\x40\x00\x00\x07\xb1a",  # Empty, with an option
    ],
)
def test_format_errors(tail: bytes) -> None:
    """A Confirmable one is rejected by a Reset, others are ignored."""
    assert reset_of(tail) == b"\x70\x00\x00\x07"
    for kind in (NON, ACK, RST):
        assert reset_of(bytes([tail[0] | kind << 4]) + tail[1:]) == b""


@pytest.mark.parametrize("code", [0x20, 0x3F, 0xC0, 0xE1])
def test_reserved_classes_of_codes_are_format_errors(code: int) -> None:
    assert reset_of(bytes([0x40, code, 0, 7])) == b"\x70\x00\x00\x07"
    assert reset_of(bytes([0x50, code, 0, 7])) == b""


def test_uint() -> None:
    assert [uint(one) for one in (0, 1, 255, 256)] == [b"", b"\x01", b"\xff", b"\x01\x00"]
    assert [uint_of(one) for one in (b"", b"\x00", b"\x00\x01", b"\x01\x00")] == [0, 0, 1, 256]
    assert parse_request(((6, b"\x00\x00"), (23, b"\x00\x16"))).observe == 0
    assert parse_request(((23, b"\x00\x16"),)).block2 == Block(1, False, 6)


@given(options, options, st.binary(max_size=20), st.integers(0, 2))
def test_a_decoder_that_knows_the_options_finds_the_same(
    first: list[tuple[int, bytes]], second: list[tuple[int, bytes]], payload: bytes, cut: int
) -> None:
    decoder = Decoder()
    for found in (first, first, second, first[:cut], [*first, *second], second):
        data = encode(CON, 2, 7, b"ab", found, payload)
        assert decoder.decode(data) == decode(data)
    known = decoder.decode(encode(CON, 2, 8, b"cdef", second, payload)).options
    assert decoder.decode(encode(CON, 2, 9, b"", second, b"other")).options is known


def test_unknown_elective_options_are_ignored() -> None:
    assert parse_request(((11, b"ps"), (2, b"x"), (2048, b"y"))).refusal is None


@pytest.mark.parametrize("number", [1, 5, 9, 19, 31, 65001])
def test_unknown_critical_options(number: int) -> None:
    refusal = parse_request(((11, b"ps"), (number, b"x"))).refusal
    assert refusal is not None and refusal.code == norm.code("4.02") and refusal.is_silent


def test_options_of_a_wrong_length_count_as_unknown() -> None:
    assert parse_request(((6, b"1234"), (12, b"123"))).refusal is None  # elective
    assert parse_request(((6, b"1234"),)).observe is None
    for number, value in ((3, b""), (11, b"x" * 256), (15, b"x" * 256), (17, b"123"), (27, b"1234"), (7, b"123")):
        refusal = parse_request(((number, value),)).refusal
        assert refusal is not None and refusal.code == norm.code("4.02"), number


def test_options_that_come_twice_count_as_unknown() -> None:
    found = parse_request(((6, b""), (6, b"\x01"), (12, b""), (12, b"\x32")))
    assert (found.observe, found.content_format, found.refusal) == (0, 0, None)
    for number in (3, 7, 17, 23, 27):
        refusal = parse_request(((number, b"\x01"), (number, b"\x01"))).refusal
        assert refusal is not None and refusal.code == norm.code("4.02")
    assert parse_request(((11, b"a"), (11, b"b"), (15, b"c=1"), (15, b"d"))).path == (b"a", b"b")


@pytest.mark.parametrize("number", [35, 39])
def test_proxying_is_not_supported(number: int) -> None:
    refusal = parse_request(((number, b"coap"),)).refusal
    assert refusal is not None and refusal.code == norm.code("5.05")


def test_short_and_long_names_of_queries() -> None:
    queries = tuple((15, one) for one in (b"c=a", b"u=b", b"p=c", b"t=d", b"q=1", b"r=true", b"x", b"qos=2"))
    assert parse_request(queries).queries == {
        b"clientid": b"a", b"username": b"b", b"password": b"c", b"token": b"d", b"qos": b"1", b"retain": b"true", b"x": b"",
    }  # fmt: skip


def test_block_sizes() -> None:
    assert [Block(0, False, exponent).size for exponent in range(7)] == [16, 32, 64, 128, 256, 512, 1024]
    assert Block(5, True, 2).value == 0x5A
    for number in (23, 27):
        refusal = parse_request(((number, b"\x07"),)).refusal
        assert refusal is not None and refusal.code == norm.code("4.00")


def test_copies_are_known_for_their_lifetime() -> None:
    recent = Recent()
    recent.put(Message(CON, 2, 5), b"answer", 100.0)
    recent.put(Message(NON, 2, 6), b"", 100.0)
    assert (recent.answer(5, 346.9), recent.answer(6, 244.9), recent.answer(7, 100.0)) == (b"answer", b"", None)
    assert (recent.answer(5, 347.0), recent.answer(6, 245.0)) == (None, None)
    for n in range(1000, 3000):
        recent.put(Message(CON, 2, n), b"", 100.0)
    assert len(recent._found) == 256 and recent.answer(2999, 100.0) == b""


def test_message_ids_are_not_given_again_within_their_lifetime() -> None:
    ids, now_s, given = MessageIds(), 1000.0, {}
    for _ in range(200_000):
        wait_s = ids.free_s(now_s)
        now_s = max(now_s, wait_s) + 0.0001
        one = ids.next(now_s)
        assert 0 <= one < 65536 and now_s - given.get(one, -1e9) >= EXCHANGE_LIFETIME_S
        given[one] = now_s
    assert len(given) == 65536 and IDS_AT_ONCE * 2 == 65536


def test_intervals_double() -> None:
    one, now_s, waits = Confirmable(b"", 1, 0.0), 0.0, []
    while True:
        waits.append(one.retry_s - now_s)
        now_s = one.retry_s
        if not one.again(now_s):
            break
    assert len(waits) == 5 and 2.0 <= waits[0] <= 3.0
    assert waits == pytest.approx([waits[0] * 2**n for n in range(5)])
