"""One connection of a device whose protocol a program speaks, as a session of MQTT 5.0, without I/O.

    socket is there, has bytes, is gone   -> OnSocketCreated, OnReceivedBytes, OnSocketClosed
    Authenticate                          -> CONNECT               its answer follows CONNACK
    Publish                               -> PUBLISH               its answer follows PUBACK or PUBCOMP
    Subscribe, Unsubscribe                -> the same              their answers follow SUBACK and UNSUBACK
    PUBLISH of the broker                 -> OnReceivedMessages    PUBACK or PUBREC follows the answer of the program

Events are taken one after the other (`next_event`, `event_done`): bytes and messages that arrive meanwhile go together into the
next one. What waits is bounded: the device is not read above WAITING_BYTES, nor is the broker.
"""

from collections import deque
from collections.abc import Callable
from enum import IntEnum
from math import inf
from typing import Any, NamedTuple, Protocol

from shardbroker.gateways.session import (
    FIELD_MAX,
    VERSION,
    WINDOW,
    GatewaySession,
    IdentityError,
    Link,
    client_id_of,
    login_of,
    reason_text,
)
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
)  # fmt: skip
from shardbroker.mqtt.spec import FAILURE, PacketType, PropertyId, ReasonCode
from shardbroker.mqtt.topics import check_topic_filter, check_topic_name

__all__ = ["FIGURES", "Code", "Event", "ExProtoSession", "Hub", "Reply"]

FIGURES = (
    "received", "sent", "messages_in", "messages_out", "messages_dropped", "errors", "timeouts", "calls", "calls_refused",
    "events", "events_failed", "malformed", "unknown_dropped", "lost",
)  # fmt: skip
"""Counts of a gateway: pieces of bytes in both directions, messages in both directions, messages and datagrams that were dropped,
connections that ended with an error, silent devices; calls of the program, those not answered by SUCCESS; events to the program,
those that failed; the last three as of other gateways for datagrams."""
WAITING_BYTES = 256 << 10
"""Bytes of a device, or of messages for it, that wait for the program; above it, the side that they come from is not read."""
PIECE_BYTES = 64
"""What a piece or a message that waits counts beside its bytes: memory of its objects, and the work that it makes."""
BATCH = 100
"""Most messages of one event."""
UNSENT_BYTES = 1 << 20
"""Bytes that wait for a device that does not read; above it, Send is refused."""
RETAIN_FOR_NEW = 0x10
"""Retained messages only for a new subscription (MQTT 5.0 §3.8.3.1)."""
KEEPALIVE = 0
SOCKET_TYPES = {"tcp": 0, "ssl": 1, "udp": 2, "dtls": 3}


class Code(IntEnum):
    """ResultCode of exproto.proto."""

    SUCCESS = 0
    UNKNOWN = 1
    CONN_PROCESS_NOT_ALIVE = 2
    REQUIRED_PARAMS_MISSED = 3
    PARAMS_TYPE_ERROR = 4
    PERMISSION_DENY = 5


Reply = Callable[[Code, str], None]
"""Takes the answer to a call, once."""


class Event(NamedTuple):
    """A method of the program's service with the fields of its request beside `conn`."""

    method: str
    fields: dict[str, Any]
    acknowledged: tuple[tuple[int, int], ...] = ()
    """(packet id, QoS) of the messages in it."""


class Hub(Protocol):
    """What all sessions of the gateway share."""

    node: str
    """Name of the broker in messages."""

    def opened(self, session: "ExProtoSession") -> None:
        """Notes a connection: calls for its `conn` are passed to it."""

    def closed(self, session: "ExProtoSession") -> None:
        """Notes the end of a connection."""

    def wake(self, session: "ExProtoSession") -> None:
        """Takes the next event of a session, unless it is busy with one."""

    def now_ms(self) -> int:
        """Returns milliseconds since 1970."""


class _Call(NamedTuple):
    reply: Reply
    what: str


