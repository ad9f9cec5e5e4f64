"""One MQTT-SN device as a session of MQTT 5.0, without I/O: datagrams, packets and time in, datagrams, packets and deadlines out.

    CONNECT [WILLTOPIC WILLMSG]  -> CONNECT with the will        CONNACK follows CONNACK
    PUBLISH, QoS 1 and 2         -> PUBLISH                      PUBACK, PUBREC and PUBCOMP follow those of the broker
    SUBSCRIBE                    -> SUBSCRIBE                    SUBACK follows SUBACK
    PUBLISH                      -> [REGISTER] PUBLISH           PUBACK, PUBREC and PUBCOMP of the device go to the broker
    WILLTOPICUPD, WILLMSGUPD     -> DISCONNECT and CONNECT with the other will, in the same session
    DISCONNECT with duration     -> nothing: the broker is not read, so messages wait in the session of the worker
    PINGREQ of a sleeping device -> the broker is read; PINGRESP when a PINGREQ to the broker has brought nothing more

A CONNECT may have a forged address: until it acknowledges something, that address is sent at most AMPLIFICATION times its bytes.
If a message needs more, a REGISTER with random ids asks for a REGACK first.

The broker sends one message with QoS 1 or 2 at a time (Receive Maximum 1), since a device has one unacknowledged message at a time
(MQTT-SN §6.13). Message ids of the two directions and packet ids are independent of each other: the ids that the gateway gives its
messages grow from a random one, so that a late acknowledgement never meets another message.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from math import inf
from secrets import randbelow
from struct import Struct
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

from shardbroker.gateways.image import publish_of
from shardbroker.gateways.mqttsn.codec import (
    CLEAN,
    DUP,
    LONG_FORM,
    QOS_NEGATIVE,
    RETAIN,
    WILL,
    Kind,
    Message,
    MqttSnError,
    ReturnCode,
    TopicKind,
    decode,
    encode_publish,
    qos_of,
    short_id,
)  # fmt: skip
from shardbroker.gateways.mqttsn.topics import TOPIC_IDS, Topics, is_topic, predefined
from shardbroker.gateways.mqttsn.wills import Wills
from shardbroker.gateways.session import VERSION, GatewaySession, IdentityError, client_id_of, login_of, reason_text
from shardbroker.mqtt.batches import encode_publishes
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)  # fmt: skip
from shardbroker.mqtt.spec import FAILURE, PacketType, PropertyId, ReasonCode
from shardbroker.mqtt.topics import check_topic_filter

__all__ = ["FIGURES", "MqttSnSession"]

FIGURES = (
    "received", "sent", "messages_in", "messages_out", "messages_dropped", "errors", "timeouts", "retries", "duplicates",
    "malformed", "unknown_dropped", "lost", "withheld",
)  # fmt: skip
"""Counts of a gateway: messages in both directions, PUBLISH among them, PUBLISH that was not passed on, sessions that ended with an
error, silent devices, messages sent again, messages received again, datagrams that are no messages, those of unknown senders above
max_unknown_rate, those that the kernel did not take, those to an address that is not proven above AMPLIFICATION times its bytes."""
TOLERANCE = 1.5
"""Intervals without a message after which a device is lost (MQTT-SN §7.2: half of the time period for short ones)."""
LONGEST_S = 65535
"""Keep-alive of a device that names none, seconds."""
IDS = 65535
DUPLICATE_S = 3.0
"""Time in which the same CONNECT again is a copy on the way, and not a device that has started again."""
NOTHING: Any = MappingProxyType({})
"""An empty dict, shared: one of its own would take 64 bytes, and 232 once it was used."""
RECENT = 8
"""Messages of a device that are remembered for copies on the way, once they are acknowledged."""
EARLY = 16
"""Messages that wait while the connection to the broker is replaced."""
QUEUE = 32
"""Messages with QoS 0 that wait for a REGACK or PUBACK before them; above it, the broker is not read."""
UNPROVEN_RETRIES = 3
"""How often a device that is not accepted is asked again: its CONNECT of at least 7 bytes allows 21 in answers."""
AMPLIFICATION = 3
"""Bytes for each byte of an address that is not proven."""
GUESSES = 8
"""Wrong acknowledgements of an address that is not proven, after which it is sent away."""
PROBE_TOPIC = b"-"
"""Of a REGISTER that is sent for its REGACK alone."""
CLEAN_EXPIRY_S = 60
"""Session Expiry Interval of a device with CleanSession: its session outlives the change of a will, and little more."""
PREFETCH = 1
PACKET_EXTRA = 4096
"""Bytes of topic and properties that a packet of the broker may have beside a payload."""
RETAIN_FOR_NEW = 0x10
"""Retained messages only for a new subscription (MQTT 5.0 §3.8.3.1)."""

_ACKNOWLEDGEMENT = Struct("!BBHHB")
_DISCONNECT = Message(Kind.DISCONNECT).encode()
_PINGRESP = Message(Kind.PINGRESP).encode()
_CONGESTED = frozenset({
    ReasonCode.SERVER_UNAVAILABLE, ReasonCode.SERVER_BUSY, ReasonCode.QUOTA_EXCEEDED, ReasonCode.CONNECTION_RATE_EXCEEDED,
    ReasonCode.MESSAGE_RATE_TOO_HIGH, ReasonCode.RECEIVE_MAXIMUM_EXCEEDED, ReasonCode.UNSPECIFIED_ERROR,
})  # fmt: skip
_BAD_TOPIC = frozenset({ReasonCode.TOPIC_NAME_INVALID, ReasonCode.TOPIC_FILTER_INVALID})


class State(Enum):
    """Of a device (MQTT-SN §6.14)."""

    NEW = auto()
    WILL_TOPIC = auto()
    WILL_MESSAGE = auto()
    OPENING = auto()
    """The broker has not answered to CONNECT."""
    ACTIVE = auto()
    ASLEEP = auto()
    AWAKE = auto()


class Step(Enum):
    """Of a message to the device."""

    PROBE = auto()
    """REGISTER with ids that only the device's address gets: it has to prove that address first."""
    REGISTER = auto()
    PUBLISH = auto()
    RECEIVED = auto()
    """PUBREC went to the broker, whose PUBREL is awaited."""
    PUBREL = auto()


