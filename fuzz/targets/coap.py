"""gateways/coap/codec.py and requests.py: what is accepted survives a second way, and a decoder that knows the options agrees."""

from collections.abc import Iterable

from shardbroker.gateways.coap.codec import EMPTY, TOKEN_MAX, CoapError, Code, Decoder, Kind, Number, decode, encode, uint
from shardbroker.gateways.coap.requests import SIZE_EXPONENT_MAX, parse_request

MAX_LEN = 400


def seeds() -> Iterable[bytes]:
    path = [(Number.URI_PATH, b"ps"), (Number.URI_PATH, b"a"), (Number.URI_QUERY, b"qos=1")]
    yield encode(Kind.CON, Code.POST, 1, b"token", path, b"payload")
    yield encode(Kind.NON, Code.GET, 2, b"", [*path, (Number.OBSERVE, b""), (Number.BLOCK2, uint(0x16))])
    yield encode(Kind.CON, Code.PUT, 3, b"12345678", [*path, (Number.BLOCK1, uint(0x1E)), (Number.REQUEST_TAG, b"x")], b"x" * 64)
    yield encode(Kind.CON, Code.GET, 4, b"t", [(Number.PROXY_URI, b"coap://host/" + b"x" * 300)])
    yield encode(Kind.ACK, Code.CONTENT, 5, b"t", [(Number.ETAG, b"abcd"), (Number.MAX_AGE, uint(60))], b"x")
    for kind in Kind:
        yield encode(kind, EMPTY, 6)
    yield b"\x40\x01\x00\x07\xff"
    yield b"\x4f\x01\x00\x07"


def check(data: bytes) -> None:
    try:
        message = decode(data)
    except CoapError as error:
        assert error.answer in (b"", encode(Kind.RST, EMPTY, int.from_bytes(data[2:4], "big"))), error.answer
        return
    assert len(message.token) <= TOKEN_MAX and sum(len(value) for _, value in message.options) <= len(data), message
    encoded = encode(*message)
    assert len(encoded) <= len(data), message
    assert decode(encoded) == message, message
    decoder = Decoder()
    for one in (encode(Kind.CON, Code.POST, 1, b"", message.options), data, encoded):
        assert decoder.decode(one).options == message.options, message
    request = parse_request(message.options)
    for block in (request.block1, request.block2):
        assert request.refusal is not None or block is None or block.exponent <= SIZE_EXPONENT_MAX, request