class ExProtoSession(GatewaySession):
    """settings: `gateways.exproto`. levels: most levels of a topic. conn: the name of this connection. figures: counts by name
    (FIGURES), shared by all sessions.
    """

    __slots__ = (
        "_calls", "_client_id", "_close_sent", "_deadline_s", "_events", "_flush", "_heard_s", "_hub", "_keepalive_s", "_levels",
        "_link", "_messages", "_messages_bytes", "_received_ids", "_sends", "_settings", "_unread", "_unread_bytes", "_unsent",
        "_waiting", "conn",
    )  # fmt: skip

    def __init__(
        self, hub: Hub, settings: Any, levels: int, conn: str, server: str, figures: dict[str, int], now_s: float
    ) -> None:
        super().__init__(figures, now_s)
        self.conn = conn
        self._hub, self._settings, self._levels = hub, settings, levels
        self._link: Link | None = None
        self._flush: Callable[[], None] = lambda: None
        self._client_id = ""
        self._close_sent = False
        self._events: deque[Event] = deque()
        """Without bytes and messages, which wait on their own."""
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._messages: deque[tuple[Publish, int]] = deque()
        self._messages_bytes = 0
        self._received_ids: set[int] = set()
        """Packet ids of QoS 2 whose PUBREL is awaited."""
        self._calls: dict[int, _Call] = {}
        """By packet id; 0: CONNECT."""
        self._waiting: deque[tuple[int, bytes, bytes, Reply]] = deque()
        """PUBLISH without room in the window: QoS, topic, payload."""
        self._sends: list[Reply] = []
        """Of calls whose bytes the device has not taken."""
        self._unsent = 0
        self._heard_s, self._keepalive_s = now_s, inf
        self._deadline_s: float = now_s + settings.idle_timeout

    # --- what the shell calls -------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        return self._client_id

    @property
    def reads_device(self) -> bool:
        return self.is_over or self._unread_bytes < WAITING_BYTES

    @property
    def reads_broker(self) -> bool:
        return self._messages_bytes < WAITING_BYTES

    @property
    def deadline_s(self) -> float:
        return min(super().deadline_s, self._deadline_s, self._heard_s + self._keepalive_s)

    def began(self, link: Link) -> None:
        self._link, self._flush = link, link.flush
        self._hub.opened(self)
        info = {
            "socktype": SOCKET_TYPES[link.kind],
            "peername": {"host": link.peer[0], "port": link.peer[1]},
            "sockname": {"host": link.own[0], "port": link.own[1]},
        }
        if link.certificate:
            info["peercert"] = _certificate(link.certificate)
        self._event(Event("OnSocketCreated", {"conninfo": info}))

    def from_device(self, data: bytes, now_s: float) -> None:
        self._now_s = self._heard_s = now_s
        if self.is_over:
            return
        if self._link is not None and self._link.kind in ("udp", "dtls") and not self.reads_device:
            self._figures["messages_dropped"] += 1
            return
        self._figures["received"] += 1
        self._unread.append(data)
        self._unread_bytes += len(data) + PIECE_BYTES
        self._hub.wake(self)

    def go_on(self, now_s: float) -> None:
        self._now_s = now_s
        if not self.is_device_slow and self._sends:
            self._unsent = 0
            replies, self._sends = self._sends, []
            for reply in replies:
                reply(Code.SUCCESS, "")
        self._publish_waiting()

    def flush_by(self, flush: Callable[[], None]) -> None:
        """Notes the shell of a session without a device."""
        self._flush = flush

    def flush(self) -> None:
        """Lets the shell send what calls and events have left."""
        self._flush()

    def device_lost(self) -> None:
        """Notes that the device has closed the connection."""
        if not self.is_over:
            self._close("the device has closed the connection")

    def tick(self, now_s: float) -> None:
        self._now_s = now_s
        if self.is_over:
            return
        if now_s >= self._deadline_s:
            self._figures["timeouts"] += 1
            text = "the broker did not answer" if self.wants_broker else "not authenticated"
            self._fail(f"{text} within idle_timeout = {self._settings.idle_timeout:g} s")
        elif now_s >= self._heard_s + self._keepalive_s:
            if not self.reads_device:
                self._heard_s = now_s  # what it has sent is not read
                return
            self._figures["timeouts"] += 1
            self._events.append(Event("OnTimerTimeout", {"type": KEEPALIVE}))
            self._fail(f"no bytes within {self._keepalive_s:g} s")
        else:
            super().tick(now_s)

    # --- events, in order -----------------------------------------------------------------------------------------------------

    def next_event(self) -> Event | None:
        """Returns what the program is to hear next; None: nothing. Bytes come before the end, the end comes last."""
        if self._events and self._events[0].method == "OnSocketCreated":
            return self._events.popleft()
        if self._unread:
            if self._link is not None and self._link.kind in ("udp", "dtls"):
                data = self._unread.popleft()  # a datagram is a message
                self._unread_bytes -= len(data) + PIECE_BYTES
            else:
                data = b"".join(self._unread)
                self._unread.clear()
                self._unread_bytes = 0
            return Event("OnReceivedBytes", {"bytes": data})
        if self._messages and not self.is_over:
            batch = [self._messages.popleft() for _ in range(min(BATCH, len(self._messages)))]
            self._messages_bytes -= sum(map(_size, batch))
            self._figures["messages_out"] += len(batch)
            rows = [
                {
                    "node": self._hub.node, "id": f"{self.conn}-{publish.packet_id}", "qos": publish.qos,
                    "topic": publish.topic.decode(), "payload": publish.payload, "timestamp": at_ms,
                }
                for publish, at_ms in batch
            ]  # fmt: skip
            return Event("OnReceivedMessages", {"messages": rows}, tuple((one.packet_id, one.qos) for one, _ in batch if one.qos))
        return self._events.popleft() if self._events else None

    def event_done(self, event: Event) -> None:
        """Notes that the program has taken an event."""
        self._figures["events"] += 1
        if self._is_connected and not self.is_over:
            for packet_id, qos in event.acknowledged:
                if qos == 2:
                    self._received_ids.add(packet_id)
                self._to_broker((Puback if qos == 1 else Pubrec)(packet_id).encode(VERSION))

    def event_failed(self, reason: str) -> None:
        """Notes that the program has not taken an event: the connection ends, since it would miss something."""
        self._figures["events_failed"] += 1
        self._events.clear()
        self._unread.clear()
        self._close_sent = True  # the program is not there to hear it
        if not self.is_over:
            self._fail(f"the program does not answer: {reason}")

    def _event(self, event: Event) -> None:
        self._events.append(event)
        self._hub.wake(self)

    # --- calls of the program -------------------------------------------------------------------------------------------------

    def send(self, data: bytes, reply: Reply) -> None:
        """Sends bytes to the device."""
        if self.is_over:
            reply(*_GONE)
        elif self.is_device_slow and self._unsent + len(data) > UNSENT_BYTES:
            reply(Code.UNKNOWN, f"the device has not read {self._unsent} bytes; {UNSENT_BYTES} may wait")
        else:
            self._figures["sent"] += 1
            if data:
                self.to_device.append(data)
            if self.is_device_slow:
                self._unsent += len(data)
                self._sends.append(reply)
            else:
                reply(Code.SUCCESS, "")

    def close(self, reply: Reply) -> None:
        """Ends the connection."""
        if self.is_over:
            reply(*_GONE)
            return
        if self._is_connected:
            self._to_broker(Disconnect().encode(VERSION))
        self._close("closed by the program")
        reply(Code.SUCCESS, "")

    def authenticate(self, info: Any, password: str, reply: Reply) -> None:
        """Connects a client to the broker. info: ClientInfo."""
        missing = [name for name in ("proto_name", "proto_ver", "clientid") if not getattr(info, name)]
        if self.is_over:
            reply(*_GONE)
        elif missing:
            reply(Code.REQUIRED_PARAMS_MISSED, f"clientinfo: {', '.join(missing)} must be set")
        elif self.wants_broker:
            reply(Code.PERMISSION_DENY, "the connection is already authenticated")
        elif max(len(text.encode()) for text in (info.clientid, info.username, password)) > FIELD_MAX:
            reply(Code.PARAMS_TYPE_ERROR, f"clientid, username and password: must be at most {FIELD_MAX} bytes")
        else:
            override = self._settings.clientinfo_override
            name, own = info.clientid.encode(), (info.username.encode() or None, password.encode() or None)
            try:
                full_name = client_id_of(override, name, own[0])
            except IdentityError as error:
                reply(Code.PERMISSION_DENY, str(error))
                return
            self._client_id = full_name.decode()
            self._calls[0] = _Call(reply, "Authenticate")
            expiry_s = int(self._settings.session_expiry_interval)
            properties: dict[int, Any] = {PropertyId.RECEIVE_MAXIMUM: self._settings.max_inflight}
            if expiry_s:
                properties[PropertyId.SESSION_EXPIRY_INTERVAL] = expiry_s
            connect = Connect(VERSION, full_name, not expiry_s, 0, *login_of(override, name, *own), properties=properties)
            self._dial(connect.encode(VERSION))
            self._deadline_s = self._now_s + self._settings.idle_timeout

    def start_timer(self, kind: int, interval_s: int, reply: Reply) -> None:
        """Ends the connection, from now on, if no bytes are received for `interval_s`."""
        if self._refuses(reply):
            return
        if kind != KEEPALIVE or not interval_s:
            reply(Code.PARAMS_TYPE_ERROR, "must be type KEEPALIVE with an interval of at least 1 s")
            return
        self._keepalive_s, self._heard_s = float(interval_s), self._now_s
        reply(Code.SUCCESS, "")

    def publish(self, topic: str, qos: int, payload: bytes, reply: Reply) -> None:
        """Publishes a message of the client."""
        if self._refuses(reply) or not _fits(topic, qos, reply):
            return
        name = topic.encode()
        try:
            check_topic_name(name, self._levels)
        except MqttError as error:
            reply(Code.PARAMS_TYPE_ERROR, f"topic: {error.message}")
            return
        if qos > self._max_qos:
            reply(Code.PERMISSION_DENY, f"mqtt.max_qos_allowed = {self._max_qos}")
        elif len(name) + len(payload) + 16 > self._packet_max:
            reply(Code.PARAMS_TYPE_ERROR, f"the message is larger than mqtt.max_packet_size = {self._packet_max} bytes")
        elif len(self._waiting) >= WINDOW:
            reply(Code.UNKNOWN, f"{WINDOW} messages wait for the broker already")
        else:
            self._waiting.append((qos, name, payload, reply))
            self._publish_waiting()

    def _publish_waiting(self) -> None:
        while self._waiting and self._is_connected and len(self._calls) < self._room and not (self.is_broker_slow or self.is_over):
            qos, topic, payload, reply = self._waiting.popleft()
            self._figures["messages_in"] += 1
            packet_id = self._number(reply, f"Publish to {topic.decode()}") if qos else 0
            self._to_broker(encode_publishes([(qos << 1, packet_id, topic, b"", payload)], VERSION))
            if not qos:
                reply(Code.SUCCESS, "")

    def subscribe(self, text: str, qos: int, reply: Reply) -> None:
        """Subscribes the client to a topic filter."""
        if self._refuses(reply) or not _fits(text, qos, reply) or not self._is_filter(text, reply):
            return
        packet_id = self._number(reply, f"Subscribe to {text}")
        self._to_broker(Subscribe(packet_id, [(text.encode(), qos | RETAIN_FOR_NEW)]).encode(VERSION))

    def unsubscribe(self, text: str, reply: Reply) -> None:
        """Ends a subscription of the client."""
        if self._refuses(reply) or not _fits(text, 0, reply) or not self._is_filter(text, reply):
            return
        self._to_broker(Unsubscribe(self._number(reply, f"Unsubscribe from {text}"), [text.encode()]).encode(VERSION))

    def _refuses(self, reply: Reply) -> bool:
        if self.is_over:
            reply(*_GONE)
        elif not self._is_connected and self.conn:
            reply(Code.PERMISSION_DENY, "the connection is not authenticated")
        elif len(self._calls) >= CALLS_MAX:
            reply(Code.UNKNOWN, f"{CALLS_MAX} calls wait for the broker already")
        else:
            return False
        return True

    def _is_filter(self, text: str, reply: Reply) -> bool:
        try:
            check_topic_filter(text.encode(), self._levels)
        except MqttError as error:
            reply(Code.PARAMS_TYPE_ERROR, f"topic: {error.message}")
            return False
        return True

    def _number(self, reply: Reply, what: str) -> int:
        packet_id = self._next_id(self._calls)
        self._calls[packet_id] = _Call(reply, what)
        return packet_id

    # --- packets of the broker ------------------------------------------------------------------------------------------------

    def _requested(self, packet: Suback | Unsuback) -> None:
        self._answer(packet.packet_id, max(packet.codes, default=0))

    def _accepted(self, connack: Connack) -> None:
        if connack.reason_code:
            text = reason_text(connack.reason_code, connack.properties)
            self._answer(0, connack.reason_code, text)
            self._fail(f"the broker rejects the client: {text}")
            return
        super()._accepted(connack)
        self._deadline_s = inf
        self._answer(0, 0)

    def _acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        if kind == PacketType.PUBREL:
            self._received_ids.discard(packet_id)
            self._to_broker(Pubcomp(packet_id).encode(VERSION))
        elif kind == PacketType.PUBREC and code < FAILURE:
            self._to_broker(Pubrel(packet_id).encode(VERSION))
        else:
            self._answer(packet_id, code)
            self._publish_waiting()

    def _deliver(self, publish: Publish) -> None:
        if publish.qos == 2 and publish.packet_id in self._received_ids:
            self._to_broker(Pubrec(publish.packet_id).encode(VERSION))
            return
        message = publish, self._hub.now_ms()
        self._messages.append(message)
        self._messages_bytes += _size(message)
        self._hub.wake(self)

    def _answer(self, packet_id: int, code: int, text: str = "") -> None:
        call = self._calls.pop(packet_id, None)
        if call is None:
            raise MqttError(ReasonCode.PROTOCOL_ERROR, "an acknowledgement of an unknown message")
        if code >= FAILURE:
            call.reply(Code.PERMISSION_DENY, f"{call.what}: {text or reason_text(code)}")
        else:
            call.reply(Code.SUCCESS, "")

    # --- the end --------------------------------------------------------------------------------------------------------------

    def _fail(self, text: str) -> None:
        self._figures["errors"] += 1
        self.reason = text
        self._close(text)

    def _close(self, reason: str) -> None:
        """Ends the connection: no call waits any longer, and the program hears of it last."""
        self.is_over = True
        calls = [*(call.reply for call in self._calls.values()), *(reply for *_, reply in self._waiting), *self._sends]
        self._calls.clear()
        self._waiting.clear()
        self._sends.clear()
        self._messages.clear()
        self._messages_bytes = 0
        for reply in calls:
            reply(Code.CONN_PROCESS_NOT_ALIVE, reason)
        self._hub.closed(self)
        if self.conn and not self._close_sent:
            self._close_sent = True
            self._event(Event("OnSocketClosed", {"reason": reason}))