class _Incoming:
    """A PUBLISH of the device, until it is acknowledged in full."""

    __slots__ = ("digest", "is_lost", "is_received", "is_released", "message_id", "packet_id", "qos", "topic_id")

    def __init__(self, packet_id: int, message_id: int, topic_id: int, qos: int, digest: int) -> None:
        self.packet_id, self.message_id, self.topic_id, self.qos, self.digest = packet_id, message_id, topic_id, qos, digest
        self.is_received = self.is_released = False
        """The broker has sent PUBREC; the device has sent PUBREL."""
        self.is_lost = False
        """The broker may not have got it, since its connection was replaced."""


OF_INCOMING = _Incoming.__slots__


class _Outgoing:
    """A PUBLISH of the broker, until the device has acknowledged it in full."""

    __slots__ = ("message_id", "publish", "published_as", "registered", "step", "topic_id")

    def __init__(self, publish: Publish, step: Step, topic_id: int, message_id: int) -> None:
        self.publish, self.step, self.topic_id, self.message_id = publish, step, topic_id, message_id
        self.registered = 0
        """How often its topic was registered."""
        self.published_as = 0
        """Message id of its PUBLISH, which stays the same when that is sent again; 0 before."""

    def image(self) -> tuple[Any, ...]:
        """Returns it as plain values."""
        return self.publish.encode(VERSION), self.step.name, self.topic_id, self.message_id, self.registered, self.published_as

    @classmethod
    def adopted(cls, values: tuple[Any, ...]) -> "_Outgoing":
        """Returns what another process had."""
        publish, step, topic_id, message_id, registered, published_as = values
        made = cls(publish_of(publish), Step[step], topic_id, message_id)
        made.registered, made.published_as = registered, published_as
        return made


class _Request(NamedTuple):
    """A SUBSCRIBE or UNSUBSCRIBE of the device."""

    kind: Kind
    message_id: int
    topic_id: int


class _Recent(NamedTuple):
    """A PUBLISH that is acknowledged in full."""

    message_id: int
    digest: int
    qos: int
    until_s: float


