"""What the sessions of all gateways have in common: the MQTT 5.0 side of a device, without I/O."""

from collections.abc import Callable, Container, Mapping
from math import inf
from typing import Any, ClassVar, NamedTuple

from shardbroker.config.gateways import TEMPLATE, ClientInfoOverride
from shardbroker.mqtt.batches import split_packets
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.packets import Connack, Disconnect, Pingreq, Publish, Suback, Unsuback
from shardbroker.mqtt.spec import REASON_CODES, PropertyId, ReasonCode

__all__ = [
    "FIELD_MAX", "IDS", "PACKET_MAX", "VERSION", "WINDOW", "GatewaySession", "IdentityError", "Link",
    "client_id_of", "login_of", "reason_text",
]  # fmt: skip

VERSION = 5
PACKET_MAX = 268_435_455
"""Largest packet of MQTT, bytes."""
FIELD_MAX = 65_535
"""Bytes of a string of MQTT."""
IDS = 65_535
"""Packet ids, and the Receive Maximum of a broker that names none (MQTT 5.0 §3.2.2.3.3)."""
WINDOW = 1000
"""Messages of a device without PUBACK; above it, the device is not read."""


class Link(NamedTuple):
    """The transport of a device."""

    kind: str
    """tcp, ssl, udp or dtls."""
    peer: tuple[Any, ...]
    own: tuple[Any, ...]
    """Addresses as sockets have them: host, port and more for IPv6."""
    certificate: dict[str, Any] | None
    """That of the device, as `ssl` shows it."""
    flush: Callable[[], None]
    """Sends what the session has, after something other than the shell has changed it."""


