"""What the options of a request ask for."""

from typing import NamedTuple

from shardbroker.gateways.coap.codec import Code, Number, Options, uint_of

__all__ = ["ACCEPTED_FORMAT", "CONNECTION", "CORE", "PUBSUB", "Block", "Refusal", "Request", "parse_request"]

CONNECTION = (b"mqtt", b"connection")
"""Path of the resource that stands for the connection of a device."""
PUBSUB = b"ps"
"""First segment of the path of a topic."""
CORE = (b".well-known", b"core")
ACCEPTED_FORMAT = 42
"""application/octet-stream: the broker knows no other format of messages."""
SIZE_EXPONENT_MAX = 6
"""Blocks of 1024 bytes; 7 is reserved (RFC 7959 §2.2)."""
SHORT_NAMES = {b"c": b"clientid", b"u": b"username", b"p": b"password", b"t": b"token", b"q": b"qos", b"r": b"retain"}
"""Short names of queries, as EMQX has them."""
LENGTHS: dict[int, tuple[int, int]] = {
    Number.URI_HOST: (1, 255), Number.ETAG: (1, 8), Number.OBSERVE: (0, 3), Number.URI_PORT: (0, 2), Number.URI_PATH: (0, 255),
    Number.CONTENT_FORMAT: (0, 2), Number.MAX_AGE: (0, 4), Number.URI_QUERY: (0, 255), Number.ACCEPT: (0, 2),
    Number.BLOCK2: (0, 3), Number.BLOCK1: (0, 3), Number.PROXY_URI: (1, 1034), Number.PROXY_SCHEME: (1, 255),
    Number.SIZE1: (0, 4), Number.REQUEST_TAG: (0, 8),
}  # fmt: skip
"""Options that are recognized, with the lengths of their values (RFC 7252 §5.10)."""
OPAQUE = frozenset({
    Number.URI_HOST, Number.ETAG, Number.REQUEST_TAG, Number.PROXY_URI, Number.PROXY_SCHEME,
})  # fmt: skip
REPEATABLE = frozenset({Number.ETAG, Number.URI_PATH, Number.URI_QUERY, Number.REQUEST_TAG})


class Block(NamedTuple):
    """The value of a Block option (RFC 7959 §2.2)."""

    number: int
    more: bool
    exponent: int

    @property
    def size(self) -> int:
        """Returns the bytes of a block."""
        return 1 << self.exponent + 4

    @property
    def value(self) -> int:
        """Returns the option as a number."""
        return self.number << 4 | self.more << 3 | self.exponent


class Refusal(NamedTuple):
    """The response to a request whose options are not accepted. is_silent: a Non-confirmable one has none."""

    code: Code
    text: str
    is_silent: bool = False


class Request(NamedTuple):
    """The options of a request."""

    path: tuple[bytes, ...] = ()
    queries: dict[bytes, bytes] = {}  # noqa: RUF012  never changed
    observe: int | None = None
    block1: Block | None = None
    block2: Block | None = None
    accept: int | None = None
    content_format: int | None = None
    key: Options = ()
    """The options that make the requests of one body in blocks the same (RFC 7959 §2.2, RFC 9175 §3)."""
    refusal: Refusal | None = None

    @property
    def topic(self) -> bytes:
        """Returns the topic of a path below /ps."""
        return b"/".join(self.path[1:])


def parse_request(options: Options) -> Request:
    """Returns what options ask for; options that are not accepted make a refusal of it."""
    path: list[bytes] = []
    queries: dict[bytes, bytes] = {}
    single: dict[int, int] = {}
    key = []
    refusal = None
    for number, value in options:
        least, most = LENGTHS.get(number, (1, 0))
        if not least <= len(value) <= most or (number in single and number not in REPEATABLE):
            if number & 1 and refusal is None:  # critical; others are ignored (RFC 7252 §5.4.1, §5.4.3, §5.4.5)
                refusal = Refusal(Code.BAD_OPTION, f"option {number}", is_silent=True)
            continue
        if number == Number.URI_PATH:
            path.append(value)
        elif number == Number.URI_QUERY:
            name, _, text = value.partition(b"=")
            queries.setdefault(SHORT_NAMES.get(name, name), text)
        else:
            single[number] = uint_of(value) if number not in OPAQUE else 0
        if number not in (Number.OBSERVE, Number.BLOCK1, Number.BLOCK2, Number.SIZE1):
            key.append((number, value))
    if refusal is None and (Number.PROXY_URI in single or Number.PROXY_SCHEME in single):
        refusal = Refusal(Code.PROXYING_NOT_SUPPORTED, "")
    block1, block2 = _block(single.get(Number.BLOCK1)), _block(single.get(Number.BLOCK2))
    if refusal is None and any(one is not None and one.exponent > SIZE_EXPONENT_MAX for one in (block1, block2)):
        refusal = Refusal(Code.BAD_REQUEST, "block size")
    return Request(
        tuple(path), queries, single.get(Number.OBSERVE), block1, block2, single.get(Number.ACCEPT),
        single.get(Number.CONTENT_FORMAT), tuple(key), refusal,
    )  # fmt: skip


def _block(value: int | None) -> Block | None:
    return None if value is None else Block(value >> 4, bool(value & 8), value & 7)