class MqttSnSession(GatewaySession):
    """settings: `gateways.mqttsn`. levels: most levels of a topic. wills: shared by all sessions. figures: counts by name."""

    __slots__ = (
        "_accepted_s", "_after", "_client_id", "_connect_until_s", "_credit", "_dirty", "_draft", "_early", "_full_name",
        "_guesses", "_heard_s", "_hello", "_incoming", "_is_clean", "_is_proven", "_is_secure", "_keepalive_s", "_last_message_id",
        "_levels", "_offered", "_out", "_pings", "_question", "_queue", "_recent", "_requests", "_retries", "_retry_s",
        "_settings", "_sleep_s", "_sleep_until_s", "_state", "_then", "_topics", "_will", "_wills", "_works",
    )  # fmt: skip

    MOVES: ClassVar = (
        *GatewaySession.MOVES,
        "_accepted_s", "_after", "_client_id", "_connect_until_s", "_credit", "_dirty", "_early", "_full_name", "_guesses",
        "_heard_s", "_hello", "_is_clean", "_is_proven", "_is_secure", "_keepalive_s", "_last_message_id", "_pings", "_question",
        "_retries", "_retry_s", "_sleep_s", "_sleep_until_s",
    )  # fmt: skip
    TIMES: ClassVar = (*GatewaySession.TIMES, "_accepted_s", "_connect_until_s", "_heard_s", "_retry_s", "_sleep_until_s")

    def __init__(
        self, wills: Wills, settings: Any, levels: int, fallback_id: str, server: str, figures: dict[str, int], now_s: float
    ) -> None:
        super().__init__(figures, now_s)
        self._settings, self._levels, self._wills = settings, levels, wills
        self._state = self._then = State.NEW
        """`_then`: the state when the broker has accepted."""
        self._client_id = self._full_name = self._hello = self._after = b""
        """`_full_name`: the client id of the MQTT session. `_hello`: the last CONNECT. `_after`: what the device gets when
        the broker has accepted."""
        self._is_clean = True
        self._will: Will | None = None
        self._draft: Will | None = None
        """The will of which the topic is known."""
        self._offered: Message | None = None
        """The CONNECT whose will is asked for."""
        self._keepalive_s = self._sleep_s = 0.0
        self._accepted_s, self._heard_s, self._sleep_until_s = -inf, now_s, inf
        self._connect_until_s: float = now_s + settings.idle_timeout
        self._early: list[bytes] | None = None
        self._topics = Topics(settings, levels)
        self._incoming: dict[int, _Incoming] = NOTHING
        """By message id."""
        self._works: dict[int, _Incoming] = NOTHING
        """By packet id."""
        self._requests: dict[int, _Request] = NOTHING
        """By packet id. All three are NOTHING until they are needed, and again while a device sleeps."""
        self._recent: tuple[_Recent, ...] = ()
        """Oldest first."""
        self._queue: deque[Publish] | None = None
        self._out: _Outgoing | None = None
        self._last_message_id = randbelow(IDS)
        self._question = b""
        """A message to the device that awaits an answer; there is one at a time."""
        self._retries, self._retry_s = 0, inf
        self._is_proven = self._is_secure = False
        """Whether the device has acknowledged what only its address gets; whether the transport has shown that it has it."""
        self._credit = self._guesses = 0
        """Bytes that may be sent to an address that is not proven; its wrong acknowledgements."""
        self._pings, self._dirty = 0, False
        """PINGREQs that the broker has not answered; whether it has sent messages since the last one."""

    # --- what the shell calls -------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        return self._full_name.decode()

    def address_proven(self) -> None:
        self._is_proven = self._is_secure = True

    @property
    def state(self) -> State:
        """Returns the state of the device."""
        return self._state

    @property
    def reads_broker(self) -> bool:
        return self._state is not State.ASLEEP and (self._queue is None or len(self._queue) < QUEUE)

    @property
    def _lost_s(self) -> float:
        if self._state is State.ACTIVE:
            return self._heard_s + self._keepalive_s
        return self._sleep_until_s if self._state in (State.ASLEEP, State.AWAKE) else inf

    @property
    def deadline_s(self) -> float:
        forgets_s = self._recent[-1].until_s if self._recent and self._state is State.ASLEEP else inf
        return min(self._pinged_s + self._ping_s, self._connect_until_s, self._retry_s, self._lost_s, forgets_s)

    def from_device(self, data: bytes, now_s: float) -> None:
        """Handles one message of the device."""
        self._now_s = now_s
        if self.is_over:
            return
        try:
            message = decode(data)
        except MqttSnError:
            self._figures["malformed"] += 1
            return
        self._figures["received"] += 1
        self._heard_s = now_s
        if self._state is State.OPENING and self._early is not None and message.kind != Kind.CONNECT:
            if len(self._early) < EARLY:
                self._early.append(data)
            return
        if not self._is_proven:
            self._credit += AMPLIFICATION * len(data)
        if message.kind == Kind.CONNECT:
            self._connect(message, data)
        elif self._state in _CONNECTED or message.kind in _ALWAYS:
            handle = _HANDLERS.get(message.kind)
            if handle is not None:
                handle(self, message)

    def tick(self, now_s: float) -> None:
        self._now_s = now_s
        if self.is_over:
            return
        if now_s >= self._connect_until_s:
            self._figures["timeouts"] += 1
            self._fail(f"CONNECT took longer than idle_timeout = {self._settings.idle_timeout:g} s")
        elif now_s >= self._lost_s:
            self._figures["timeouts"] += 1
            self._lose("no message within the keep-alive" if self._state is State.ACTIVE else "no PINGREQ within the time of sleep")
        elif now_s >= self._retry_s:
            self._retry()
        elif self._recent and self._state is State.ASLEEP and now_s >= self._recent[-1].until_s:
            self._recent = ()
        super().tick(now_s)

    # --- for the process that replaces this one -------------------------------------------------------------------------------

    def image(self) -> dict[str, Any]:
        return super().image() | {
            "state": self._state.name, "then": self._then.name, "will": _of_will(self._will), "draft": _of_will(self._draft),
            "is_offered": self._offered is not None, "topics": self._topics.image(), "works": [*self._works_image()],
            "requests": {packet_id: (int(kind), *rest) for packet_id, (kind, *rest) in self._requests.items()},
            "recent": [tuple(one) for one in self._recent],
            "queue": None if self._queue is None else [one.encode(VERSION) for one in self._queue],
            "out": None if self._out is None else self._out.image(),
        }  # fmt: skip

    def _works_image(self) -> Iterator[tuple[Any, ...]]:
        for work in self._works.values():
            is_current = self._incoming.get(work.message_id) is work
            yield tuple(getattr(work, name) for name in OF_INCOMING), is_current

    def adopt(self, values: Mapping[str, Any]) -> None:
        super().adopt(values)
        self._state, self._then = State[values["state"]], State[values["then"]]
        self._will, self._draft = (None if one is None else Will(*one) for one in (values["will"], values["draft"]))
        self._offered = decode(self._hello) if values["is_offered"] else None
        self._topics.adopt(values["topics"])
        for known, is_current in values["works"]:
            work = _Incoming(0, 0, 0, 0, 0)
            for name, value in zip(OF_INCOMING, known, strict=True):
                setattr(work, name, value)
            self._note_work(work, is_current)
        if values["requests"]:
            self._requests = {packet_id: _Request(Kind(kind), *rest) for packet_id, (kind, *rest) in values["requests"].items()}
        self._recent = tuple(_Recent(*one) for one in values["recent"])
        self._queue = None if values["queue"] is None else deque(map(publish_of, values["queue"]))
        self._out = None if values["out"] is None else _Outgoing.adopted(values["out"])

    def shift(self, by_s: float) -> None:
        super().shift(by_s)
        self._recent = tuple(one._replace(until_s=one.until_s + by_s) for one in self._recent)

    # --- CONNECT, wills -------------------------------------------------------------------------------------------------------

    def _connect(self, message: Message, data: bytes) -> None:
        state = self._state
        if state is State.OPENING:
            return  # its CONNACK is under way
        if data == self._hello:
            if state in (State.WILL_TOPIC, State.WILL_MESSAGE):
                self._send(self._question)
                return
            if state is State.ACTIVE and self._now_s < self._accepted_s + DUPLICATE_S:
                self._figures["duplicates"] += 1
                self._accepted_s = self._now_s  # it may have copies too
                self._send(_connack(ReturnCode.ACCEPTED))
                return
        if message.protocol != 1 or not _is_client_id(message.data):
            self._refuse(ReturnCode.NOT_SUPPORTED, "CONNECT with another protocol id or without a client id")
            return
        self._hello = data
        if message.flags & WILL:
            self._offered = message
            self._connect_until_s = self._now_s + self._settings.idle_timeout
            self._state = State.WILL_TOPIC
            self._ask(Message(Kind.WILLTOPICREQ).encode())
            return
        # MQTT-SN §6.3: without Will, a stored will is kept, unless the session is cleaned.
        will = None if message.flags & CLEAN else self._will if message.data == self._client_id else self._wills.get(message.data)
        self._open(message, will)

    def _take_will_topic(self, message: Message) -> None:
        if self._state is State.WILL_MESSAGE:
            self._send(self._question)
        if self._state is not State.WILL_TOPIC or self._offered is None:
            return
        self._answered()
        if not message.data:  # MQTT-SN §5.4.7: the will is deleted
            self._open(self._offered, None)
            return
        will = self._will_of(message, b"")
        if will is None:
            self._refuse(ReturnCode.NOT_SUPPORTED, "WILLTOPIC with an invalid topic or QoS")
            return
        self._draft = will
        self._state = State.WILL_MESSAGE
        self._ask(Message(Kind.WILLMSGREQ).encode())

    def _take_will_message(self, message: Message) -> None:
        will = self._draft
        if self._state is State.WILL_MESSAGE and self._offered is not None and will is not None:
            self._answered()
            self._open(self._offered, Will(will.topic, message.data, will.qos, will.retain), is_new=True)

    def _will_of(self, message: Message, payload: bytes) -> Will | None:
        qos = qos_of(message.flags)
        if qos == QOS_NEGATIVE or not is_topic(message.data, self._levels):
            return None
        return Will(message.data, payload, qos, bool(message.flags & RETAIN))

    def _open(self, message: Message, will: Will | None, is_new: bool = False) -> None:
        """Begins the session that a CONNECT has asked for."""
        try:
            full_name = client_id_of(self._settings.clientinfo_override, message.data)
        except IdentityError as error:
            self._refuse(ReturnCode.NOT_SUPPORTED, str(error))
            return
        is_clean, is_same = bool(message.flags & CLEAN), message.data == self._client_id
        keeps_broker = self._is_connected and is_same and not is_clean and not is_new and will == self._will
        goodbye = b""
        if self._is_connected and not keeps_broker:
            goodbye = self._goodbye(0 if is_same else ReasonCode.DISCONNECT_WITH_WILL_MESSAGE, ends=self._is_clean and not is_same)
        self._client_id, self._full_name, self._is_clean, self._will = message.data, full_name, is_clean, will
        self._offered = None
        self._keepalive_s = TOLERANCE * (message.duration or LONGEST_S)
        self._wills.put(message.data, None if is_clean else will)
        self._topics.clear()
        self._answered()
        self._after = _connack(ReturnCode.ACCEPTED)
        if keeps_broker:
            self._begin(State.ACTIVE)
            return
        if is_clean or not is_same:
            self._forget_messages()
        if not is_same:
            if self._is_proven and not self._is_secure:  # another client, by a CONNECT that may be forged
                self._credit = AMPLIFICATION * len(self._hello)
            self._is_proven = self._is_secure
        self._dial_with_will(is_clean, goodbye, State.ACTIVE)

    def _dial_with_will(self, is_clean: bool, goodbye: bytes, then: State) -> None:
        if self.wants_broker:
            self._early = []
        self._state, self._then = State.OPENING, then
        self._retry_s = inf
        self._connect_until_s = self._now_s + self._settings.idle_timeout
        size, expiry = 2 * self._settings.max_datagram_size + PACKET_EXTRA, self._settings.session_expiry_interval
        properties: dict[int, Any] = {PropertyId.RECEIVE_MAXIMUM: PREFETCH, PropertyId.MAXIMUM_PACKET_SIZE: size}
        properties[PropertyId.SESSION_EXPIRY_INTERVAL] = CLEAN_EXPIRY_S if self._is_clean else max(CLEAN_EXPIRY_S, int(expiry))
        login = login_of(self._settings.clientinfo_override, self._client_id)
        hello = Connect(VERSION, self._full_name, is_clean, 0, *login, will=self._will, properties=properties)
        self._pings, self._dirty = 0, False
        self._dial(hello.encode(VERSION), goodbye)

    def _accepted(self, connack: Connack) -> None:
        if connack.reason_code:
            text = reason_text(connack.reason_code, connack.properties)
            self._refuse(_code_of(connack.reason_code), f"the broker rejects the client: {text}")
            return
        super()._accepted(connack)
        self._requests = NOTHING  # the device sends them again
        if connack.session_present:
            for one in self._incoming.values():
                one.is_lost = True
        else:
            self._forget_messages()
        if self._queue is not None:
            self._queue.clear()  # the broker sends them again
        self._begin(self._then)
        early, self._early = self._early, None
        for data in early or ():
            self.from_device(data, self._now_s)

    def _begin(self, state: State) -> None:
        """Answers the device once there is a session."""
        self._state, self._connect_until_s = state, inf
        self._accepted_s = self._heard_s = self._now_s
        after, self._after = self._after, b""
        self._send(after)
        if state is State.ACTIVE:
            self._resume()

    def _update_will(self, will: Will | None, answer: Kind) -> None:
        """Replaces the will: that of an MQTT session changes with CONNECT alone."""
        reply = Message(answer, code=ReturnCode.ACCEPTED).encode()
        if will == self._will:
            self._send(reply)
            return
        self._will, self._after = will, reply
        if not self._is_clean:
            self._wills.put(self._client_id, will)
        then = self._state
        self._dial_with_will(False, self._goodbye(0), State.ASLEEP if then is State.AWAKE else then)

    def _update_will_topic(self, message: Message) -> None:
        will: Will | None = None
        if message.data:
            will = self._will_of(message, self._will.payload if self._will is not None else b"")
            if will is None:
                self._send(Message(Kind.WILLTOPICRESP, code=ReturnCode.NOT_SUPPORTED).encode())
                return
        self._update_will(will, Kind.WILLTOPICRESP)

    def _update_will_message(self, message: Message) -> None:
        will = self._will
        if will is None:
            self._send(Message(Kind.WILLMSGRESP, code=ReturnCode.NOT_SUPPORTED).encode())
            return
        self._update_will(Will(will.topic, message.data, will.qos, will.retain), Kind.WILLMSGRESP)

    # --- topics ---------------------------------------------------------------------------------------------------------------

    def _register(self, message: Message) -> None:
        topic_id, code = 0, ReturnCode.NOT_SUPPORTED
        if is_topic(message.data, self._levels):
            topic_id, code = self._topics.registered(message.data), ReturnCode.ACCEPTED
        self._send(Message(Kind.REGACK, topic_id=topic_id, msg_id=message.msg_id, code=code).encode())

    # --- messages of the device -----------------------------------------------------------------------------------------------

    def _publish(self, message: Message) -> None:
        flags = message.flags
        qos = qos_of(flags)
        topic = self._topics.find(flags & 3, message.topic_id)
        if topic is None:
            self._figures["messages_dropped"] += 1
            if qos != QOS_NEGATIVE:
                self._puback(message, ReturnCode.INVALID_TOPIC_ID)
            return
        if qos in (0, QOS_NEGATIVE):
            if self.is_broker_slow or not self._fits(topic, message, 0):
                self._figures["messages_dropped"] += 1
            else:
                self._figures["messages_in"] += 1
                publish = (int(bool(flags & RETAIN)), 0, topic, b"", message.data)
                self._to_broker(encode_publishes([publish], VERSION))
            return
        digest = crc32(message.data, (flags & 0x73) << 16 | message.topic_id)  # the same in the process that replaces this one
        if self._is_repeated(message, qos, digest):
            self._figures["duplicates"] += 1
            return
        if not self._fits(topic, message, qos):
            self._puback(message, ReturnCode.NOT_SUPPORTED)
        elif self.is_broker_slow or len(self._incoming) >= min(self._settings.max_inflight, self._room):
            self._puback(message, ReturnCode.CONGESTION)
        else:
            self._figures["messages_in"] += 1
            packet_id = self._next_id(self._works, self._requests)
            work = _Incoming(packet_id, message.msg_id, message.topic_id, qos, digest)
            self._note_work(work)
            self._pass_on(topic, message, qos, packet_id)

    def _note_work(self, work: _Incoming, is_current: bool = True) -> None:
        """is_current: the device has not used its message id for another one since."""
        if self._works is NOTHING:
            self._works = {}
        self._works[work.packet_id] = work
        if is_current:
            if self._incoming is NOTHING:
                self._incoming = {}
            self._incoming[work.message_id] = work

    def _fits(self, topic: bytes, message: Message, qos: int) -> bool:
        return qos <= self._max_qos and len(topic) + len(message.data) + 16 <= self._packet_max

    def _pass_on(self, topic: bytes, message: Message, qos: int, packet_id: int, dup: int = 0) -> None:
        publish = (dup | qos << 1 | bool(message.flags & RETAIN), packet_id, topic, b"", message.data)
        self._to_broker(encode_publishes([publish], VERSION))

    def _is_repeated(self, message: Message, qos: int, digest: int) -> bool:
        """Answers a PUBLISH that was received before. Returns whether it was."""
        work = self._incoming.get(message.msg_id)
        if work is not None:
            if work.digest != digest:
                self._abandon(work)
                return False
            if work.is_received:
                self._send(Message(Kind.PUBREC, msg_id=message.msg_id).encode())
            elif work.is_lost:
                work.is_lost = False
                topic = self._topics.find(message.flags & 3, message.topic_id)
                assert topic is not None
                self._pass_on(topic, message, qos, work.packet_id, 8)
            return True
        recent = next((one for one in self._recent if one.message_id == message.msg_id), None)
        if recent is None or recent.digest != digest or recent.until_s < self._now_s:
            return False
        if qos == 2:
            self._send(Message(Kind.PUBREC, msg_id=message.msg_id).encode())
            return True
        if message.flags & DUP:
            self._puback(message, ReturnCode.ACCEPTED)
            return True
        return False

    def _abandon(self, work: _Incoming) -> None:
        """Ends a message whose id the device uses for another one."""
        del self._incoming[work.message_id]
        if work.is_received and not work.is_released:
            work.is_released = True
            self._to_broker(Pubrel(work.packet_id).encode(VERSION))

    def _release(self, message: Message) -> None:
        work = self._incoming.get(message.msg_id)
        if work is None:
            self._send(Message(Kind.PUBCOMP, msg_id=message.msg_id).encode())
        elif work.is_received and (not work.is_released or work.is_lost):
            work.is_released, work.is_lost = True, False
            self._to_broker(Pubrel(work.packet_id).encode(VERSION))

    def _finish(self, work: _Incoming) -> bool:
        """Forgets a message that is acknowledged in full. Returns whether the device awaits an answer to it."""
        self._works.pop(work.packet_id, None)
        if self._incoming.get(work.message_id) is not work:
            return False
        del self._incoming[work.message_id]
        settings = self._settings
        until_s = self._now_s + settings.retry_interval * (settings.max_retries + 1)
        others = [one for one in self._recent if one.message_id != work.message_id][1 - RECENT :]
        self._recent = *others, _Recent(work.message_id, work.digest, work.qos, until_s)
        return True

    def _acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        """Passes an acknowledgement of the broker on."""
        if kind == PacketType.PUBREL:
            self._released(packet_id)
            return
        work = self._works.get(packet_id)
        if work is None:
            return
        if kind == PacketType.PUBREC and code < FAILURE:
            work.is_received, work.is_lost = True, False
            if self._incoming.get(work.message_id) is work:
                self._send(Message(Kind.PUBREC, msg_id=work.message_id).encode())
            else:
                self._to_broker(Pubrel(packet_id).encode(VERSION))
        elif kind == PacketType.PUBCOMP:
            if self._finish(work):
                self._send(Message(Kind.PUBCOMP, msg_id=work.message_id).encode())
        elif code >= FAILURE:
            self._works.pop(packet_id)
            if self._incoming.get(work.message_id) is work:
                del self._incoming[work.message_id]
                self._send(_acknowledgement(Kind.PUBACK, work.topic_id, work.message_id, _code_of(code)))
        elif self._finish(work):
            self._send(_acknowledgement(Kind.PUBACK, work.topic_id, work.message_id, ReturnCode.ACCEPTED))

    def _puback(self, message: Message, code: ReturnCode) -> None:
        self._send(_acknowledgement(Kind.PUBACK, message.topic_id, message.msg_id, code))

    # --- subscriptions --------------------------------------------------------------------------------------------------------

    def _subscribe(self, message: Message) -> None:
        kind, qos = message.flags & 3, qos_of(message.flags)
        text, code = self._filter_of(kind, message.data)
        if qos == QOS_NEGATIVE:
            code = ReturnCode.NOT_SUPPORTED
        if any(one.message_id == message.msg_id for one in self._requests.values()):
            self._figures["duplicates"] += 1
            return
        if len(self._requests) >= self._settings.max_inflight:
            code = ReturnCode.CONGESTION
        if code:
            self._send(Message(Kind.SUBACK, msg_id=message.msg_id, code=code).encode())
            return
        topic_id = 0
        if kind == TopicKind.PREDEFINED:
            topic_id = int.from_bytes(message.data, "big")
        elif kind == TopicKind.NORMAL and is_topic(text, self._levels):
            topic_id = self._topics.registered(text)
        packet_id = self._note_request(_Request(Kind.SUBSCRIBE, message.msg_id, topic_id))
        options = qos | (RETAIN_FOR_NEW if message.flags & DUP else 0)
        self._to_broker(Subscribe(packet_id, [(text, options)]).encode(VERSION))

    def _unsubscribe(self, message: Message) -> None:
        text, code = self._filter_of(message.flags & 3, message.data)
        if any(one.message_id == message.msg_id for one in self._requests.values()):
            self._figures["duplicates"] += 1
        elif code:
            self._send(Message(Kind.UNSUBACK, msg_id=message.msg_id).encode())  # there is no such subscription
        elif len(self._requests) < self._settings.max_inflight:
            packet_id = self._note_request(_Request(Kind.UNSUBSCRIBE, message.msg_id, 0))
            self._to_broker(Unsubscribe(packet_id, [text]).encode(VERSION))

    def _note_request(self, request: _Request) -> int:
        """Returns the packet id of a request to the broker."""
        packet_id = self._next_id(self._works, self._requests)
        if self._requests is NOTHING:
            self._requests = {}
        self._requests[packet_id] = request
        return packet_id

    def _filter_of(self, kind: int, data: bytes) -> tuple[bytes, ReturnCode]:
        """Returns the topic filter, or the code of a rejection."""
        if kind == TopicKind.NORMAL:
            try:
                check_topic_filter(data, self._levels)
            except MqttError:
                return b"", ReturnCode.NOT_SUPPORTED
            return data, ReturnCode.ACCEPTED
        if kind > TopicKind.SHORT or len(data) != 2:
            return b"", ReturnCode.NOT_SUPPORTED
        topic = self._topics.find(kind, short_id(data))
        return (b"", ReturnCode.INVALID_TOPIC_ID) if topic is None else (topic, ReturnCode.ACCEPTED)

    def _requested(self, packet: Suback | Unsuback) -> None:
        request = self._requests.get(packet.packet_id)
        if request is None:
            return
        del self._requests[packet.packet_id]
        if request.kind == Kind.UNSUBSCRIBE:
            self._send(Message(Kind.UNSUBACK, msg_id=request.message_id).encode())
            return
        granted = packet.codes[0]
        answer = Message(Kind.SUBACK, topic_id=request.topic_id, msg_id=request.message_id)
        if granted >= FAILURE:
            answer.topic_id, answer.code = 0, _code_of(granted)
        else:
            answer.flags = granted << 5
        self._send(answer.encode())

    # --- messages for the device ----------------------------------------------------------------------------------------------

    def _deliver(self, publish: Publish) -> None:
        """Delivers a message of the broker, or keeps it while an earlier one is on its way."""
        if publish.qos and self._out is not None and self._out.publish.packet_id == publish.packet_id:
            return  # sent again after a change of the connection
        self._dirty = True
        if self._out is None and not self._queue and self._state in (State.ACTIVE, State.AWAKE):
            self._begin_delivery(publish)
            return
        if self._queue is None:
            self._queue = deque()
        self._queue.append(publish)

    def _deliver_waiting(self) -> None:
        if self._state not in (State.ACTIVE, State.AWAKE):
            return
        while self._queue and self._out is None:
            self._begin_delivery(self._queue.popleft())
        if self._out is None:
            self._queue = None
            if self._state is State.AWAKE and not self._pings:
                self._dirty = False
                self._ping()

    def _begin_delivery(self, publish: Publish, out: _Outgoing | None = None) -> None:
        """Sends a message, behind REGISTER if the device does not know its topic. out: if it was tried before."""
        topic: bytes = publish.topic
        limit = self._settings.max_datagram_size
        if len(publish.payload) + 9 > limit:
            self._give_up(publish)
            return
        if not self._is_proven and len(publish.payload) + len(topic) + 17 > self._credit:
            if out is None:
                out = _Outgoing(publish, Step.PROBE, 0, 0)
            out.step, out.topic_id, out.message_id = Step.PROBE, 1 + randbelow(TOPIC_IDS), self._next_message_id()
            self._out = out
            self._ask(Message(Kind.REGISTER, topic_id=out.topic_id, msg_id=out.message_id, data=PROBE_TOPIC).encode())
            return
        if len(topic) == 2:
            self._send_publish(publish, TopicKind.SHORT, short_id(topic), out)
            return
        topic_id = predefined(self._settings).by_topic.get(topic)
        if topic_id is not None:
            self._send_publish(publish, TopicKind.PREDEFINED, topic_id, out)
            return
        topic_id = self._topics.id_of(topic)
        if topic_id is not None:
            self._send_publish(publish, TopicKind.NORMAL, topic_id, out)
        elif len(topic) + 8 > limit:
            self._give_up(publish)
        else:
            if out is None:
                out = _Outgoing(publish, Step.REGISTER, 0, 0)
            out.step, out.topic_id, out.message_id = Step.REGISTER, self._topics.new_id(), self._next_message_id()
            out.registered += 1
            self._out = out
            self._ask(Message(Kind.REGISTER, topic_id=out.topic_id, msg_id=out.message_id, data=topic).encode())

    def _send_publish(self, publish: Publish, kind: TopicKind, topic_id: int, out: _Outgoing | None) -> None:
        qos = publish.qos
        flags = qos << 5 | (RETAIN if publish.retain else 0) | kind
        self._figures["messages_out"] += 1
        if not qos:
            self._out = None
            self._send(encode_publish(flags, topic_id, 0, publish.payload))
            return
        if out is None:
            out = _Outgoing(publish, Step.PUBLISH, topic_id, 0)
        if out.published_as:
            flags |= DUP
        else:
            out.published_as = self._next_message_id()
        out.step, out.topic_id, out.message_id = Step.PUBLISH, topic_id, out.published_as
        self._out = out
        self._ask(encode_publish(flags, topic_id, out.message_id, publish.payload))

    def _give_up(self, publish: Publish) -> None:
        """Drops a message that the device does not take, and ends it for the broker."""
        self._figures["messages_dropped"] += 1
        self._out = None
        if publish.qos:
            end = Puback if publish.qos == 1 else Pubrec
            self._to_broker(end(publish.packet_id, ReasonCode.UNSPECIFIED_ERROR).encode(VERSION))

    def _next(self) -> None:
        self._out = None
        self._answered()
        self._deliver_waiting()

    def _proves(self, is_right: bool) -> bool:
        """Notes an acknowledgement of an address that is not proven; returns whether it is the right one."""
        if is_right:
            self._is_proven = True
        elif not self._is_proven:
            self._guesses += 1
            if self._guesses > GUESSES and not self.is_over:
                self._lose("too many acknowledgements of nothing")
        return is_right

    def _take_regack(self, message: Message) -> None:
        out = self._out
        if out is not None and out.step is Step.PROBE:
            if self._proves(message.msg_id == out.message_id and message.topic_id == out.topic_id):
                self._answered()
                self._begin_delivery(out.publish, out)
                self._deliver_waiting()
            return
        if not self._proves(out is not None and out.step is Step.REGISTER and message.msg_id == out.message_id):
            return
        assert out is not None
        if message.code == ReturnCode.CONGESTION:
            return  # asked again after retry_interval
        self._answered()
        if message.code != ReturnCode.ACCEPTED:
            self._give_up(out.publish)
        else:
            self._topics.keep(out.publish.topic, out.topic_id)
            self._send_publish(out.publish, TopicKind.NORMAL, out.topic_id, out)
        self._deliver_waiting()

    def _take_puback(self, message: Message) -> None:
        out = self._out
        if not self._proves(out is not None and out.step is Step.PUBLISH and message.msg_id == out.message_id):
            if message.code == ReturnCode.INVALID_TOPIC_ID:
                self._topics.forget(message.topic_id)  # of a message with QoS 0
            return
        assert out is not None
        if message.code == ReturnCode.ACCEPTED:
            if out.publish.qos == 1:
                self._to_broker(Puback(out.publish.packet_id).encode(VERSION))
                self._next()
        elif message.code == ReturnCode.INVALID_TOPIC_ID and out.registered < 2 and self._topics.id_of(out.publish.topic):
            self._topics.forget(self._topics.registered(out.publish.topic))
            self._answered()
            self._begin_delivery(out.publish, out)
        elif message.code != ReturnCode.CONGESTION:
            self._answered()
            self._give_up(out.publish)
            self._deliver_waiting()

    def _take_pubrec(self, message: Message) -> None:
        out = self._out
        if not self._proves(out is not None and message.msg_id == out.message_id):
            self._send(Message(Kind.PUBREL, msg_id=message.msg_id).encode())
            return
        assert out is not None
        if out.step is Step.PUBLISH and out.publish.qos == 2:
            self._answered()
            out.step = Step.RECEIVED
            self._to_broker(Pubrec(out.publish.packet_id).encode(VERSION))
        elif out.step is Step.PUBREL:
            self._send(self._question)

    def _released(self, packet_id: int) -> None:
        """Handles PUBREL of the broker."""
        out = self._out
        if out is not None and out.publish.packet_id == packet_id and out.step in (Step.RECEIVED, Step.PUBREL):
            out.step = Step.PUBREL
            self._ask(Message(Kind.PUBREL, msg_id=out.message_id).encode())
        else:
            self._to_broker(Pubcomp(packet_id).encode(VERSION))

    def _take_pubcomp(self, message: Message) -> None:
        out = self._out
        if out is not None and out.step is Step.PUBREL and message.msg_id == out.message_id:
            self._to_broker(Pubcomp(out.publish.packet_id).encode(VERSION))
            self._next()

    def _resume(self) -> None:
        """Sends the message again that was on its way when the device slept or connected."""
        out = self._out
        if out is None:
            self._deliver_waiting()
        elif self._question:
            self._send(self._question)
            self._retries, self._retry_s = 0, self._now_s + self._settings.retry_interval
        elif out.step is Step.PUBREL:
            self._ask(Message(Kind.PUBREL, msg_id=out.message_id).encode())
        elif out.step is not Step.RECEIVED:
            self._begin_delivery(out.publish, out)  # its topic id was that of an earlier connection

    # --- sleep ----------------------------------------------------------------------------------------------------------------

    def _disconnect(self, message: Message) -> None:
        if not message.duration:
            if self._is_connected:
                self._to_broker(self._goodbye(0, ends=self._is_clean))
            self._send(_DISCONNECT)
            self.is_over = True
        elif self._state in _CONNECTED:
            self._sleep_s = TOLERANCE * message.duration
            self._sleep_until_s = self._now_s + self._sleep_s
            self._fall_asleep()
            self._send(_DISCONNECT)

    def _fall_asleep(self) -> None:
        """A device that sleeps keeps only what it needs: there may be many, for days."""
        self._state, self._retry_s = State.ASLEEP, inf
        self._incoming, self._works = self._incoming or NOTHING, self._works or NOTHING
        self._requests = self._requests or NOTHING
        self._hello = b""

    def _take_pingreq(self, message: Message) -> None:
        if message.data and message.data != self._client_id:
            self._send(_DISCONNECT)
        elif not message.data or self._state is State.ACTIVE:
            self._send(_PINGRESP)
        elif self._state is State.ASLEEP:
            self._state = State.AWAKE
            self._sleep_until_s = self._now_s + self._sleep_s
            self._resume()

    def _take_pingresp(self) -> None:
        """Handles PINGRESP of the broker: behind the last message for a device that is awake, it sleeps again."""
        self._pings = max(0, self._pings - 1)
        if self._state is not State.AWAKE or self._pings or self._out is not None or self._queue:
            return
        if self._dirty:
            self._dirty = False
            self._ping()
            return
        self._fall_asleep()
        self._send(_PINGRESP)

    def _ping(self) -> None:
        self._pings += 1
        super()._ping()

    # --- the rest -------------------------------------------------------------------------------------------------------------

    def _take(self, packet: Any) -> None:
        if type(packet) is Pingresp:
            self._take_pingresp()
        else:
            super()._take(packet)

    def _search(self, message: Message) -> None:
        self._send(Message(Kind.GWINFO, gateway_id=self._settings.gateway_id).encode())

    def _ask(self, question: bytes) -> None:
        """Sends a message that is sent again until it is answered."""
        self._question, self._retries, self._retry_s = question, 0, self._now_s + self._settings.retry_interval
        self._send(question)

    def _answered(self) -> None:
        self._question, self._retry_s = b"", inf

    def _retry(self) -> None:
        most = self._settings.max_retries
        if self._state in (State.WILL_TOPIC, State.WILL_MESSAGE):
            most = min(most, UNPROVEN_RETRIES)
        if self._retries >= most:
            if self._state is State.AWAKE:
                self._fall_asleep()
            else:
                self._lose(f"no answer after max_retries = {most}")
            return
        self._retries += 1
        self._retry_s = self._now_s + self._settings.retry_interval
        self._figures["retries"] += 1
        question = self._question
        at = 4 if question[0] == LONG_FORM else 2
        if question[at - 1] == Kind.PUBLISH:
            question = self._question = question[:at] + bytes((question[at] | DUP,)) + question[at + 1 :]
        self._send(question)

    def _goodbye(self, code: int, ends: bool = False) -> bytes:
        """Returns DISCONNECT for the broker. ends: the session too."""
        found: bytes = Disconnect(code, {PropertyId.SESSION_EXPIRY_INTERVAL: 0} if ends else None).encode(VERSION)
        return found

    def _lose(self, text: str) -> None:
        """Ends the session of a device that does not answer; its will is published (MQTT-SN §6.12)."""
        if self._is_connected:
            self._to_broker(self._goodbye(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE, ends=self._is_clean))
        self._end(text, _DISCONNECT)

    def _refuse(self, code: ReturnCode, text: str) -> None:
        """Rejects a CONNECT."""
        if self._is_connected:
            self._to_broker(self._goodbye(0, ends=self._is_clean))
        self._end(text, _connack(code) if self._early is None else _DISCONNECT)

    def _fail(self, text: str) -> None:
        if self._state in (State.NEW, State.WILL_TOPIC, State.WILL_MESSAGE, State.OPENING):
            self._refuse(ReturnCode.CONGESTION, text)
            return
        if self._is_connected:
            self._to_broker(self._goodbye(0))
        self._end(text, _DISCONNECT)

    def _taken_over(self, text: str) -> None:
        if self._settings.processes == 1:
            self._fail(text)
        else:  # DISCONNECT would end the device's new connection
            self._end(text, b"")

    def _end(self, text: str, last: bytes) -> None:
        self._figures["errors"] += 1
        self.reason = text
        if last:
            self._send(last)
        self.is_over = True

    def _forget_messages(self) -> None:
        """Forgets what belongs to an MQTT session that is no more."""
        self._incoming = self._works = NOTHING
        self._requests = NOTHING
        self._recent = ()
        self._queue = self._out = None

    def _next_message_id(self) -> int:
        self._last_message_id = self._last_message_id % IDS + 1
        return self._last_message_id

    def _send(self, data: bytes) -> None:
        if not self._is_proven:
            if len(data) > self._credit:
                self._figures["withheld"] += 1
                return
            self._credit -= len(data)
        self._figures["sent"] += 1
        self.to_device.append(data)