CALLS_MAX = 60_000
"""Calls of a connection that wait for the broker: packet ids are fewer than 65,536."""
_GONE = Code.CONN_PROCESS_NOT_ALIVE, "the connection has ended"


def _size(message: tuple[Publish, int]) -> int:
    return len(message[0].payload) + len(message[0].topic) + PIECE_BYTES


def _fits(topic: str, qos: int, reply: Reply) -> bool:
    if not topic:
        reply(Code.REQUIRED_PARAMS_MISSED, "topic: must be set")
    elif qos > 2:
        reply(Code.PARAMS_TYPE_ERROR, f"qos: must be 0, 1 or 2, got {qos}")
    elif len(topic.encode()) > FIELD_MAX:
        reply(Code.PARAMS_TYPE_ERROR, f"topic: must be at most {FIELD_MAX} bytes")
    else:
        return True
    return False


def _certificate(found: dict[str, Any]) -> dict[str, str]:
    """Returns the common name and the subject of a certificate as `ssl` shows it."""
    parts = [pair for each in found.get("subject", ()) for pair in each]
    return {
        "cn": next((value for name, value in parts if name == "commonName"), ""),
        "dn": ",".join(f"{SHORT_NAMES.get(name, name)}={value}" for name, value in parts),
    }


SHORT_NAMES = {
    "commonName": "CN", "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST", "organizationName": "O",
    "organizationalUnitName": "OU",
}  # fmt: skip