class GatewaySession:
    """figures: counts by name, shared by all sessions of a gateway.

    After each call, the shell sends `to_device` and `to_broker` and empties both. `wants_broker`: the connection to the broker is
    to be opened. `changes_broker`: once `to_broker` is sent, the broker closes its connection, and another one is to be opened in
    its place. `is_over`: both connections are to be closed once that is sent.
    """

    __slots__ = (
        "_figures", "_is_connected", "_last_id", "_max_qos", "_next_hello", "_now_s", "_packet_max", "_ping_s", "_pinged_s",
        "_received", "_room", "changes_broker", "is_broker_slow", "is_device_slow", "is_over", "reason", "to_broker", "to_device",
        "wants_broker",
    )  # fmt: skip

    MOVES: ClassVar[tuple[str, ...]] = (
        "_is_connected", "_last_id", "_max_qos", "_next_hello", "_now_s", "_packet_max", "_ping_s", "_pinged_s", "_received",
        "_room", "changes_broker", "is_broker_slow", "is_device_slow", "reason", "to_broker", "to_device", "wants_broker",
    )  # fmt: skip
    """Plain values that `image` has as they are."""
    TIMES: ClassVar[tuple[str, ...]] = ("_now_s", "_pinged_s")
    """Times among them, which `shift` moves. All are those of the clock that all processes have."""

    def __init__(self, figures: dict[str, int], now_s: float) -> None:
        self._figures = figures
        self.to_device: list[bytes] = []
        self.to_broker: list[bytes] = []
        self.wants_broker = self.changes_broker = self.is_over = False
        self.is_device_slow = self.is_broker_slow = False
        """Set by the shell while a transport accepts no more."""
        self.reason = ""
        """Why the connection has ended, if that is an error."""
        self._is_connected = False
        """Whether the broker has accepted the CONNECT."""
        self._next_hello = b""
        self._received = b""
        self._room, self._packet_max, self._max_qos = WINDOW, PACKET_MAX, 2
        self._last_id = 0
        self._ping_s, self._pinged_s = inf, now_s
        self._now_s = now_s

    # --- what the shell calls -------------------------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """Returns the client id of the MQTT session; empty before CONNECT."""
        raise NotImplementedError

    @property
    def is_accepted(self) -> bool:
        """Returns whether the broker has accepted the device."""
        return self._is_connected

    @property
    def is_proven(self) -> bool:
        """Returns whether the address of a device that sends datagrams again is taken for its own."""
        return self._is_connected

    def address_proven(self) -> None:
        """Notes that the transport has shown that a device has the address that it sends from."""

    def has_token(self, token: bytes) -> bool:
        """Returns whether a device that sends datagrams from another address may go on with this session."""
        return False

    @property
    def reads_device(self) -> bool:
        """Returns whether the device may be read: not while what was read cannot be handled."""
        return True

    @property
    def reads_broker(self) -> bool:
        """Returns whether the broker may be read: not while the device does not take what it has got."""
        return not self.is_device_slow

    @property
    def deadline_s(self) -> float:
        """Returns when tick() has something to do."""
        return self._pinged_s + self._ping_s

    def began(self, link: Link) -> None:
        """Notes the transport of the device, before its first bytes."""

    def device_lost(self) -> None:
        """Notes that the device has gone; nothing of this session is sent any more."""

    def from_device(self, data: bytes, now_s: float) -> None:
        """Handles received bytes of the device."""
        raise NotImplementedError

    def go_on(self, now_s: float) -> None:
        """Handles what was received before, as far as there is room."""
        self._now_s = now_s

    def from_broker(self, data: bytes, now_s: float) -> None:
        """Handles received bytes of the broker."""
        self._now_s = now_s
        if self.is_over:
            return
        try:
            data = self._received + data
            packets, used = split_packets(data, VERSION, PACKET_MAX)
            self._received = data[used:]
            for packet in packets:
                self._take(packet)
                if self.is_over or self.changes_broker:
                    return
        except MqttError as error:  # the broker is ours: a fault of the gateway
            self._fail(f"internal error: {error}")
        self.go_on(now_s)

    def broker_changed(self) -> None:
        """Notes that another connection to the broker is open, as `changes_broker` demanded."""
        self.to_broker.append(self._next_hello)
        self._next_hello = b""

    def broker_lost(self, reason: str) -> None:
        """Notes that the connection to the broker has ended, or was not opened."""
        if not self.is_over:
            self._fail(reason)

    def end(self, reason: str) -> None:
        """Ends the connection from this side, with an error for the device."""
        if not self.is_over:
            self._fail(reason)

    def tick(self, now_s: float) -> None:
        """Does what is due."""
        self._now_s = now_s
        if not self.is_over and now_s >= self._pinged_s + self._ping_s:
            self._ping()

    # --- for the process that replaces this one -------------------------------------------------------------------------------

    @property
    def is_changing_broker(self) -> bool:
        """Returns whether a connection to the broker is to be opened in place of an earlier one."""
        return bool(self._next_hello)

    def image(self) -> dict[str, Any]:
        """Returns the state as values that `marshal` writes, by name."""
        return {name: getattr(self, name) for name in self.MOVES}

    def adopt(self, values: Mapping[str, Any]) -> None:
        """Takes the state of the session of another process. What it has left out is as in a new session."""
        for name in self.MOVES:
            if name in values:
                setattr(self, name, values[name])

    def shift(self, by_s: float) -> None:
        """Notes a time in which no device was read: it is not silence of the device."""
        for name in self.TIMES:
            setattr(self, name, getattr(self, name) + by_s)

    # --- for sessions of a protocol -------------------------------------------------------------------------------------------

    def _take(self, packet: Any) -> None:
        """Handles a packet of the broker."""
        if type(packet) is tuple:
            self._acknowledged(*packet)
        elif type(packet) is Publish:
            self._deliver(packet)
        elif type(packet) in (Suback, Unsuback):
            self._requested(packet)
        elif type(packet) is Connack:
            self._accepted(packet)
        elif type(packet) is Disconnect:
            text = f"the broker has ended the session: {reason_text(packet.reason_code, packet.properties)}"
            if packet.reason_code == ReasonCode.SESSION_TAKEN_OVER:
                self._taken_over(text)
            else:
                self._fail(text)

    def _taken_over(self, text: str) -> None:
        """Ends the connection, since the client has another one, which may be this device's at another process of the gateway."""
        self._fail(text)

    def _acknowledged(self, kind: int, packet_id: int, code: int) -> None:
        """Handles PUBACK, PUBREC, PUBREL or PUBCOMP."""
        raise NotImplementedError

    def _deliver(self, publish: Publish) -> None:
        """Handles a message."""
        raise NotImplementedError

    def _requested(self, packet: Suback | Unsuback) -> None:
        """Handles the answer to SUBSCRIBE or UNSUBSCRIBE."""
        raise NotImplementedError

    def _fail(self, text: str) -> None:
        """Ends the connection with an error for the device."""
        raise NotImplementedError

    def _dial(self, hello: bytes, goodbye: bytes = b"") -> None:
        """Opens the connection to the broker, or replaces an open one, which ends with `goodbye`."""
        if self._next_hello:
            self._next_hello = hello  # it is not sent yet
        elif self.wants_broker:
            self.to_broker.append(goodbye)
            self._next_hello, self._received = hello, b""
            self._is_connected, self._ping_s = False, inf
            self.changes_broker = True
        else:
            self.to_broker.append(hello)
            self.wants_broker = True

    def _accepted(self, connack: Connack) -> None:
        """Notes what the broker grants to this client."""
        properties = connack.properties or {}
        self._is_connected = True
        self._room = min(WINDOW, properties.get(PropertyId.RECEIVE_MAXIMUM, IDS))
        self._packet_max = properties.get(PropertyId.MAXIMUM_PACKET_SIZE, PACKET_MAX)
        self._max_qos = properties.get(PropertyId.MAXIMUM_QOS, 2)
        if properties.get(PropertyId.SERVER_KEEP_ALIVE):
            self._ping_s, self._pinged_s = properties[PropertyId.SERVER_KEEP_ALIVE] / 2, self._now_s

    def _next_id(self, *used: Container[int]) -> int:
        """Returns a packet id that is in none of `used`."""
        number = self._last_id
        while True:
            number = number + 1 if number < IDS else 1
            if not any(number in one for one in used):
                self._last_id = number
                return number

    def _ping(self) -> None:
        """Sends PINGREQ to the broker."""
        self._to_broker(Pingreq().encode(VERSION))

    def _to_broker(self, data: bytes) -> None:
        self.to_broker.append(data)
        self._pinged_s = self._now_s


