"""Import of the bridges of mosquitto.conf: `connection NAME` and the keys behind it.

A bridge becomes a connector `mqtt:NAME`; each outgoing topic an action and a rule, each incoming one a source.
"""

import re
from typing import Any, NamedTuple

from shardbroker.config.foreign import Imported, section_name
from shardbroker.config.keys import KeyPath

__all__ = ["BRIDGE_KEYS", "Bridges"]

CONNECTOR = {
    "keepalive_interval": "keepalive",
    "remote_username": "username",
    "username": "username",
    "remote_password": "password",
    "password": "password",
    "bridge_cafile": "tls_ca",
    "bridge_certfile": "tls_cert",
    "bridge_keyfile": "tls_key",
    "bridge_receive_maximum": "receive_maximum",
    "bridge_session_expiry_interval": "session_expiry_interval",
    "restart_timeout": "reconnect_interval",
}
"""Keys with the same meaning, and those of a connector."""
SECONDS = ("keepalive_interval", "restart_timeout", "bridge_session_expiry_interval")
VERSIONS = {"mqttv31": "v3", "mqttv311": "v4", "mqttv50": "v5"}
REMARKS = {
    "notifications": "the state of a bridge is in the status of its connector, actions and sources, not in a topic",
    "notifications_local_only": "there is no topic with the state of a bridge",
    "notification_topic": "there is no topic with the state of a bridge",
    "start_type": "a bridge connects at once here",
    "idle_timeout": "a bridge stays connected here",
    "threshold": "a bridge connects at once here",
    "round_robin": "a connector has one address here",
    "local_clientid": "messages of a source have the client id $source:mqtt:NAME here",
    "local_username": "access control is not asked for sources here",
    "local_password": "access control is not asked for sources here",
    "local_cleansession": "messages wait in the journal here",
    "bridge_attempt_unsubscribe": "topics that go out are not unsubscribed from here",
    "bridge_max_topic_alias": "a bridge uses no topic aliases here",
    "bridge_max_packet_size": "the server tells its limit with MQTT 5.0",
    "bridge_reload_type": "a change takes effect at once here",
}
"""Keys without an equivalent, which change neither what passes nor who is trusted."""
OPENING = re.compile(r"bridge_(capath|identity|psk|alpn|require_ocsp|tls_use_os_certs|tls_version|ciphers.*)")
"""Keys of TLS without an equivalent: a bridge with one of them is not imported, as it could be less protected."""
OTHER = re.compile(r"bridge_(bind_address|tcp_.*)")
BRIDGE_KEYS = re.compile(
    r"connection|address|addresses|topic|bridge_.*|cleansession|clientid|idle_timeout|keepalive_interval|local_.*|notification.*"
    r"|remote_.*|restart_timeout|round_robin|start_type|threshold|try_private|username|password"
)
"""Keys of a bridge, behind its `connection`."""
DIRECTIONS = ("out", "in", "both")
PORT = 1883


class _Topic(NamedTuple):
    """A line `topic`."""

    pattern: str
    direction: str
    qos: int
    local: str
    remote: str


class Bridges:
    """The bridges of a file, line by line."""

    def __init__(self) -> None:
        self._bridges: list[tuple[str, list[tuple[str, str, str]]]] = []

    def note(self, key: str, value: str, line: str) -> bool:
        """Notes a line; returns False if it does not belong to a bridge."""
        if key == "connection":
            self._bridges.append((value, []))
            return True
        if not self._bridges or not BRIDGE_KEYS.fullmatch(key):
            return False
        self._bridges[-1][1].append((key, value, line))
        return True

    def take(self, found: Imported) -> None:
        """Imports all."""
        for name, lines in self._bridges:
            _take(found, name, lines)


