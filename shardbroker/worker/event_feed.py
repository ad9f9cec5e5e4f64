"""Events that rules name behind FROM, as records of the journal.

    hook point --> EventFeed, behind plugins --> journal --> process flows --> rules
    manager ----> command `event` (alarms) -----^

There is a callback at a point only while a rule names its event.
"""

from collections.abc import Callable, Iterable
from typing import Any

import cbor2

from shardbroker.access.contract import AuthRequest, Client
from shardbroker.hooks.contract import Connection, Message, Subscription
from shardbroker.hooks.registry import BEHIND_ALL, Callback, Registry
from shardbroker.mqtt.spec import REASON_CODES, ReasonCode

__all__ = ["EventFeed"]

Columns = dict[str, Any]
PROTOCOLS = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}
REASONS = {
    ReasonCode.SUCCESS: "normal",
    ReasonCode.KEEP_ALIVE_TIMEOUT: "keepalive_timeout",
    ReasonCode.SESSION_TAKEN_OVER: "takenover",
    ReasonCode.ADMINISTRATIVE_ACTION: "kicked",
}
"""What EMQX calls the end of a connection; other reasons have their names of MQTT."""


class EventFeed:
    """The events of one worker.

    registry: of its hooks. journal: writes (event, client id, Unix ms, columns as CBOR). clock: Unix ms. addresses: of
    listeners, by name.
    """

    def __init__(
        self,
        registry: Registry,
        journal: Callable[[bytes, bytes, int, bytes], None],
        clock: Callable[[], int],
        addresses: dict[str, str],
    ) -> None:
        self._registry, self._journal, self._clock, self._addresses = registry, journal, clock, addresses
        self._callbacks: list[Callback] = []
        self.holds_back: Callable[[bytes, bytes, bytes], bool] | None = None
        """Whether an acknowledgement by a client of a message on a topic is marked, see worker/features/lookups.pxd."""

    def take(self, events: Iterable[str]) -> None:
        """Makes these events the ones that are journalled, from the next one on. Names that are no hook points are ignored."""
        self._registry.remove(self._callbacks)
        self._callbacks = []
        for event in events:
            if event in COLUMNS:
                callback = Callback("rules", event, self._callback(event), BEHIND_ALL)
                callback.name = "rules"
                self._callbacks.append(callback)
        self._registry.add(self._callbacks)

    def note(self, event: str, client_id: str, columns: Columns, at_ms: int) -> None:
        """Journals one event."""
        self._journal(event.encode(), client_id.encode(), at_ms, cbor2.dumps(columns))

    def _callback(self, event: str) -> Callable[..., None]:
        columns_of = COLUMNS[event]

        def journal(*arguments: Any) -> None:
            at_ms = self._clock()
            client = arguments[0]
            columns = columns_of(at_ms, *arguments)
            if not isinstance(client, Client):  # message.dropped has none
                self.note(event, client.client_id, columns, at_ms)
                return
            columns.update(_client(client))
            if event == "message.acked" and self._is_held_back(client.client_id, columns):
                columns["fetching"] = True
            if event in WITH_ATTRIBUTES:
                columns["client_attrs"] = {}
            if event in WITH_SOCKET and client.listener in self._addresses:
                columns["sockname"] = self._addresses[client.listener]
            self.note(event, client.client_id, columns, at_ms)

        return journal

    def _is_held_back(self, client_id: str, columns: Columns) -> bool:
        if self.holds_back is None or not columns["id"]:
            return False
        return self.holds_back(client_id.encode(), columns["topic"].encode(), bytes.fromhex(columns["id"]))


# --- columns, with the names of EMQX (rules/events.py) ------------------------------------------------------------------------


def _client(client: Client) -> Columns:
    columns: Columns = {}
    if client.username is not None:
        columns["username"] = client.username
    if client.peerhost:
        host = f"[{client.peerhost}]" if ":" in client.peerhost else client.peerhost
        columns.update(peerhost=client.peerhost, peername=f"{host}:{client.peerport}")
    return columns


def _protocol(client: Client) -> Columns:
    return {"proto_name": PROTOCOLS.get(client.version, "MQTT"), "proto_ver": client.version}