class IdentityError(Exception):
    """A client for which `clientinfo_override.clientid` gives no client id that is its own. The text names the reason."""


def client_id_of(override: ClientInfoOverride, client_id: bytes, username: bytes | None = None) -> bytes:
    """Returns the client id for CONNECT: that of the setting, else the client's own. Different clients get different ones.

    Raises IdentityError, among others for a user name that contains the text behind it in the setting: the user `a` with the
    client id `b-c` would get that of the user `a-b` with the client id `c`, and so its session.
    """
    if not override.clientid:
        return client_id
    values = {"clientid": client_id, "username": username or b""}
    parts = TEMPLATE.split(override.clientid)
    found = parts[0].encode()
    for at in range(1, len(parts), 2):
        value, behind = values[parts[at]], parts[at + 1].encode()
        if not value:
            raise IdentityError(f"clientinfo_override.clientid needs a {parts[at]}")
        if at + 2 < len(parts) and (value + behind).index(behind) < len(value):
            text = f"must not contain {parts[at + 1]!r}, the text behind it in clientinfo_override.clientid"
            raise IdentityError(f"{parts[at]}: {text}")
        found += value + behind
    if len(found) > FIELD_MAX:
        raise IdentityError(f"client id of clientinfo_override: must be at most {FIELD_MAX} bytes, got {len(found)}")
    return found


def login_of(
    override: ClientInfoOverride, client_id: bytes, username: bytes | None = None, password: bytes | None = None
) -> tuple[bytes | None, bytes | None]:
    """Returns user name and password for CONNECT: those of the setting, else the client's own. An unset value is empty text in a
    placeholder."""
    values = {"clientid": client_id, "username": username or b"", "password": password or b""}

    def filled(template: str, own: bytes | None) -> bytes | None:
        if not template:
            return own
        parts = TEMPLATE.split(template)
        text = b"".join(values[part] if at % 2 else part.encode() for at, part in enumerate(parts))
        return text[:FIELD_MAX]

    return filled(override.username, username), filled(override.password, password)


def reason_text(code: int, properties: dict[int, Any] | None = None) -> str:
    """Returns a reason code with the Reason String, if there is one, for people."""
    name = REASON_CODES[code][0].replace("_", " ") if code in REASON_CODES else f"reason code 0x{code:02x}"
    text = (properties or {}).get(PropertyId.REASON_STRING, b"").decode(errors="replace")
    return f"{name}: {text}" if text else str(name)
