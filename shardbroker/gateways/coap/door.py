"""What becomes of datagrams of unknown senders. No answer is longer than AMPLIFICATION times what it answers, and without a device
nothing is kept of the sender."""

from collections.abc import Callable
from typing import Any

from shardbroker.gateways.coap.codec import EMPTY, CoapError, Code, Kind, Message, Number, Options, decode, encode, uint
from shardbroker.gateways.coap.requests import CONNECTION, CORE, PUBSUB, Request, parse_request
from shardbroker.gateways.coap.session import AMPLIFICATION, BUSY_S, CORE_LINKS, LINK_FORMAT
from shardbroker.gateways.datagrams import Knock, Verdict
from shardbroker.gateways.session import GatewaySession, IdentityError, client_id_of

__all__ = ["CoapDoor"]


class CoapDoor:
    """settings: returns `gateways.coap` as it is in force."""

    def __init__(self, settings: Callable[[], Any], levels: int, client_id: str, figures: dict[str, int]) -> None:
        self._settings, self._figures = settings, figures

    @property
    def max_size(self) -> int:
        return int(self._settings().max_datagram_size)

    def split(self, data: bytes) -> tuple[bytes, bytes, bytes] | None:
        return (b"", b"", data) if len(data) <= self.max_size else None

    def busy(self, message: bytes) -> bytes:
        """Returns 5.03: there is no place for another device."""
        return _answer(decode(message), len(message), Code.UNAVAILABLE, options=((Number.MAX_AGE, uint(BUSY_S)),))

    def knock(self, message: bytes) -> Knock:
        try:
            found = decode(message)
        except CoapError as error:
            self._figures["malformed"] += 1
            return Knock(Verdict.DROP, error.answer)
        if found.kind >= Kind.ACK:
            return Knock(Verdict.DROP)
        if not EMPTY < found.code < Code.CREATED & 0xE0:
            return Knock(Verdict.DROP, encode(Kind.RST, EMPTY, found.message_id) if found.kind == Kind.CON else b"")
        request = parse_request(found.options)
        if request.refusal is not None:
            if request.refusal.is_silent and found.kind == Kind.NON:
                return Knock(Verdict.DROP)
            return self._refused(found, message, request.refusal.code, request.refusal.text)
        if request.path == CORE and found.code == Code.GET and request.accept in (None, LINK_FORMAT):
            answer = _answer(
                found, len(message), Code.CONTENT, CORE_LINKS, ((Number.CONTENT_FORMAT, uint(LINK_FORMAT)),)
            )  # fmt: skip
            return Knock(Verdict.DROP, answer)
        if request.path == CONNECTION:
            return self._connection(found, message, request)
        if request.path[:1] == (PUBSUB,):
            return self._pubsub(found, message, request)
        code = Code.METHOD_NOT_ALLOWED if request.path == CORE else Code.NOT_FOUND
        return self._refused(found, message, code)

    def _connection(self, found: Message, message: bytes, request: Request) -> Knock:
        if found.code == Code.POST:
            if request.queries.get(b"clientid"):
                return Knock(Verdict.OPEN)
            return self._refused(found, message, Code.BAD_REQUEST, "clientid is required")
        if found.code == Code.DELETE:
            # A connection that does not exist is deleted: the answer to an earlier DELETE may be lost.
            return self._moved(found, message, request, Code.DELETED)
        if found.code == Code.PUT:
            return self._moved(found, message, request, Code.UNAUTHORIZED)
        return self._refused(found, message, Code.METHOD_NOT_ALLOWED)

    def _pubsub(self, found: Message, message: bytes, request: Request) -> Knock:
        if b"token" in request.queries or self._settings().connection_required:
            return self._moved(found, message, request, Code.UNAUTHORIZED)
        if found.code in (Code.POST, Code.PUT) or (found.code == Code.GET and request.observe == 0):
            return Knock(Verdict.OPEN)
        if found.code == Code.GET:
            code = Code.NO_CONTENT if request.observe == 1 else Code.BAD_REQUEST
            return self._refused(found, message, code)
        return self._refused(found, message, Code.METHOD_NOT_ALLOWED)

    def _moved(self, found: Message, message: bytes, request: Request, code: Code) -> Knock:
        """Returns the verdict about a device that has another address now, if its token is that of its connection."""
        client_id, token = request.queries.get(b"clientid"), request.queries.get(b"token")
        if client_id is None or token is None:
            return self._refused(found, message, Code.BAD_REQUEST, "Missing token or clientid in connection mode")
        try:
            full_name = client_id_of(self._settings().clientinfo_override, client_id, request.queries.get(b"username"))
        except IdentityError:
            full_name = b""
        text = "Invalid token or clientid in connection mode" if code == Code.UNAUTHORIZED else ""
        return Knock(Verdict.MOVE, _answer(found, len(message), code, text), (full_name.decode(errors="replace"), token))

    def _refused(self, found: Message, message: bytes, code: Code, text: str = "") -> Knock:
        return Knock(Verdict.DROP, _answer(found, len(message), code, text))

    def advertisement(self) -> tuple[bytes, str, float] | None:
        return None

    def make_publisher(self, now_s: float) -> GatewaySession:
        raise NotImplementedError("CoAP has no messages without a device")


def _answer(found: Message, size: int, code: Code, payload: str | bytes = b"", options: Options = ()) -> bytes:
    """Returns a response, without its payload if it were longer than the sender may get; nothing of it is kept, so a NON one has
    the message id of the request, which is as good as any."""
    kind = Kind.ACK if found.kind == Kind.CON else Kind.NON
    if isinstance(payload, str):
        payload = payload.encode()
    data = encode(kind, code, found.message_id, found.token, options, payload)
    if len(data) > AMPLIFICATION * size:
        data = encode(kind, code, found.message_id, found.token)
    return data