def _of_will(will: Will | None) -> tuple[bytes, bytes, int, bool] | None:
    """Returns a will as plain values. A device gives it no properties."""
    return None if will is None else (will.topic, will.payload, will.qos, will.retain)


def _is_client_id(data: bytes) -> bool:
    try:
        return bool(data) and "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def _connack(code: ReturnCode) -> bytes:
    return Message(Kind.CONNACK, code=code).encode()


def _acknowledgement(kind: Kind, topic_id: int, message_id: int, code: ReturnCode) -> bytes:
    return _ACKNOWLEDGEMENT.pack(7, kind, topic_id, message_id, code)


def _code_of(code: int) -> ReturnCode:
    """Returns the return code for a reason code of the broker."""
    if code in _CONGESTED:
        return ReturnCode.CONGESTION
    return ReturnCode.INVALID_TOPIC_ID if code in _BAD_TOPIC else ReturnCode.NOT_SUPPORTED


_CONNECTED = frozenset({State.ACTIVE, State.ASLEEP, State.AWAKE})
_ALWAYS = frozenset({Kind.WILLTOPIC, Kind.WILLMSG, Kind.DISCONNECT, Kind.SEARCHGW})
"""Messages that are handled before CONNACK."""
_HANDLERS = {
    Kind.SEARCHGW: MqttSnSession._search,
    Kind.WILLTOPIC: MqttSnSession._take_will_topic,
    Kind.WILLMSG: MqttSnSession._take_will_message,
    Kind.REGISTER: MqttSnSession._register,
    Kind.REGACK: MqttSnSession._take_regack,
    Kind.PUBLISH: MqttSnSession._publish,
    Kind.PUBACK: MqttSnSession._take_puback,
    Kind.PUBREC: MqttSnSession._take_pubrec,
    Kind.PUBREL: MqttSnSession._release,
    Kind.PUBCOMP: MqttSnSession._take_pubcomp,
    Kind.SUBSCRIBE: MqttSnSession._subscribe,
    Kind.UNSUBSCRIBE: MqttSnSession._unsubscribe,
    Kind.PINGREQ: MqttSnSession._take_pingreq,
    Kind.DISCONNECT: MqttSnSession._disconnect,
    Kind.WILLTOPICUPD: MqttSnSession._update_will_topic,
    Kind.WILLMSGUPD: MqttSnSession._update_will_message,
}
