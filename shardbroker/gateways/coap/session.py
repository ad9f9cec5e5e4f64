"""One CoAP device as a session of MQTT 5.0, without I/O: datagrams, packets and time in, datagrams, packets and deadlines out.

    POST /mqtt/connection        -> CONNECT                  2.01 with a token follows CONNACK
    PUT, DELETE of it            -> nothing, DISCONNECT      2.04, 2.02
    POST, PUT /ps/TOPIC          -> PUBLISH                  2.04 follows PUBACK or PUBCOMP
    GET /ps/FILTER, Observe 0    -> SUBSCRIBE                2.05 follows SUBACK
    GET /ps/FILTER, Observe 1    -> UNSUBSCRIBE              2.07 follows UNSUBACK
    PUBLISH                      -> notification             PUBACK or PUBREC follows the device's ACK

A response that takes longer than SEPARATE_S is a separate one (RFC 7252 §5.2.2). One Confirmable message to the device is
outstanding at a time (NSTART, RFC 7252 §4.7); what follows waits in order, and beyond QUEUE messages those with QoS 0 are dropped.

The address of a device is proven by the token of its connection, or by an answer that fits a message which only it can have got:
its ACK of a notification or the Reset of a ping. Before that it gets at most AMPLIFICATION times the bytes that it has sent, and
no notifications.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from hmac import compare_digest
from math import inf
from secrets import token_hex
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

from shardbroker.gateways.coap.blocks import Assembly, Body, Step
from shardbroker.gateways.coap.codec import (
    EMPTY,
    CoapError,
    Code,
    Decoder,
    Kind,
    Message,
    Number,
    Options,
    encode,
    uint,
)  # fmt: skip
from shardbroker.gateways.coap.messages import Confirmable, MessageIds, Recent
from shardbroker.gateways.coap.observe import Delivery, Observation, Sequence, Target, options_of
from shardbroker.gateways.coap.requests import (
    ACCEPTED_FORMAT,
    CONNECTION,
    CORE,
    PUBSUB,
    SIZE_EXPONENT_MAX,
    Refusal,
    Request,
    parse_request,
)  # fmt: skip
from shardbroker.gateways.image import Records, from_plain, to_plain
from shardbroker.gateways.session import VERSION, GatewaySession, IdentityError, client_id_of, login_of, reason_text
from shardbroker.mqtt.batches import encode_publishes
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode_properties,
)  # fmt: skip
from shardbroker.mqtt.spec import FAILURE, PacketType, PropertyId, ReasonCode
from shardbroker.mqtt.topics import check_topic_filter, check_topic_name

__all__ = ["CORE_LINKS", "FIGURES", "CoapSession", "identity_of"]

FIGURES = (
    "received", "sent", "messages_in", "messages_out", "messages_dropped", "errors", "timeouts", "retries", "duplicates",
    "malformed", "unknown_dropped", "lost", "withheld",
)  # fmt: skip
"""Counts of a gateway: messages in both directions, PUBLISH among them, PUBLISH that was not passed on, sessions that ended with an
error, silent devices, messages sent again, messages received again, datagrams that are no messages, those of unknown senders above
max_unknown_rate, those that the kernel did not take, those not sent to addresses that are not proven."""
AMPLIFICATION = 3
"""Bytes for each byte of an address that is not proven."""
GUESSES = 16
"""Answers to nothing that an address which is not proven may send: message ids have 16 bits."""
SEPARATE_S = 1.0
"""Time after which a request is acknowledged before its response is there; devices send it again after 2 s."""
TOLERANCE = 1.5
"""Heartbeats without a message after which a device is lost."""
TOKEN_BYTES = 8
"""Of the token of a connection, which is written in twice as many characters."""
PREFETCH = 8
"""Messages of the broker that the device has not acknowledged."""
QUEUE = 32
"""Messages with QoS 0 that wait for an acknowledgement before them; further ones are dropped."""
EARLY = 16
"""Datagrams that wait while the broker answers to CONNECT."""
OBSERVED_NON = 16
"""Non-confirmable notifications that are remembered, since the device may reject them."""
NON_AT_A_TIME = 32
"""Non-confirmable notifications without a message of the device in between; the next one is Confirmable."""
CONFIRM_S = 24 * 3600
"""Longest time without a Confirmable notification (RFC 7641 §4.5)."""
BUSY_S = 2
"""Max-Age of 5.03: when the device may try again."""
PACKET_EXTRA = 65_536 + 4096
"""Bytes of topic and properties that a packet of the broker may have beside a payload."""
IDENTIFIERS = 268_435_455
"""Subscription identifiers are 1 to this (MQTT 5.0 §3.8.2.1.2). They follow from the filter, so that messages of a session find
their observations in a later connection too."""
CORE_LINKS = b"</ps>;rt=core.ps,</mqtt/connection>"
"""/.well-known/core (RFC 6690)."""
LINK_FORMAT = 40
QOS_OF = {"qos0": 0, "qos1": 1, "qos2": 2}
CONTENT_TYPES = {
    0: b"text/plain", 40: b"application/link-format", 41: b"application/xml", 42: b"application/octet-stream",
    47: b"application/exi", 50: b"application/json", 60: b"application/cbor",
}  # fmt: skip
"""By Content-Format (RFC 7252 §12.3)."""
_CODES: dict[int, Code] = {
    ReasonCode.NOT_AUTHORIZED: Code.UNAUTHORIZED, ReasonCode.BAD_USER_NAME_OR_PASSWORD: Code.UNAUTHORIZED,
    ReasonCode.BANNED: Code.UNAUTHORIZED, ReasonCode.BAD_AUTHENTICATION_METHOD: Code.UNAUTHORIZED,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: Code.BAD_REQUEST, ReasonCode.TOPIC_NAME_INVALID: Code.BAD_REQUEST,
    ReasonCode.TOPIC_FILTER_INVALID: Code.BAD_REQUEST, ReasonCode.PAYLOAD_FORMAT_INVALID: Code.BAD_REQUEST,
    ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Code.BAD_REQUEST,
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Code.BAD_REQUEST, ReasonCode.PACKET_TOO_LARGE: Code.TOO_LARGE,
    ReasonCode.SERVER_UNAVAILABLE: Code.UNAVAILABLE, ReasonCode.SERVER_BUSY: Code.UNAVAILABLE,
    ReasonCode.QUOTA_EXCEEDED: Code.UNAVAILABLE, ReasonCode.CONNECTION_RATE_EXCEEDED: Code.UNAVAILABLE,
}  # fmt: skip
"""Codes of responses by reason codes of the broker; others are 5.00."""


class State(Enum):
    """Of a device."""

    NEW = auto()
    OPENING = auto()
    """The broker has not answered to CONNECT."""
    OPEN = auto()


class Identity(NamedTuple):
    """What CONNECT has of a device."""

    client_id: bytes = b""
    username: bytes | None = None
    password: bytes | None = None


class _Exchange:
    """A request that has no response yet."""

    __slots__ = ("is_acked", "message", "options", "since_s")

    def __init__(self, message: Message, now_s: float) -> None:
        self.message, self.since_s = message, now_s
        self.is_acked = False
        """Whether an Empty ACK has been sent: the response is a separate one."""
        self.options: Options = ()
        """Options that the response has in any case."""


class _Plan(NamedTuple):
    """A PUBLISH as the options of a request ask for it; qos is -1 if it follows from the type of the message."""

    topic: bytes
    qos: int
    retain: bool
    properties: bytes


class _Answer(NamedTuple):
    """A separate response."""

    code: int
    token: bytes
    options: Options
    payload: bytes


RECORDS = Records(
    Assembly, Body, Confirmable, Delivery, Identity, Message, MessageIds, Observation, Recent, Sequence, Target, _Answer, _Exchange,
)
PARTS = (
    "_answers", "_assembly", "_body", "_current", "_exchanges", "_identity", "_ids", "_nons", "_observations", "_opener",
    "_orphans", "_out", "_out_for", "_queue", "_recent", "_requests", "_sequence", "_works",
)  # fmt: skip
"""What `CoapSession.image` has as parts. The request that was parsed last, and what was found out about it, is found out again."""


class CoapSession(GatewaySession):
    """settings: `gateways.coap`. levels: most levels of a topic. fallback_id: client id of a device that names none."""

    __slots__ = (
        "_ack_s", "_answers", "_assembly", "_body", "_checked", "_client_id", "_confirmed_s", "_connect_until_s", "_credit",
        "_current", "_decoder", "_early", "_exchanges", "_fallback_id", "_full_name", "_guesses", "_heard_s", "_identity", "_ids",
        "_is_proven", "_levels", "_nons", "_nons_sent", "_observations", "_opener", "_options", "_orphans", "_orphans_until_s",
        "_out", "_out_for", "_pauses_s", "_plan", "_planned", "_probes", "_queue", "_recent", "_request", "_requests", "_sequence",
        "_settings", "_state", "_token", "_unproven_until_s", "_works",
    )  # fmt: skip

    MOVES: ClassVar = (
        *GatewaySession.MOVES,
        "_ack_s", "_client_id", "_confirmed_s", "_connect_until_s", "_credit", "_early", "_fallback_id", "_full_name", "_guesses",
        "_heard_s", "_is_proven", "_nons_sent", "_orphans_until_s", "_pauses_s", "_probes", "_token", "_unproven_until_s",
    )  # fmt: skip
    TIMES: ClassVar = (
        *GatewaySession.TIMES,
        "_ack_s", "_confirmed_s", "_connect_until_s", "_heard_s", "_orphans_until_s", "_pauses_s", "_unproven_until_s",
    )  # fmt: skip

    def __init__(self, settings: Any, levels: int, fallback_id: str, server: str, figures: dict[str, int], now_s: float) -> None:
        super().__init__(figures, now_s)
        self._settings, self._levels, self._fallback_id = settings, levels, fallback_id.encode()
        self._state = State.NEW
        self._client_id = self._full_name = self._token = b""
        """`_full_name`: the client id of the MQTT session. `_token`: of the connection; empty without one, which is the
        connectionless mode."""
        self._identity = Identity()
        self._is_proven = False
        self._credit = self._guesses = 0
        self._heard_s, self._connect_until_s, self._unproven_until_s = now_s, now_s + settings.idle_timeout, inf
        self._decoder = Decoder()
        self._options: Options | None = None
        self._request = Request()
        """What `_options` ask for."""
        self._checked: Request | None = None
        """The last request that was found to be this device's."""
        self._planned: Request | None = None
        self._plan: _Plan | Refusal = _Plan(b"", 0, False, b"")
        """The PUBLISH of `_planned`."""
        self._recent = Recent()
        self._ids = MessageIds()
        self._exchanges: dict[int, _Exchange] = {}
        """By message id."""
        self._ack_s = inf
        """When an exchange has to be acknowledged."""
        self._opener: _Exchange | None = None
        """The request for a connection."""
        self._early: list[bytes] = []
        self._works: dict[int, _Exchange] = {}
        """By packet id."""
        self._requests: dict[int, tuple[_Exchange, Observation, Target | None]] = {}
        """SUBSCRIBE and UNSUBSCRIBE by packet id; None for UNSUBSCRIBE."""
        self._assembly = Assembly()
        self._observations: dict[int, Observation] = {}
        """By subscription identifier."""
        self._sequence = Sequence(now_s)
        self._queue: deque[Publish] = deque()
        self._orphans: list[Publish] = []
        """Messages of the session that no observation of this connection is for, yet."""
        self._orphans_until_s = inf
        self._current: Delivery | None = None
        self._body: Body | None = None
        self._answers: deque[_Answer] = deque()
        self._out: Confirmable | None = None
        self._out_for: Target | None = None
        """The registration whose notification `_out` is; None: a response or a ping."""
        self._probes = False
        """Whether a ping is to be sent."""
        self._nons: dict[int, Target] = {}
        self._nons_sent, self._confirmed_s, self._pauses_s = 0, now_s, inf

    # --- what the shell calls -------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        return self._full_name.decode()

    @property
    def is_proven(self) -> bool:
        return self._is_proven

    def address_proven(self) -> None:
        self._prove()

    def has_token(self, token: bytes) -> bool:
        """Returns whether a token is that of this connection."""
        return bool(self._token) and self._is_connected and compare_digest(token, self._token)

    @property
    def _silent_s(self) -> float:
        if self._state is not State.OPEN:
            return inf
        heartbeat: float = self._settings.heartbeat
        return self._heard_s + heartbeat * (TOLERANCE if self._token else 1.0)

    @property
    def deadline_s(self) -> float:
        out, body = self._out, self._body
        return min(  # type: ignore[no-any-return]
            self._pinged_s + self._ping_s, self._connect_until_s, self._ack_s, self._silent_s, self._unproven_until_s,
            self._orphans_until_s, self._pauses_s, self._assembly.until_s, inf if out is None else out.retry_s,
            inf if body is None else body.until_s,
        )  # fmt: skip

    def from_device(self, data: bytes, now_s: float) -> None:
        """Handles one datagram of the device."""
        self._now_s = now_s
        if self.is_over:
            return
        if not self._is_proven:
            self._credit += AMPLIFICATION * len(data)
        try:
            message = self._decoder.decode(data)
        except CoapError as error:
            self._figures["malformed"] += 1
            if error.answer:
                self._send(error.answer)
            return
        self._figures["received"] += 1
        if message.kind >= Kind.ACK:
            self._take_answer(message)
        elif EMPTY < message.code < Code.CREATED & 0xE0:
            self._take_request(message, data)
        elif message.kind == Kind.CON:
            self._reset(message)  # a ping, or a response to nothing (RFC 7252 §4.2, §4.3)
        if self._state is State.NEW:
            self.is_over = True  # the request that was to open a session was rejected
        self._pump()

    def tick(self, now_s: float) -> None:
        self._now_s = now_s
        if self.is_over:
            return
        out = self._out
        if now_s >= self._connect_until_s:
            self._figures["timeouts"] += 1
            self._refuse(Code.UNAVAILABLE, f"CONNECT took longer than idle_timeout = {self._settings.idle_timeout:g} s")
            return
        if now_s >= self._unproven_until_s:
            self._figures["timeouts"] += 1
            self._lose("no request with the token of the connection")
            return
        if out is not None and now_s >= out.retry_s and not self._retry(out):
            return
        if now_s >= self._ack_s:
            self._acknowledge()
        if now_s >= self._silent_s and not self._goes_on_in_silence():
            return
        if now_s >= self._orphans_until_s:
            self._orphans_until_s = inf
            for publish in self._orphans:
                self._settle(publish, is_dropped=True)
            self._orphans.clear()
        if now_s >= self._assembly.until_s:
            self._assembly.clear()
        if self._body is not None and now_s >= self._body.until_s:
            self._body = None
            self._advance(is_dropped=True)
        self._pauses_s = inf
        self._pump()
        super().tick(now_s)

    # --- for the process that replaces this one -------------------------------------------------------------------------------

    def image(self) -> dict[str, Any]:
        parts = {name: getattr(self, name) for name in PARTS}
        return super().image() | {"state": self._state.name, "parts": to_plain(parts, RECORDS)}

    def adopt(self, values: Mapping[str, Any]) -> None:
        super().adopt(values)
        self._state = State[values["state"]]
        for name, value in from_plain(values["parts"], RECORDS).items():
            setattr(self, name, value)
        if self._opener is not None:
            self._request = parse_request(self._opener.message.options)

    def shift(self, by_s: float) -> None:
        super().shift(by_s)
        self._assembly.until_s += by_s
        if self._body is not None:
            self._body.until_s += by_s
        if self._out is not None:
            self._out.retry_s += by_s
        for one in {*self._exchanges.values()}:
            one.since_s += by_s

    # --- messages of the device -----------------------------------------------------------------------------------------------

    def _take_request(self, message: Message, data: bytes) -> None:
        message_id = message.message_id
        answer = self._recent.answer(message_id, self._now_s)
        if answer is not None:
            self._figures["duplicates"] += 1
            if answer:
                self._send(answer)
            return
        found = self._exchanges.get(message_id)
        if found is not None:
            self._figures["duplicates"] += 1
            if found.is_acked:
                self._send(encode(Kind.ACK, EMPTY, message_id))
            return
        if self._state is State.OPENING:
            if len(self._early) < EARLY:
                self._early.append(data)
            return
        self._heard_s = self._now_s
        self._nons_sent = 0
        if message.options is not self._options:
            self._options, self._request = message.options, parse_request(message.options)
        request = self._request
        exchange = _Exchange(message, self._now_s)
        if request.refusal is not None:
            if message.kind == Kind.CON or not request.refusal.is_silent:
                self._respond(exchange, request.refusal.code, request.refusal.text)
        elif request.path[:1] == (PUBSUB,):
            if self._may(exchange, request):
                self._pubsub(exchange, request)
        elif request.path == CONNECTION:
            self._connection(exchange, request)
        elif request.path == CORE:
            self._core(exchange, request)
        else:
            self._respond(exchange, Code.NOT_FOUND)

    def _may(self, exchange: _Exchange, request: Request) -> bool:
        """Returns whether a request is of this device; responds if not."""
        if request is self._checked:
            return True
        queries = request.queries
        token, client_id = queries.get(b"token"), queries.get(b"clientid")
        if self._state is State.NEW:
            self._begin(exchange, identity_of(request), is_connection=False)
            return False
        if self._token:
            if token is None and client_id is None and not self._settings.connection_required:
                return True  # the address is known
            if token is None or client_id is None:
                self._respond(exchange, Code.BAD_REQUEST, "Missing token or clientid in connection mode")
                return False
            if client_id != self._client_id or not self.has_token(token):
                self._respond(exchange, Code.UNAUTHORIZED, "Invalid token or clientid in connection mode")
                return False
            self._prove()
        elif self._settings.connection_required:
            self._respond(exchange, Code.UNAUTHORIZED, "no connection")
            return False
        elif identity_of(request) != self._identity:
            self._respond(exchange, Code.UNAUTHORIZED, "another client has this address")
            return False
        self._checked = request
        return True

    def _core(self, exchange: _Exchange, request: Request) -> None:
        if exchange.message.code != Code.GET:
            self._respond(exchange, Code.METHOD_NOT_ALLOWED)
        elif request.accept not in (None, LINK_FORMAT):
            self._respond(exchange, Code.NOT_ACCEPTABLE)
        else:
            self._respond(exchange, Code.CONTENT, CORE_LINKS, ((Number.CONTENT_FORMAT, uint(LINK_FORMAT)),))

    def _take_answer(self, message: Message) -> None:
        """Handles ACK and Reset."""
        if message.code and (message.kind == Kind.RST or message.code < Code.CREATED & 0xE0):
            return  # RFC 7252 §4.2: a Reset is Empty, and an ACK has no request
        out = self._out
        if out is not None and message.message_id == out.message_id:
            target, self._out = self._out_for, None
            self._out_for = None
            self._heard_s, self._nons_sent = self._now_s, 0
            self._prove()
            if target is not None:
                is_rejected = message.kind == Kind.RST
                if is_rejected:
                    self._body = None
                    self._remove(target)
                if self._body is None:
                    self._advance(is_dropped=is_rejected)
            return
        target = self._nons.pop(message.message_id, None) if message.kind == Kind.RST else None
        if target is not None:
            self._heard_s = self._now_s
            self._remove(target)
        elif not self._is_proven:
            self._guesses += 1
            if self._guesses > GUESSES:
                self._lose("too many answers to nothing")

    def _reset(self, message: Message) -> None:
        self._send(encode(Kind.RST, EMPTY, message.message_id))

    # --- the connection -------------------------------------------------------------------------------------------------------

    def _connection(self, exchange: _Exchange, request: Request) -> None:
        method = exchange.message.code
        if method == Code.POST:
            identity = identity_of(request)
            if not _is_client_id(identity.client_id):
                self._respond(exchange, Code.BAD_REQUEST, "clientid is required")
            else:
                self._begin(exchange, identity, is_connection=True, is_clean=request.queries.get(b"clean_start") == b"true")
        elif method not in (Code.PUT, Code.DELETE):
            self._respond(exchange, Code.METHOD_NOT_ALLOWED)
        elif not self._token:
            self._respond(exchange, Code.UNAUTHORIZED, "no connection")
        elif self._may(exchange, request):
            if method == Code.PUT:
                self._respond(exchange, Code.CHANGED)
                return
            self._respond(exchange, Code.DELETED)
            self._to_broker(self._goodbye(ends=True))
            self.is_over = True

    def _begin(self, exchange: _Exchange, identity: Identity, is_connection: bool, is_clean: bool = True) -> None:
        """Opens a session at the broker, in place of an earlier one of this address."""
        if identity.client_id and not _is_client_id(identity.client_id):
            self._respond(exchange, Code.BAD_REQUEST, "clientid")
            return
        own = identity.client_id or self._fallback_id
        try:
            full_name = client_id_of(self._settings.clientinfo_override, own, identity.username)
        except IdentityError as error:
            self._respond(exchange, Code.BAD_REQUEST, str(error))
            return
        goodbye = self._goodbye(ends=not self._token) if self._is_connected else b""
        self._forget()
        self._client_id, self._full_name, self._identity = own, full_name, identity
        self._token = token_hex(TOKEN_BYTES).encode() if is_connection else b""
        self._state, self._opener = State.OPENING, exchange
        self._keep(exchange)
        self._connect_until_s = self._now_s + self._settings.idle_timeout
        properties: dict[int, Any] = {
            PropertyId.RECEIVE_MAXIMUM: PREFETCH, PropertyId.MAXIMUM_PACKET_SIZE: self._settings.max_body_size + PACKET_EXTRA,
        }  # fmt: skip
        expiry = int(self._settings.session_expiry_interval)
        if is_connection and expiry:
            properties[PropertyId.SESSION_EXPIRY_INTERVAL] = expiry
        login = login_of(self._settings.clientinfo_override, self._client_id, identity.username, identity.password)
        hello = Connect(VERSION, full_name, is_clean, 0, *login, properties=properties)
        self._dial(hello.encode(VERSION), goodbye)

    def _accepted(self, connack: Connack) -> None:
        opener, self._opener = self._opener, None
        if connack.reason_code:
            text = reason_text(connack.reason_code, connack.properties)
            self._opener = opener
            self._refuse(_CODES.get(connack.reason_code, Code.INTERNAL_ERROR), f"the broker rejects the client: {text}")
            return
        super()._accepted(connack)
        self._state, self._connect_until_s = State.OPEN, inf
        self._heard_s = self._now_s
        early, self._early = self._early, []
        if self._token:
            self._orphans_until_s = self._now_s + self._settings.idle_timeout
            if not self._is_proven:
                self._unproven_until_s = self._now_s + self._settings.idle_timeout
            if opener is not None:
                self._respond(opener, Code.CREATED, self._token)
        elif opener is not None:
            # The request that has opened the session is handled now.
            del self._exchanges[opener.message.message_id]
            request = self._checked = self._request
            self._pubsub(opener, request)
        for data in early:
            self.from_device(data, self._now_s)

    def _prove(self) -> None:
        if not self._is_proven:
            self._is_proven, self._probes, self._unproven_until_s = True, False, inf

    def _goodbye(self, ends: bool = False) -> bytes:
        """Returns DISCONNECT for the broker. ends: the session too."""
        found: bytes = Disconnect(0, {PropertyId.SESSION_EXPIRY_INTERVAL: 0} if ends and self._token else None).encode(VERSION)
        return found

    def _forget(self) -> None:
        """Forgets what belongs to an earlier session of this address."""
        for one in [*self._exchanges.values()]:
            self._respond(one, Code.UNAVAILABLE)
        self._works.clear()
        self._requests.clear()
        self._observations.clear()
        self._queue.clear()
        self._orphans.clear()
        self._nons.clear()
        self._current = self._body = self._checked = None
        if self._out_for is not None:
            self._out = self._out_for = None
        self._orphans_until_s = self._unproven_until_s = inf

    # --- topics ---------------------------------------------------------------------------------------------------------------

    def _pubsub(self, exchange: _Exchange, request: Request) -> None:
        method = exchange.message.code
        if method in (Code.POST, Code.PUT):
            self._publish(exchange, request)
        elif method == Code.GET:
            self._get(exchange, request)
        else:
            self._respond(exchange, Code.METHOD_NOT_ALLOWED)

    def _publish(self, exchange: _Exchange, request: Request) -> None:
        message = exchange.message
        payload = message.payload
        if request.block1 is not None:
            block, limit = request.block1, self._settings.max_body_size
            step, payload = self._assembly.add(message.code, request, block, payload, limit, self._now_s)
            if step == Step.INCOMPLETE:
                self._respond(exchange, Code.INCOMPLETE)
                return
            if step == Step.TOO_LARGE:
                self._respond(exchange, Code.TOO_LARGE, options=((Number.SIZE1, uint(limit)),))
                return
            exchange.options = ((Number.BLOCK1, uint(block.value)),)
            if step == Step.CONTINUE:
                self._respond(exchange, Code.CONTINUE)
                return
        if request is not self._planned:
            self._planned, self._plan = request, self._plan_of(request)
        plan = self._plan
        if isinstance(plan, Refusal):
            self._respond(exchange, plan.code, plan.text)
            return
        qos = plan.qos if plan.qos >= 0 else 1 - message.kind
        if qos > self._max_qos or len(plan.topic) + len(plan.properties) + len(payload) + 16 > self._packet_max:
            self._respond(exchange, Code.BAD_REQUEST if qos > self._max_qos else Code.TOO_LARGE)
            return
        if self.is_broker_slow or len(self._exchanges) >= min(self._settings.max_inflight, self._room):
            self._respond(exchange, Code.UNAVAILABLE, options=((Number.MAX_AGE, uint(BUSY_S)),))
            return
        self._figures["messages_in"] += 1
        packet_id = 0
        if qos:
            packet_id = self._next_id(self._works, self._requests)
            self._works[packet_id] = exchange
            self._keep(exchange)
        publish = (qos << 1 | plan.retain, packet_id, plan.topic, plan.properties, payload)
        self._to_broker(encode_publishes([publish], VERSION))
        if not qos:
            self._respond(exchange, Code.CHANGED)

    def _plan_of(self, request: Request) -> _Plan | Refusal:
        topic, queries = request.topic, request.queries
        try:
            check_topic_name(topic, self._levels)
        except MqttError as error:
            return Refusal(Code.BAD_REQUEST, f"topic: {error.message}")
        qos = _qos(queries.get(b"qos"), self._settings.publish_qos)
        expiry = queries.get(b"expiry", b"0")
        retain = queries.get(b"retain", b"false")
        if qos is None or retain not in (b"true", b"false") or not expiry.isdigit() or len(expiry) > 9:
            return Refusal(Code.BAD_REQUEST, "qos, retain or expiry")
        properties: dict[int, Any] = {}
        if int(expiry):
            properties[PropertyId.MESSAGE_EXPIRY_INTERVAL] = int(expiry)
        content = None if request.content_format is None else CONTENT_TYPES.get(request.content_format)
        if content is not None:
            properties[PropertyId.CONTENT_TYPE] = content
        return _Plan(topic, qos, retain == b"true", encode_properties(properties) if properties else b"")

    def _get(self, exchange: _Exchange, request: Request) -> None:
        body = self._body
        if request.observe is None and body is not None and request.block2 is not None and request.path == body.path:
            found = body.block(request.block2.number, request.block2.exponent, self._now_s)
            if found is None:
                self._respond(exchange, Code.BAD_OPTION, "behind the end")
                return
            options, payload, is_last = found
            self._respond(exchange, Code.CONTENT, payload, tuple(options))
            if is_last:
                self._body = None
                if self._out is None:
                    self._advance()
        elif request.observe == 0:
            self._observe(exchange, request)
        elif request.observe == 1:
            self._unobserve(exchange, request)
        else:
            self._respond(exchange, Code.BAD_REQUEST, "invalid observe value")

    def _observe(self, exchange: _Exchange, request: Request) -> None:
        text, queries, token = request.topic, request.queries, exchange.message.token
        qos = _qos(queries.get(b"qos"), self._settings.subscribe_qos)
        no_local, handling = queries.get(b"nl", b"0"), queries.get(b"rh", b"0")
        problem = "" if qos is not None and no_local in (b"0", b"1") and handling in (b"0", b"1", b"2") else "qos, nl or rh"
        try:
            check_topic_filter(text, self._levels)
        except MqttError as error:
            problem = f"topic: {error.message}"
        if problem or qos is None:
            self._respond(exchange, Code.BAD_REQUEST, problem)
            return
        if request.accept not in (None, ACCEPTED_FORMAT):
            self._respond(exchange, Code.NOT_ACCEPTABLE)
            return
        if qos < 0:
            qos = 1 - exchange.message.kind
        identifier = crc32(text) % IDENTIFIERS + 1
        found = self._observations.get(identifier)
        options = qos | int(no_local) << 2 | int(handling) << 4
        if found is None and len(self._observations) >= self._settings.max_observations:
            self._respond(exchange, Code.UNAVAILABLE, f"max_observations = {self._settings.max_observations}")
            return
        if len(self._exchanges) >= self._settings.max_inflight:
            self._respond(exchange, Code.UNAVAILABLE, options=((Number.MAX_AGE, uint(BUSY_S)),))
            return
        exponent = SIZE_EXPONENT_MAX if request.block2 is None else request.block2.exponent
        if found is not None and token in found.targets and found.options == options:
            found.add(Target(found, token, request, exponent))  # registered again (RFC 7641 §4.1)
            self._respond_observing(exchange, request.accept)
            return
        if found is None:
            found = Observation(text, identifier, options)
        found.options = options
        self._observations[identifier] = found
        packet_id = self._next_id(self._works, self._requests)
        self._requests[packet_id] = exchange, found, Target(found, token, request, exponent)
        self._keep(exchange)
        properties = {PropertyId.SUBSCRIPTION_IDENTIFIER: [identifier]}
        self._to_broker(Subscribe(packet_id, [(text, options)], properties).encode(VERSION))

    def _respond_observing(self, exchange: _Exchange, accept: int | None) -> None:
        options = [(Number.OBSERVE, uint(self._sequence.next()))]
        if accept is not None:
            options.append((Number.CONTENT_FORMAT, uint(accept)))
        self._respond(exchange, Code.CONTENT, options=tuple(options))
        if not self._is_proven and not self._token:
            self._probes = True

    def _unobserve(self, exchange: _Exchange, request: Request) -> None:
        found = self._observations.get(crc32(request.topic) % IDENTIFIERS + 1)
        if found is None or found.text != request.topic:
            self._respond(exchange, Code.NO_CONTENT)
            return
        if found.targets.pop(exchange.message.token, None) is None:
            found.targets.clear()  # as EMQX, which does not look at tokens
        self._end_of(found, exchange)

    def _remove(self, target: Target) -> None:
        """Ends a registration that the device does not know."""
        observation = target.observation
        if observation.targets.get(target.token) is target:
            del observation.targets[target.token]
            self._end_of(observation, None)

    def _end_of(self, observation: Observation, exchange: _Exchange | None) -> None:
        """Ends a subscription whose last registration is gone. exchange: what is to be answered."""
        if observation.targets or self._observations.get(observation.identifier) is not observation:
            if exchange is not None:
                self._respond(exchange, Code.NO_CONTENT)
            return
        del self._observations[observation.identifier]
        observation.is_ended = True
        packet_id = self._next_id(self._works, self._requests)
        if exchange is not None:
            self._requests[packet_id] = exchange, observation, None
            self._keep(exchange)
        self._to_broker(Unsubscribe(packet_id, [observation.text]).encode(VERSION))

    # --- responses ------------------------------------------------------------------------------------------------------------

    def _keep(self, exchange: _Exchange) -> None:
        """Notes that a response follows later."""
        self._exchanges[exchange.message.message_id] = exchange
        if self._ack_s == inf:
            self._ack_s = self._now_s + SEPARATE_S

    def _acknowledge(self) -> None:
        """Sends Empty ACKs for requests whose response takes long (RFC 7252 §5.2.2)."""
        self._ack_s = inf
        for message_id, one in self._exchanges.items():
            if one.is_acked or one.message.kind != Kind.CON:
                continue
            if self._now_s >= one.since_s + SEPARATE_S:
                one.is_acked = True
                self._send(encode(Kind.ACK, EMPTY, message_id))
            else:
                self._ack_s = min(self._ack_s, one.since_s + SEPARATE_S)

    def _respond(self, exchange: _Exchange, code: int, payload: str | bytes = b"", options: Options = ()) -> None:
        """Responds to a request. payload: a text explains an error."""
        message = exchange.message
        message_id = message.message_id
        self._exchanges.pop(message_id, None)
        if isinstance(payload, str):
            payload = payload.encode()
        if exchange.options:
            options = (*options, *exchange.options)
        if exchange.is_acked:
            self._recent.put(message, encode(Kind.ACK, EMPTY, message_id), self._now_s)
            self._answers.append(_Answer(code, message.token, options, payload))
            self._pump()
            return
        kind = Kind.ACK
        if message.kind == Kind.NON:
            kind, message_id = Kind.NON, self._ids.next(self._now_s)  # RFC 7252 §5.2.3
        data = encode(kind, code, message_id, message.token, options, payload)
        if not self._is_proven and len(data) > self._credit and code >= Code.BAD_REQUEST:
            data = encode(kind, code, message_id, message.token)
        self._recent.put(message, data if kind == Kind.ACK else b"", self._now_s)
        self._send(data)

    # --- messages to the device -----------------------------------------------------------------------------------------------

    def _send(self, data: bytes) -> None:
        if not self._is_proven:
            if len(data) > self._credit:
                self._figures["withheld"] += 1
                return
            self._credit -= len(data)
        self._figures["sent"] += 1
        self.to_device.append(data)

    def _confirm(self, data: bytes, message_id: int, target: Target | None) -> None:
        """Sends a Confirmable message."""
        self._out, self._out_for = Confirmable(data, message_id, self._now_s), target
        self._send(data)

    def _retry(self, out: Confirmable) -> bool:
        """Sends a message again; returns False if the device is lost."""
        if out.again(self._now_s):
            self._figures["retries"] += 1
            self._send(out.data)
            return True
        if self._out_for is None and self._token:
            self._out = None  # a response: the device may have gone on without it
            return True
        self._figures["timeouts"] += 1
        self._lose("a message to the device was not acknowledged")
        return False

    def _pump(self) -> None:
        """Sends what waits, as long as no Confirmable message is outstanding."""
        while self._out is None and not self.is_over:
            if self._answers:
                answer = self._answers.popleft()
                message_id = self._ids.next(self._now_s)
                self._confirm(encode(Kind.CON, answer.code, message_id, *answer[1:]), message_id, None)
            elif self._probes:
                self._probes = False
                message_id = self._ids.next(self._now_s)
                self._confirm(encode(Kind.CON, EMPTY, message_id), message_id, None)
            elif not self._is_proven or self._body is not None or not self._notify():
                return

    def _notify(self) -> bool:
        """Sends the next notification; returns whether there was one."""
        if self._current is None:
            if not self._queue:
                return False
            publish = self._queue.popleft()
            targets = self._targets_of(publish)
            if not targets:
                return True
            self._current = Delivery(publish, targets)
        self._pauses_s = self._ids.free_s(self._now_s)
        if self._pauses_s > self._now_s:
            return False
        self._pauses_s = inf
        publish, target = self._current.publish, self._current.targets[0]
        if target.observation.targets.get(target.token) is not target:
            self._advance(is_dropped=True)  # ended meanwhile
            return True
        kind = self._kind_of(publish)
        message_id = self._ids.next(self._now_s)
        options, payload = options_of(publish, target.accept), publish.payload
        if len(payload) > 1 << target.exponent + 4:
            self._body = Body(target.path, payload, options, self._now_s)
            found = self._body.block(0, target.exponent, self._now_s)
            assert found is not None
            options, payload, _ = found
        options.append((Number.OBSERVE, uint(self._sequence.next())))
        data = encode(kind, Code.CONTENT, message_id, target.token, options, payload)
        self._figures["messages_out"] += 1
        if kind == Kind.CON:
            self._confirmed_s = self._now_s
            self._confirm(data, message_id, target)
            return True
        self._send(data)
        self._nons_sent += 1
        self._nons[message_id] = target
        if len(self._nons) > OBSERVED_NON:
            del self._nons[next(iter(self._nons))]
        if self._body is None:
            self._advance()
        return True

    def _kind_of(self, publish: Publish) -> Kind:
        wanted = self._settings.notify_type
        if wanted == "con" or (wanted == "qos" and publish.qos):
            return Kind.CON
        if self._nons_sent >= NON_AT_A_TIME or self._now_s >= self._confirmed_s + CONFIRM_S:
            return Kind.CON  # whether the device is still there (RFC 7641 §4.5, §4.5.1)
        return Kind.NON

    def _targets_of(self, publish: Publish) -> list[Target]:
        identifiers = (publish.properties or {}).get(PropertyId.SUBSCRIPTION_IDENTIFIER, ())
        found = [self._observations[one] for one in identifiers if one in self._observations]
        targets = [target for one in found for target in one.targets.values()]
        if not targets:
            if publish.qos and self._orphans_until_s != inf:
                self._orphans.append(publish)
            else:
                self._settle(publish, is_dropped=True)
        return targets

    def _advance(self, is_dropped: bool = False) -> None:
        """Continues with the next registration of a message, or ends it."""
        current = self._current
        if current is None:
            return
        del current.targets[0]
        if not current.targets:
            self._current = None
            self._settle(current.publish, is_dropped)

    def _settle(self, publish: Publish, is_dropped: bool = False) -> None:
        """Ends a message for the broker."""
        if is_dropped:
            self._figures["messages_dropped"] += 1
        if publish.qos:
            end = Puback if publish.qos == 1 else Pubrec
            self._to_broker(end(publish.packet_id, ReasonCode.UNSPECIFIED_ERROR if is_dropped else 0).encode(VERSION))

    # --- packets of the broker ------------------------------------------------------------------------------------------------

    def _take(self, packet: Any) -> None:
        super()._take(packet)
        self._pump()

    def _deliver(self, publish: Publish) -> None:
        """Queues a message. Those with QoS 1 and 2 are at most PREFETCH. The broker is read on, for what it acknowledges."""
        if publish.qos or len(self._queue) < QUEUE:
            self._queue.append(publish)
        else:
            self._figures["messages_dropped"] += 1

    def _acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        """Handles an acknowledgement of the broker, or its PUBREL."""
        if kind == PacketType.PUBREL:
            self._to_broker(Pubcomp(packet_id).encode(VERSION))
            return
        if kind == PacketType.PUBREC and code < FAILURE:
            self._to_broker(Pubrel(packet_id).encode(VERSION))
            return
        exchange = self._works.pop(packet_id, None)
        if exchange is not None:
            self._respond(exchange, Code.CHANGED if code < FAILURE else _CODES.get(code, Code.INTERNAL_ERROR))

    def _requested(self, packet: Suback | Unsuback) -> None:
        found = self._requests.pop(packet.packet_id, None)
        if found is None:
            return
        exchange, observation, target = found
        if target is None:
            self._respond(exchange, Code.NO_CONTENT)
            return
        code = packet.codes[0]
        if observation.is_ended:
            self._respond(exchange, Code.CONTENT)  # without Observe: it is registered no more
            return
        if code < FAILURE:
            self._respond_observing(exchange, target.accept)
            observation.add(target)
            self._observations[observation.identifier] = observation
            orphans, self._orphans = self._orphans, []
            self._queue.extendleft(reversed(orphans))
            return
        if not observation.targets and self._observations.get(observation.identifier) is observation:
            del self._observations[observation.identifier]
        self._respond(exchange, _CODES.get(code, Code.INTERNAL_ERROR))

    # --- the end --------------------------------------------------------------------------------------------------------------

    def _goes_on_in_silence(self) -> bool:
        """Looks after a device that has sent nothing for a heartbeat; returns whether it stays."""
        if self._token:
            self._figures["timeouts"] += 1
            self._lose(f"no request within {TOLERANCE} times heartbeat = {self._settings.heartbeat:g} s")
            return False
        if self._observations:
            self._heard_s = self._now_s
            self._probes = self._out is None
            return True
        self._to_broker(self._goodbye())
        self.is_over = True  # without a connection there is nothing to be lost
        return False

    def _lose(self, text: str) -> None:
        """Ends the connection of a device that does not answer; what it has not acknowledged stays in its session."""
        if self._is_connected:
            self._to_broker(self._goodbye())
        self._over(text)

    def _refuse(self, code: Code, text: str) -> None:
        """Rejects the request that was to open a session."""
        opener, self._opener = self._opener, None
        if opener is not None:
            self._respond(opener, code, text)
            self._pump()
        self._over(text)

    def _fail(self, text: str) -> None:
        if self._state is not State.OPEN:
            self._refuse(Code.UNAVAILABLE, text)
            return
        for exchange in [*self._exchanges.values()]:
            if exchange.is_acked:  # there is no time to send it again
                self._send(encode(Kind.NON, Code.UNAVAILABLE, self._ids.next(self._now_s), exchange.message.token))
            else:
                self._respond(exchange, Code.UNAVAILABLE, text[:100])
        if self._is_proven:
            for observation in self._observations.values():
                for target in observation.targets.values():  # RFC 7641 §4.2: it ends the observation
                    message_id = self._ids.next(self._now_s)
                    self._send(encode(Kind.NON, Code.UNAVAILABLE, message_id, target.token))
        if self._is_connected:
            self._to_broker(self._goodbye())
        self._over(text)

    def _taken_over(self, text: str) -> None:
        if self._settings.processes == 1:
            self._fail(text)
        else:  # an answer would end observations of the device's new connection
            self._over(text)

    def _over(self, text: str) -> None:
        self._figures["errors"] += 1
        self.reason = text
        self.is_over = True


def identity_of(request: Request) -> Identity:
    """Returns what the queries of a request have of a device."""
    queries = request.queries
    return Identity(queries.get(b"clientid", b""), queries.get(b"username"), queries.get(b"password"))


def _is_client_id(data: bytes) -> bool:
    try:
        return bool(data) and "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _qos(text: bytes | None, default: str) -> int | None:
    """Returns the QoS that a query or a setting names; -1: that of the type of the message; None: none."""
    if text is None:
        return QOS_OF.get(default, -1)
    return int(text) if text in (b"0", b"1", b"2") else None