def _take(found: Imported, given: str, lines: list[tuple[str, str, str]]) -> None:
    name = section_name(given)
    said = f"connection {given}"
    values: dict[str, Any] = {"proto_ver": "v4", "bridge_mode": True, "clean_start": False}
    topics: list[_Topic] = []
    keeps_retain = True
    for key, value, line in lines:
        if OPENING.fullmatch(key):
            found.remark(f"{said}: left out: {line}: there is nothing like it here, and the connection could be less protected")
            return
        if key in ("address", "addresses"):
            first, *others = value.split()
            values["server"] = first if re.search(r":\d+$", first) else f"{first}:{PORT}"
            if others:
                found.remark(f"{line}: a connector has one address here: {first} is used")
        elif key == "topic":
            topic = _topic(value)
            if topic is None:
                found.remark(f"{line}: not a topic with a direction, QoS and prefixes")
            else:
                topics.append(topic)
        elif key == "bridge_protocol_version":
            if value not in VERSIONS:
                found.remark(f"{line}: allowed are {', '.join(VERSIONS)}")
            values["proto_ver"] = VERSIONS.get(value, "v4")
        elif key in ("cleansession", "try_private"):
            values["clean_start" if key == "cleansession" else "bridge_mode"] = value == "true"
        elif key in ("remote_clientid", "clientid"):
            values["static_clientids"] = [{"ids": [value]}]
        elif key == "bridge_insecure":
            values["tls_verify"] = value != "true"
        elif key == "bridge_outgoing_retain":
            keeps_retain = value != "false"
        elif key in CONNECTOR:
            amount = value.split()[0] if key == "restart_timeout" and value else value
            is_number = amount.isdecimal() and key == "bridge_receive_maximum"
            values[CONNECTOR[key]] = f"{amount}s" if key in SECONDS else int(amount) if is_number else amount
            if key in ("bridge_cafile", "bridge_certfile"):
                values["tls"] = True
        elif key == "start_type" and value == "automatic":
            pass
        else:
            found.remark(f"{line}: {REMARKS.get(key, 'there is nothing like it here')}")
    if values["proto_ver"] == "v5":
        values["bridge_mode"] = False
    if not topics:
        found.remark(f"{said}: left out: there is no topic")
        return
    _take_parts(found, said, name, values, topics, keeps_retain)


def _take_parts(
    found: Imported, said: str, name: str, values: dict[str, Any], topics: list[_Topic], keeps_retain: bool
) -> None:
    """Adds the parts of a bridge: all, or none."""
    own: dict[KeyPath, Any] = {("connectors", "mqtt", name, key): value for key, value in values.items()}
    for number, topic in enumerate(topics, 1):
        id = f"{name}-{number}"
        if topic.direction in ("out", "both"):
            local = "${bridged}" if topic.local else "${topic}"
            cut = f", substr(topic, {len(topic.local)}) AS bridged" if topic.local else ""
            # At QoS 2 a message keeps its own; 0 and 1 are those of all messages.
            qos = "${qos}" if topic.qos == 2 else str(topic.qos)
            parameters = {"topic": topic.remote + local, "qos": qos, "retain": "${flags.retain}" if keeps_retain else "false"}
            for key, value in parameters.items():
                own["actions", "mqtt", id, "parameters", key] = value
            own |= {
                ("actions", "mqtt", id, "connector"): name,
                ("rules", f"bridge-{id}", "sql"): f'SELECT *{cut} FROM "{topic.local}{topic.pattern}"',
                ("rules", f"bridge-{id}", "actions"): [f"mqtt:{id}"],
            }
        if topic.direction in ("in", "both"):
            own |= {
                ("sources", "mqtt", id, "connector"): name,
                ("sources", "mqtt", id, "parameters", "topic"): [topic.remote + topic.pattern],
                ("sources", "mqtt", id, "parameters", "qos"): topic.qos,
                ("sources", "mqtt", id, "parameters", "local", "topic"): topic.local + "${topic}",
                ("sources", "mqtt", id, "parameters", "local", "strip_prefix"): topic.remote,
            }
    found.take_together(own, said)


def _topic(value: str) -> _Topic | None:
    """Returns the parts of `pattern [[[out | in | both] qos] local-prefix remote-prefix]`; `""`: empty. None: it is wrong."""
    words = ["" if word == '""' else word for word in value.split()]
    if not words or len(words) > 5 or any("${" in word or '"' in word for word in words):
        return None
    pattern, direction, qos, local, remote = [*words, *("", "out", "0", "", "")[len(words) :]]
    if direction not in DIRECTIONS or qos not in ("0", "1", "2") or not (pattern or local or remote):
        return None
    return _Topic(pattern, direction, int(qos), local, remote)
