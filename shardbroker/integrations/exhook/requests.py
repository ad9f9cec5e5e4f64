"""The requests of the contract, built from the workers' messages."""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from shardbroker import __version__
from shardbroker.access.contract import AuthRequest, Client
from shardbroker.hooks.exhook import Event
from shardbroker.integrations.exhook.contract import LOADED, METHODS, UNLOADED, message
from shardbroker.mqtt.spec import REASON_CODES

__all__ = ["Requests"]

PROTOCOL = "mqtt"
SYSDESCR = f"shardbroker on Python {platform.python_version()}"
PROTO_VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}
NORMAL = "normal"
"""Reason of a regular disconnect, as EMQX names it."""

_ClientInfo, _ConnInfo, _Message, _Property = message("ClientInfo"), message("ConnInfo"), message("Message"), message("Property")
_SubOpts, _TopicFilter, _RequestMeta, _BrokerInfo = (
    message("SubOpts"), message("TopicFilter"), message("RequestMeta"), message("BrokerInfo"),
)  # fmt: skip


class Requests:
    """Builds requests. `node`: the broker's name; `ports`: of listeners, by their names."""

    def __init__(self, node: str, ports: Mapping[str, int]) -> None:
        self._node, self._ports = node, ports
        self._meta = _RequestMeta(node=node, version=__version__, sysdescr=SYSDESCR, cluster_name=node.partition("@")[0])
        self._started = time.monotonic()
        self._makers: dict[str, Callable[..., dict[str, Any]]] = {
            "client.connect": self._connect,
            "client.connack": self._connack,
            "client.disconnected": lambda client, code, connection: {
                "clientinfo": self._client(client), "reason": NORMAL if code == 0 else reason_name(code),
            },
            "client.subscribe": lambda client, properties, subscriptions: {
                "clientinfo": self._client(client), **_properties(properties),
                "topic_filters": [_TopicFilter(name=one[0], subopts=_options(one)) for one in subscriptions],
            },
            "client.unsubscribe": lambda client, properties, filters: {
                "clientinfo": self._client(client), **_properties(properties),
                "topic_filters": [_TopicFilter(name=one) for one in filters],
            },
            "session.subscribed": lambda client, subscription: {
                "clientinfo": self._client(client), "topic": subscription[0], "subopts": _options(subscription),
            },
            "session.unsubscribed": lambda client, filter: {"clientinfo": self._client(client), "topic": filter},
            "session.terminated": lambda client, reason: {"clientinfo": self._client(client), "reason": reason},
        }  # fmt: skip

    def loaded(self) -> Any:
        uptime = int(time.monotonic() - self._started)
        now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
        broker = _BrokerInfo(version=__version__, sysdescr=SYSDESCR, uptime=uptime, datetime=now)
        return LOADED.request(broker=broker, meta=self._meta)

    def unloaded(self) -> Any:
        return UNLOADED.request(meta=self._meta)

    def event(self, event: Event) -> Any:
        """Returns the request for an event."""
        if event.point.startswith("message."):
            fields = self._about_message(event)
        else:
            make: Callable[..., dict[str, Any]] = self._makers.get(event.point, self._about_client)
            fields = make(*event.arguments)
        return METHODS[event.point].request(meta=self._meta, **fields)

    def authenticate(self, client: Client, result: bool) -> Any:
        info = self._client(_listed(client))
        info.password = (client.password or b"").decode(errors="replace")
        return METHODS["client.authenticate"].request(clientinfo=info, result=result, meta=self._meta)

    def authorize(self, client: Client, request: AuthRequest, result: bool) -> Any:
        info, kind = self._client(_listed(client)), request.action.upper()
        return METHODS["client.authorize"].request(
            clientinfo=info, type=kind, topic=request.topic, result=result, meta=self._meta
        )  # fmt: skip

    def publish(self, client: Client, fields: Sequence[Any], at_ms: int) -> Any:
        made = self._message(fields, at_ms)
        if client.peerhost:
            made.headers.update(username=client.username or "", protocol=PROTOCOL, peerhost=client.peerhost)
        return METHODS["message.publish"].request(message=made, meta=self._meta, **_properties(fields[4]))

    # --- parts ----------------------------------------------------------------------------------------------------------------

    def _connect(self, client: Sequence[Any], connection: Sequence[Any], properties: Mapping[str, Any]) -> dict[str, Any]:
        return {"conninfo": self._connection(client, connection[0]), **_properties(properties)}

    def _connack(self, client: Sequence[Any], code: int, properties: Mapping[str, Any]) -> dict[str, Any]:
        return {"conninfo": self._connection(client, 0), "result_code": reason_name(code), **_properties(properties)}

    def _about_client(self, client: Sequence[Any], *_: Any) -> dict[str, Any]:
        return {"clientinfo": self._client(client)}

    def _about_message(self, event: Event) -> dict[str, Any]:
        if event.point == "message.dropped":
            return {"message": self._message(event.arguments[0], event.at_ms), "reason": event.arguments[1]}
        return {"clientinfo": self._client(event.arguments[0]), "message": self._message(event.arguments[1], event.at_ms)}

    def _client(self, fields: Sequence[Any]) -> Any:
        client_id, username, _, host, port, listener, _, cn, dn = fields
        return _ClientInfo(
            node=self._node, clientid=client_id, username=username or "", peerhost=host, peerport=port,
            sockport=self._ports.get(listener, 0), protocol=PROTOCOL, anonymous=not username, cn=cn or "", dn=dn or "",
        )  # fmt: skip

    def _connection(self, fields: Sequence[Any], keepalive: int) -> Any:
        client_id, username, _, host, port, listener, version, *_ = fields
        return _ConnInfo(
            node=self._node, clientid=client_id, username=username or "", peerhost=host, peerport=port,
            sockport=self._ports.get(listener, 0), proto_name="MQTT" if version > 3 else "MQIsdp",
            proto_ver=PROTO_VERSIONS.get(version, ""), keepalive=keepalive,
        )  # fmt: skip

    def _message(self, fields: Sequence[Any], at_ms: int) -> Any:
        topic, payload, qos, _, _, client_id, identifier = fields
        made = _Message(node=self._node, id=identifier, qos=qos, topic=topic, payload=payload, timestamp=at_ms)
        setattr(made, "from", client_id)  # `from` is a keyword of Python
        return made


def reason_name(code: int) -> str:
    """Returns MQTT's name of a reason code, in lower case with underscores."""
    return REASON_CODES[code][0] if code in REASON_CODES else f"0x{code:02x}"


def _listed(client: Client) -> list[Any]:
    """Returns the fields of a client in the order of an event."""
    return [
        client.client_id, client.username, None, client.peerhost, client.peerport, client.listener, client.version,
        client.cert_common_name, client.cert_subject,
    ]  # fmt: skip


def _options(subscription: Sequence[Any]) -> Any:
    _, qos, no_local, retain_as_published, retain_handling = subscription
    return _SubOpts(qos=qos, nl=int(no_local), rap=int(retain_as_published), rh=retain_handling)


def _properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Returns properties under EMQX's names, such as Session-Expiry-Interval, with user properties apart."""
    return {
        "props": [
            _Property(name="-".join(map(str.capitalize, name.split("_"))), value=_text(value))
            for name, value in properties.items()
            if name != "user_property"
        ],
        "user_props": [_Property(name=name, value=value) for name, value in properties.get("user_property", ())],
    }


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
