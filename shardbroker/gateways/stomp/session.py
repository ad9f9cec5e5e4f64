"""One STOMP connection as a session of MQTT 5.0, without I/O: bytes, time and events in, bytes and deadlines out.

    SEND         -> PUBLISH, QoS 1 unless it asks for 0      its RECEIPT follows PUBACK
    SUBSCRIBE    -> SUBSCRIBE, QoS 1, once for each filter   its RECEIPT follows SUBACK
    PUBLISH      -> MESSAGE for each subscription whose filter it matched, found by the Subscription Identifier
    ACK, NACK    -> PUBACK, once all MESSAGE frames of one PUBLISH are acknowledged; after NACK with the reason code 0x80
    DISCONNECT   -> DISCONNECT, after the answers to all frames before it

The Subscription Identifier depends on the filter alone. So messages of a session that is resumed find their subscription as soon as
the client has subscribed again; until then they are kept, and reading from the broker stops at ORPHAN_BYTES.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple
from zlib import crc32

from shardbroker.gateways.session import VERSION, WINDOW, GatewaySession, IdentityError, client_id_of, login_of, reason_text
from shardbroker.gateways.stomp.codec import V10, V11, V12, Frame, FrameReader, StompError, encode_frame
from shardbroker.mqtt.batches import encode_publishes
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    encode_properties,
)  # fmt: skip
from shardbroker.mqtt.spec import FAILURE, PacketType, PropertyId, ReasonCode
from shardbroker.mqtt.topics import check_topic_filter, check_topic_name, matches

__all__ = ["FIGURES", "StompSession"]

VERSIONS = (V12, V11, V10)
"""The highest common one is used."""
IDENTIFIERS = 268_435_455
"""Subscription Identifiers (MQTT 5.0 §3.8.2.1.2)."""
ORPHAN_BYTES = 1 << 20
"""Bytes of messages of a resumed session that wait for their subscription; above it, the broker is not read."""
LEAST_BEAT_MS = 1000
"""Least interval of heart-beats that is agreed on: a smaller one would cost more than messages do."""
MOST_BEAT_MS = 86_400_000
SILENCE = 2.0
"""Intervals without a byte after which a client is gone: STOMP 1.2 "Heart-beating" asks for a margin of error."""
EARLY = 0.8
"""Share of the interval after which the gateway sends its heart-beat."""
ACK_MODES = ("auto", "client", "client-individual")
SUBSCRIBE_OPTIONS = 0x11
"""QoS 1; retained messages only for a new subscription (MQTT 5.0 §3.8.3.1)."""
OWN_HEADERS = frozenset({"destination", "content-length", "content-type", "receipt", "transaction", "qos", "retain"})
"""Headers of SEND that are no user properties."""
RESERVED = frozenset({"destination", "content-length", "content-type", "message-id", "subscription", "ack", "retain"})
"""Headers of MESSAGE that a user property does not replace."""
FIGURES = ("received", "sent", "messages_in", "messages_out", "messages_dropped", "errors", "timeouts")
"""Counts of a gateway: frames in both directions, SEND and MESSAGE among them, MESSAGE not sent, ERROR, silent clients."""


class _Message(NamedTuple):
    """A SEND as a PUBLISH. flags: QoS << 1 | RETAIN."""

    flags: int
    topic: bytes
    properties: bytes
    payload: bytes


@dataclass(slots=True)
class _Work:
    """What a client waits for: `left` answers of the broker, then RECEIPT."""

    receipt: str | None
    what: str
    left: int = 1


@dataclass(slots=True)
class _Delivery:
    """A PUBLISH of the broker: acknowledged when `left` is 0."""

    packet_id: int
    left: int = 0
    rejected: bool = False


@dataclass(slots=True)
class _Filter:
    """A topic filter with the subscriptions that share it."""

    text: bytes
    identifier: int
    subscriptions: list["_Subscription"] = field(default_factory=list)


@dataclass(slots=True)
class _Subscription:
    key: str
    """`id`, or in 1.0 without one the destination."""
    id: str | None
    filter: _Filter
    mode: str
    pending: dict[str, _Delivery] = field(default_factory=dict)
    """Deliveries that the client has not acknowledged, by `ack`, oldest first."""


class StompSession(GatewaySession):
    """settings: `gateways.stomp`. levels: most levels of a topic. fallback_id: client id without a header `client-id`. figures:
    counts by name (FIGURES), shared by all sessions.
    """

    def __init__(self, settings: Any, levels: int, fallback_id: str, server: str, figures: dict[str, int], now_s: float) -> None:
        super().__init__(figures, now_s)
        frame = settings.frame
        self._settings, self._levels, self._fallback_id, self._server = settings, levels, fallback_id, server
        self._reader = FrameReader(frame.max_headers, frame.max_headers_length, frame.max_body_length)
        self._version = V10
        self._is_leaving = False
        self._leave_receipt: str | None = None
        self._client_id = ""
        self._last_ack = 0
        self._works: dict[int, _Work] = {}
        """By packet id of PUBLISH."""
        self._requests: dict[int, tuple[_Work, _Filter]] = {}
        """By packet id of SUBSCRIBE and UNSUBSCRIBE."""
        self._waiting: deque[tuple[_Work, _Message]] = deque()
        """Messages of a transaction for which the window has no room."""
        self._transactions: dict[str, list[_Message | Frame]] = {}
        """Messages, and frames that acknowledge."""
        self._filters: dict[bytes, _Filter] = {}
        self._identifiers: dict[int, _Filter] = {}
        self._subscriptions: dict[str, _Subscription] = {}
        self._pending: dict[str, _Subscription] = {}
        self._orphans: deque[Publish] = deque()
        self._orphan_bytes = 0
        self._orphans_until_s = inf
        self._connect_until_s: float = now_s + settings.idle_timeout
        self._heard_s = self._sent_s = now_s
        self._device_beat_s = self._own_beat_s = inf

    # --- what the shell calls -------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        return self._client_id

    @property
    def reads_device(self) -> bool:
        """Whether the device may be read: not while frames that were read cannot be handled."""
        return self.is_over or self._takes_frames

    @property
    def reads_broker(self) -> bool:
        """Whether the broker may be read: not while the device does not take what it has got."""
        return not self.is_device_slow and self._orphan_bytes < ORPHAN_BYTES

    @property
    def deadline_s(self) -> float:
        """Returns when tick() has something to do."""
        return min(
            super().deadline_s, self._connect_until_s, self._orphans_until_s, self._heard_s + self._device_beat_s,
            self._sent_s + self._own_beat_s,
        )  # fmt: skip

    def from_device(self, data: bytes, now_s: float) -> None:
        """Handles received bytes of the device."""
        self._now_s = self._heard_s = now_s
        if not self.is_over:
            self._reader.feed(data)
            self.go_on(now_s)

    def go_on(self, now_s: float) -> None:
        """Handles frames that are already received, as far as there is room."""
        self._now_s = now_s
        try:
            while self._takes_frames:
                frame = self._reader.next()
                if frame is None:
                    break
                self._figures["received"] += 1
                self._handle(frame)
        except StompError as error:
            self._fail(str(error), error.receipt)

    def tick(self, now_s: float) -> None:
        """Does what is due."""
        self._now_s = now_s
        if self.is_over:
            return
        if now_s >= self._connect_until_s:
            self._figures["timeouts"] += 1
            waits_for = "the broker did not answer" if self.wants_broker else "no CONNECT"
            self._fail(f"{waits_for} within idle_timeout = {self._settings.idle_timeout:g} s")
        elif now_s >= self._orphans_until_s:
            self._fail(
                "the session has messages of subscriptions that this connection has not made: SUBSCRIBE to the same destinations, "
                "or CONNECT with clean-session:true"
            )
        elif now_s >= self._heard_s + self._device_beat_s:
            if self.reads_device:
                self._figures["timeouts"] += 1
                self._fail(f"no heart-beat within {self._device_beat_s:g} s")
            else:
                self._heard_s = now_s  # what it has sent is not read
        else:
            if now_s >= self._sent_s + self._own_beat_s:
                self._to_device(b"\n")
            super().tick(now_s)

    # --- frames of the device -------------------------------------------------------------------------------------------------

    @property
    def _takes_frames(self) -> bool:
        if self.is_over or self._is_leaving:
            return False
        if not self._is_connected:
            return not self.wants_broker
        has_room = len(self._works) < self._room and len(self._requests) < WINDOW
        return has_room and not (self._waiting or self.is_device_slow or self.is_broker_slow)

    def _handle(self, frame: Frame) -> None:
        command = frame.command
        if command in ("CONNECT", "STOMP"):
            if self._is_connected:
                raise StompError("the connection is already open", frame.headers.get("receipt"))
            self._connect(frame)
        elif not self._is_connected:
            raise StompError(f"the first frame must be CONNECT or STOMP, got {command}", frame.headers.get("receipt"))
        elif command == "NACK" and self._version == V10:
            raise StompError("NACK is not part of STOMP 1.0", frame.headers.get("receipt"))
        elif command in ("SEND", "ACK", "NACK") and "transaction" in frame.headers:
            self._gather(frame)
        else:
            getattr(self, _HANDLERS[command])(frame)

    def _connect(self, frame: Frame) -> None:
        headers = frame.headers
        accepted = headers.get("accept-version")
        offered = [V10] if accepted is None else [one.strip() for one in accepted.split(",")]
        version = next((one for one in VERSIONS if one in offered), None)
        if version is None:
            self._fail(f"no common version: this server speaks {', '.join(VERSIONS)}", None, [("version", ",".join(VERSIONS))])
            return
        if version == V10:
            headers = {name.strip(): value.strip() for name, value in headers.items()}
        self._version = self._reader.version = version
        self._beats(headers.get("heart-beat", "0,0"))
        client_id, login, passcode = headers.get("client-id"), headers.get("login"), headers.get("passcode")
        cleans = headers.get("clean-session") == "true" or not client_id
        self._client_id = client_id or self._fallback_id
        properties: dict[int, Any] = {PropertyId.RECEIVE_MAXIMUM: self._settings.max_inflight}
        if not cleans and self._settings.session_expiry_interval:
            properties[PropertyId.SESSION_EXPIRY_INTERVAL] = int(self._settings.session_expiry_interval)
        override, name = self._settings.clientinfo_override, self._client_id.encode()
        own = [None if one is None else one.encode() for one in (login, passcode)]
        try:
            full_name = client_id_of(override, name, own[0])
        except IdentityError as error:
            self._fail(str(error), frame.headers.get("receipt"))
            return
        self._client_id = full_name.decode()
        connect = Connect(VERSION, full_name, cleans, 0, *login_of(override, name, *own), properties=properties)
        self._dial(connect.encode(VERSION))
        self._connect_until_s = self._now_s + self._settings.idle_timeout

    def _beats(self, text: str) -> None:
        """Agrees on heart-beats: each side names what it can do and what it wants (STOMP 1.2 "Heart-beating")."""
        sends, comma, wants = text.partition(",")
        if not (comma and sends.strip().isdecimal() and wants.strip().isdecimal() and len(text) < 24):
            raise StompError(f"heart-beat must be two numbers of milliseconds, got {text[:40]!r}")
        from_device, from_us = (min(max(int(one), LEAST_BEAT_MS), MOST_BEAT_MS) if int(one) else 0 for one in (sends, wants))
        self._agreed = f"{from_us},{from_device}"
        self._beat_ms = from_device, from_us

    def _send(self, frame: Frame) -> None:
        message = self._message_of(frame)
        self._publish(message, _Work(frame.headers.get("receipt"), f"SEND to {frame.headers['destination']}"))

    def _message_of(self, frame: Frame) -> _Message:
        headers = frame.headers
        topic = frame.need("destination").encode()
        receipt = headers.get("receipt")
        qos, retain = headers.get("qos", "1"), headers.get("retain", "false")
        try:
            check_topic_name(topic, self._levels)
        except MqttError as error:
            raise StompError(f"SEND: destination {headers['destination'][:100]!r}: {error.message}", receipt) from None
        if qos not in ("0", "1") or retain not in ("true", "false"):
            raise StompError("SEND: qos must be 0 or 1, retain must be true or false", receipt)
        user = [(name.encode(), value.encode()) for name, value in headers.items() if name not in OWN_HEADERS]
        properties: dict[int, Any] = {PropertyId.USER_PROPERTY: user} if user else {}
        if "content-type" in headers:
            properties[PropertyId.CONTENT_TYPE] = headers["content-type"].encode()
        try:
            encoded = encode_properties(properties) if properties else b""
        except (ValueError, OverflowError):
            raise StompError("SEND: a header is too long for a message", receipt) from None
        if len(topic) + len(encoded) + len(frame.body) + 16 > self._packet_max:
            raise StompError(f"SEND: the message is larger than mqtt.max_packet_size = {self._packet_max} bytes", receipt)
        return _Message(int(qos) << 1 | (retain == "true"), topic, encoded, frame.body)

    def _publish(self, message: _Message, work: _Work) -> None:
        self._figures["messages_in"] += 1
        self._waiting.append((work, message))
        self._publish_waiting()

    def _publish_waiting(self) -> None:
        while self._waiting and len(self._works) < self._room:
            work, message = self._waiting.popleft()
            packet_id = 0
            if message.flags & 6:
                packet_id = self._next_id(self._works, self._requests)
                self._works[packet_id] = work
            self._to_broker(encode_publishes([(message.flags, packet_id, *message[1:])], VERSION))
            if not packet_id:
                self._answered(work)

    def _subscribe(self, frame: Frame) -> None:
        headers = frame.headers
        destination, receipt = frame.need("destination"), headers.get("receipt")
        id = headers.get("id") if self._version == V10 else frame.need("id")
        mode = headers.get("ack", "auto")
        if mode not in ACK_MODES or (mode == ACK_MODES[2] and self._version == V10):
            raise StompError(f"SUBSCRIBE: ack must be one of {', '.join(ACK_MODES)}, got {mode[:40]!r}", receipt)
        key = destination if id is None else id
        if key in self._subscriptions:
            raise StompError(f"SUBSCRIBE: the subscription {key[:100]!r} exists", receipt)
        if len(self._subscriptions) >= self._settings.max_subscriptions:
            raise StompError(f"SUBSCRIBE: more subscriptions than max_subscriptions = {self._settings.max_subscriptions}", receipt)
        text = destination.encode()
        try:
            check_topic_filter(text, self._levels)
        except MqttError as error:
            raise StompError(f"SUBSCRIBE: destination {destination[:100]!r}: {error.message}", receipt) from None
        found = self._filters.get(text)
        work = _Work(receipt, f"SUBSCRIBE to {destination}")
        if found is None:
            found = self._filters[text] = self._new_filter(text)
            packet_id = self._next_id(self._works, self._requests)
            properties = {PropertyId.SUBSCRIPTION_IDENTIFIER: [found.identifier]}
            self._to_broker(Subscribe(packet_id, [(text, SUBSCRIBE_OPTIONS)], properties).encode(VERSION))
            self._requests[packet_id] = work, found
        else:
            self._answered(work)
        subscription = self._subscriptions[key] = _Subscription(key, id, found, mode)
        found.subscriptions.append(subscription)
        self._deliver_orphans()

    def _new_filter(self, text: bytes) -> _Filter:
        identifier = crc32(text) % IDENTIFIERS + 1
        while identifier in self._identifiers:
            if self._identifiers[identifier].text == text:
                return self._identifiers[identifier]  # its UNSUBSCRIBE is under way
            identifier = identifier % IDENTIFIERS + 1
        found = self._identifiers[identifier] = _Filter(text, identifier)
        return found

    def _unsubscribe(self, frame: Frame) -> None:
        receipt = frame.headers.get("receipt")
        key = frame.headers.get("id")
        if key is None:
            key = frame.need("destination" if self._version == V10 else "id")
        subscription = self._subscriptions.pop(key, None)
        if subscription is None:
            raise StompError(f"UNSUBSCRIBE: no subscription {key[:100]!r}", receipt)
        for ack in [*subscription.pending]:
            self._settle(subscription, ack, rejected=True)
        shared = subscription.filter
        shared.subscriptions.remove(subscription)
        work = _Work(receipt, f"UNSUBSCRIBE from {shared.text.decode()}")
        if shared.subscriptions:
            self._answered(work)
            return
        del self._filters[shared.text]
        packet_id = self._next_id(self._works, self._requests)
        self._to_broker(Unsubscribe(packet_id, [shared.text]).encode(VERSION))
        self._requests[packet_id] = work, shared

    def _acknowledge(self, frame: Frame) -> None:
        """Handles ACK and NACK: `id` in 1.2, `message-id` and `subscription` in 1.1, `message-id` in 1.0."""
        ack, subscription = self._acknowledged_by(frame)
        if subscription is None:
            pass  # settled before, as by UNSUBSCRIBE
        elif subscription.mode == "client" and self._version != V10:
            for earlier in [*subscription.pending]:  # cumulative
                self._settle(subscription, earlier, frame.command == "NACK")
                if earlier == ack:
                    break
        else:
            self._settle(subscription, ack, frame.command == "NACK")
        self._receipt(frame.headers.get("receipt"))

    def _acknowledged_by(self, frame: Frame) -> tuple[str, _Subscription | None]:
        """Returns what is acknowledged and its subscription, None if that is settled."""
        ack = frame.need("id" if self._version == V12 else "message-id")
        if self._version == V11:
            frame.need("subscription")
        subscription = self._pending.get(ack)
        if subscription is None and not (ack.isdecimal() and len(ack) < 20 and 0 < int(ack) <= self._last_ack):
            raise StompError(f"{frame.command}: no message {ack[:100]!r}", frame.headers.get("receipt"))
        return ack, subscription

    def _begin(self, frame: Frame) -> None:
        name, receipt = frame.need("transaction"), frame.headers.get("receipt")
        if name in self._transactions:
            raise StompError(f"BEGIN: the transaction {name[:100]!r} exists", receipt)
        if len(self._transactions) >= self._settings.max_transactions:
            raise StompError(f"BEGIN: more transactions than max_transactions = {self._settings.max_transactions}", receipt)
        self._transactions[name] = []
        self._receipt(receipt)

    def _gather(self, frame: Frame) -> None:
        """Keeps a frame of a transaction. Its own RECEIPT means that it is kept."""
        name, receipt = frame.headers["transaction"], frame.headers.pop("receipt", None)
        frames, limit = self._transactions.get(name), self._settings.max_transaction_frames
        if frames is None:
            raise StompError(f"{frame.command}: no transaction {name[:100]!r}", receipt)
        if sum(map(len, self._transactions.values())) >= limit:
            raise StompError(f"{frame.command}: more frames in transactions than max_transaction_frames = {limit}", receipt)
        if frame.command == "SEND":
            frames.append(self._message_of(frame))
        else:
            self._acknowledged_by(frame)
            frames.append(frame)
        self._receipt(receipt)

    def _end_transaction(self, frame: Frame) -> None:
        """Handles COMMIT and ABORT."""
        name, receipt = frame.need("transaction"), frame.headers.get("receipt")
        frames = self._transactions.pop(name, None)
        if frames is None:
            raise StompError(f"{frame.command}: no transaction {name[:100]!r}", receipt)
        if frame.command == "ABORT":
            frames = []
        work = _Work(receipt, f"COMMIT of {name}", sum(isinstance(one, _Message) for one in frames))
        if not work.left:
            self._receipt(receipt)
        for one in frames:
            if isinstance(one, _Message):
                self._publish(one, work)
            else:
                self._acknowledge(one)

    def _disconnect(self, frame: Frame) -> None:
        self._is_leaving, self._leave_receipt = True, frame.headers.get("receipt")
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        if self._is_leaving and not (self._works or self._requests or self._waiting):
            self._receipt(self._leave_receipt)
            self._to_broker(Disconnect().encode(VERSION))
            self.is_over = True

    # --- packets of the broker ------------------------------------------------------------------------------------------------

    def _acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        work = self._works.pop(packet_id, None)
        if kind != PacketType.PUBACK or work is None:
            raise MqttError(ReasonCode.PROTOCOL_ERROR, "an acknowledgement of an unknown message")
        self._answered(work, code)
        self._publish_waiting()

    def _requested(self, packet: Suback | Unsuback) -> None:
        work, asked = self._requests.pop(packet.packet_id)
        if type(packet) is Unsuback and not asked.subscriptions:
            self._identifiers.pop(asked.identifier, None)
        self._answered(work, max(packet.codes, default=0))

    def _accepted(self, connack: Connack) -> None:
        if connack.reason_code:
            self._fail(f"the broker rejects the client: {reason_text(connack.reason_code, connack.properties)}")
            return
        super()._accepted(connack)
        self._connect_until_s = inf
        from_device, from_us = self._beat_ms
        headers = [("version", self._version), ("session", self._client_id), ("server", self._server), ("heart-beat", self._agreed)]
        self._frame("CONNECTED", headers)
        self._heard_s = self._now_s
        self._device_beat_s = from_device / 1000 * SILENCE if from_device else inf
        self._own_beat_s = from_us / 1000 * EARLY if from_us else inf

    def _answered(self, work: _Work, code: int = 0) -> None:
        """Notes one answer of the broker to what a client waits for."""
        if code >= FAILURE:
            self._fail(f"{work.what}: {reason_text(code)}", work.receipt)
            return
        work.left -= 1
        if not work.left:
            self._receipt(work.receipt)
        self._leave_if_done()

    def _deliver(self, publish: Publish) -> None:
        identifiers = (publish.properties or {}).get(PropertyId.SUBSCRIPTION_IDENTIFIER, ())
        filters = [self._identifiers[one] for one in identifiers if one in self._identifiers]
        if identifiers and not filters and publish.qos:
            self._orphans.append(publish)
            self._orphan_bytes += len(publish.payload) + len(publish.topic)
            self._orphans_until_s = min(self._orphans_until_s, self._now_s + self._settings.idle_timeout)
            return
        if not identifiers:  # of a subscription that an operator has added
            filters = [one for one in self._filters.values() if matches(one.text, publish.topic)]
        delivery = _Delivery(publish.packet_id, 1)
        head = self._message_headers(publish)
        subscriptions = [one for each in filters for one in each.subscriptions]
        self._figures["messages_dropped"] += not subscriptions
        for subscription in subscriptions:
            self._message(subscription, publish, head, delivery)
        self._count_down(delivery)

    def _message_headers(self, publish: Publish) -> list[tuple[str, str]]:
        properties = publish.properties or {}
        headers = [("destination", publish.topic.decode()), ("content-length", str(len(publish.payload)))]
        if PropertyId.CONTENT_TYPE in properties:
            headers.append(("content-type", properties[PropertyId.CONTENT_TYPE].decode()))
        if publish.retain:
            headers.append(("retain", "true"))
        for name, value in properties.get(PropertyId.USER_PROPERTY, ()):
            if name and name.decode() not in RESERVED:
                headers.append((name.decode(), value.decode()))
        return headers

    def _message(self, subscription: _Subscription, publish: Publish, head: list[tuple[str, str]], delivery: _Delivery) -> None:
        waits = subscription.mode != "auto"
        if waits and not publish.qos and len(self._pending) >= 2 * self._settings.max_inflight:
            self._figures["messages_dropped"] += 1  # QoS 0 has no window
            return
        self._last_ack += 1
        ack = str(self._last_ack)
        headers = [("message-id", ack), *head]
        if subscription.id is not None:
            headers.insert(0, ("subscription", subscription.id))
        if waits and self._version == V12:
            headers.insert(0, ("ack", ack))
        if waits:
            delivery.left += 1
            self._pending[ack] = subscription
            subscription.pending[ack] = delivery
        self._figures["messages_out"] += 1
        self._frame("MESSAGE", headers, publish.payload)

    def _settle(self, subscription: _Subscription, ack: str, rejected: bool = False) -> None:
        delivery = subscription.pending.pop(ack)
        del self._pending[ack]
        delivery.rejected = delivery.rejected or rejected
        self._count_down(delivery)

    def _count_down(self, delivery: _Delivery) -> None:
        delivery.left -= 1
        if not delivery.left and delivery.packet_id:
            code = ReasonCode.UNSPECIFIED_ERROR if delivery.rejected else 0
            self._to_broker(Puback(delivery.packet_id, code).encode(VERSION))

    def _deliver_orphans(self) -> None:
        waiting, self._orphans, self._orphan_bytes = self._orphans, deque(), 0
        until_s, self._orphans_until_s = self._orphans_until_s, inf
        for publish in waiting:
            self._deliver(publish)
        if self._orphans:
            self._orphans_until_s = until_s

    # --- output ---------------------------------------------------------------------------------------------------------------

    def _receipt(self, receipt: str | None) -> None:
        if receipt is not None:
            self._frame("RECEIPT", [("receipt-id", receipt)])

    def _frame(self, command: str, headers: list[tuple[str, str]], body: bytes = b"") -> None:
        self._figures["sent"] += 1
        self._to_device(encode_frame(self._version, command, headers, body))

    def _fail(self, text: str, receipt: str | None = None, headers: list[tuple[str, str]] | None = None) -> None:
        """Sends ERROR, after which the connection ends (STOMP 1.2 "ERROR")."""
        if self.is_over:
            return
        self._figures["errors"] += 1
        self.reason = text
        body = f"{text}\n".encode()
        head = [("message", text[:200]), ("content-type", "text/plain"), ("content-length", str(len(body))), *(headers or [])]
        if receipt is not None:
            head.append(("receipt-id", receipt))
        self._frame("ERROR", head, body)
        if self._is_connected:
            self._to_broker(Disconnect().encode(VERSION))
        self.is_over = True

    def _to_device(self, data: bytes) -> None:
        self.to_device.append(data)
        self._sent_s = self._now_s


_HANDLERS = {
    "SEND": "_send", "SUBSCRIBE": "_subscribe", "UNSUBSCRIBE": "_unsubscribe", "ACK": "_acknowledge", "NACK": "_acknowledge",
    "BEGIN": "_begin", "COMMIT": "_end_transaction", "ABORT": "_end_transaction", "DISCONNECT": "_disconnect",
}  # fmt: skip