def _connection(client: Client, connection: Connection) -> Columns:
    return {
        **_protocol(client),
        "keepalive": connection.keepalive,
        "clean_start": connection.clean_start,
        "expiry_interval": connection.expiry_interval,
        "is_bridge": False,
    }


def _message(message: Message) -> Columns:
    columns: Columns = {
        "id": message.id,
        "topic": message.topic,
        "payload": message.payload,
        "qos": message.qos,
        "flags": {"dup": False, "retain": message.retain},
        "pub_props": _properties(message.properties),
    }
    if message.id:
        columns["publish_received_at"] = int(message.id[:16], 16) // 1000  # an id begins with Unix us
    return columns


def _from_client(message: Message) -> Columns:
    columns = _message(message)
    if message.client_id:
        columns["from_clientid"] = message.client_id
    return columns


def _properties(properties: Any) -> Columns:
    """Returns properties with the names of MQTT. User properties are a map, the last of each name, and all of them as pairs."""
    found = {name.replace("_", " ").title().replace(" ", "-"): value for name, value in properties.items()}
    if pairs := found.pop("User-Property", None):
        found["User-Property"] = dict(pairs)
        found["User-Property-Pairs"] = [{"key": key, "value": value} for key, value in pairs]
    return found


def _reason(code: int) -> str:
    return REASON_CODES[code][0] if code in REASON_CODES else f"0x{code:02x}"


def _connected(at_ms: int, client: Client, connection: Connection) -> Columns:
    return {**_connection(client, connection), "connected_at": connection.connected_at, "conn_props": {}}


def _disconnected(at_ms: int, client: Client, reason_code: int, connection: Connection) -> Columns:
    reason = REASONS.get(reason_code) or _reason(reason_code)  # type: ignore[call-overload]
    times = {"connected_at": connection.connected_at, "disconnected_at": at_ms}
    return {**_protocol(client), **times, "reason": reason, "disconn_props": {}}


def _connack(at_ms: int, client: Client, reason_code: int, properties: Any) -> Columns:
    return {**_protocol(client), "reason_code": _reason(reason_code), "conn_props": _properties(properties)}


def _login(at_ms: int, client: Client, reason_code: int, is_superuser: bool, is_anonymous: bool) -> Columns:
    return {"reason_code": _reason(reason_code), "is_superuser": is_superuser, "is_anonymous": is_anonymous}


def _action(at_ms: int, client: Client, request: AuthRequest, allowed: bool, source: str) -> Columns:
    result = "allow" if allowed else "deny"
    return {"action": request.action, "topic": request.topic, "authz_source": source, "result": result}


def _subscribed(at_ms: int, client: Client, subscription: Subscription) -> Columns:
    return {"topic": subscription.topic, "qos": subscription.qos, "sub_props": {}}


COLUMNS: dict[str, Callable[..., Columns]] = {
    "client.connected": _connected,
    "client.disconnected": _disconnected,
    "client.connack": _connack,
    "client.ping": lambda at_ms, client, connection: _connection(client, connection),
    "client.check_authn_complete": _login,
    "client.check_authz_complete": _action,
    "session.subscribed": _subscribed,
    "session.unsubscribed": lambda at_ms, client, filter: {"topic": filter, "unsub_props": {}},
    "message.delivered": lambda at_ms, client, message: _from_client(message),
    "message.acked": lambda at_ms, client, message: {**_from_client(message), "puback_props": {}},
    "message.dropped": lambda at_ms, message, reason: {**_message(message), "reason": reason},
    "delivery.dropped": lambda at_ms, client, message, reason: {**_from_client(message), "reason": reason},
}
"""Event, which is the name of its hook point, to a function of Unix ms and the arguments of the point."""
WITH_SOCKET = ("client.connected", "client.disconnected", "client.connack", "client.ping")
"""Events with the address of the listener."""
WITH_ATTRIBUTES = (
    "client.connected", "client.disconnected", "client.check_authn_complete", "client.check_authz_complete", "session.subscribed",
    "session.unsubscribed",
)  # fmt: skip
"""Events with the attributes of the client, which are empty here."""
