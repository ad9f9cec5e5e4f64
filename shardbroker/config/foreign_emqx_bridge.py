"""Plugin `emqx_bridge_mqtt` of EMQX 3 and 4: lines of `bridge.mqtt.<name>.<key> = <value>`.

A bridge becomes a connector `mqtt:NAME`; its `forwards` an action and a rule, each subscription a source.
"""

import re
from collections.abc import Sequence
from typing import Any

from shardbroker.config.foreign import Imported, section_name
from shardbroker.config.keys import KeyPath
from shardbroker.config.persistence import check_filters_of_rule

__all__ = ["BRIDGE", "add_bridges"]

BRIDGE = re.compile(r"^[ \t]*bridge\.mqtt\.", re.MULTILINE)
"""What a file of the plugin has."""
KEY = re.compile(r"bridge\.mqtt\.([^.]+)\.(.+)")
CONNECTOR = {
    "address": "server", "username": "username", "password": "password", "keepalive": "keepalive",
    "reconnect_interval": "reconnect_interval", "clean_start": "clean_start", "bridge_mode": "bridge_mode", "ssl": "tls",
}  # fmt: skip
"""Keys with the same meaning, and those of a connector."""
OF_TLS = {"cacertfile": "tls_ca", "certfile": "tls_cert", "keyfile": "tls_key"}
OWN = frozenset(
    {*CONNECTOR, *OF_TLS, "proto_ver", "start_type", "clientid", "verify", "max_inflight_size", "forwards", "forward_mountpoint",
     "receive_mountpoint", "queue.max_total_size", "psk_ciphers"}
)  # fmt: skip
"""Keys that are taken over, besides those of subscriptions."""
SUBSCRIPTION = re.compile(r"subscription\.(\d+)\.(topic|qos)")
WITHOUT_EFFECT = re.compile(
    r"retry_interval|batch_size|queue\.(replayq_dir|replayq_seg_bytes|batch_.*)|ciphers|tls_versions|depth|server_name_indication"
)
"""Keys for which there is nothing to choose here: messages wait in the journal, and OpenSSL chooses ciphers of TLS 1.2 and 1.3."""
VERSIONS = {"mqttv3": "v3", "mqttv4": "v4", "mqttv5": "v5"}
BOOLEANS = {"on": True, "true": True, "off": False, "false": False}
INFLIGHT_MAX = 65_535
NODE = "${node}"


def add_bridges(found: Imported, texts: Sequence[str]) -> None:
    """Imports the bridges of files."""
    bridges: dict[str, dict[str, str]] = {}
    for line in "\n".join(texts).splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if not key or key.startswith("#"):
            continue
        match = KEY.fullmatch(key)
        if match is None:
            found.remark(f"{key}: must be bridge.mqtt.<name>.<key>")
        else:
            bridges.setdefault(match[1], {})[match[2]] = value.strip('"')
    for name, given in bridges.items():
        _take(found, name, given)


def _take(found: Imported, given_name: str, given: dict[str, str]) -> None:
    """Adds the parts of a bridge: all, or none."""
    name, said = section_name(given_name), f"bridge.mqtt.{given_name}"
    address = given.get("address", "")
    if "@" in address:
        found.remark(f"{said}: left out: address = {address} is a node, to which a bridge by RPC leads; see docs/cluster.md")
        return
    if "psk_ciphers" in given:
        found.remark(f"{said}: left out: psk_ciphers: there is nothing like it here, and the connection could be less protected")
        return
    for key, value in given.items():
        if WITHOUT_EFFECT.fullmatch(key):
            found.notes.append(f"{said}.{key} = {value}")
        elif key not in OWN and not SUBSCRIPTION.fullmatch(key):
            found.remark(f"{said}.{key} = {value}: there is nothing like it here")
    parts = _connector(found, name, said, given)
    try:
        actions, sources = _action(found, name, said, given), _sources(found, name, said, given)
    except ValueError as error:
        found.remark(f"{said}: left out: {error}")
        return
    if not actions and not sources:
        found.remark(f"{said}: left out: there are neither forwards nor subscriptions")
        return
    found.take_together(parts | actions | sources, said)


def _connector(found: Imported, name: str, said: str, given: dict[str, str]) -> dict[KeyPath, Any]:
    values: dict[str, Any] = {"clean_start": True}
    for key, text in given.items():
        if key in CONNECTOR:
            values[CONNECTOR[key]] = BOOLEANS.get(text, text) if key in ("ssl", "clean_start", "bridge_mode") else text
    if values.get("tls"):
        values |= {OF_TLS[key]: text for key, text in given.items() if key in OF_TLS}
        if given.get("verify") == "verify_none":
            values["tls_verify"] = False
    version = given.get("proto_ver", "mqttv4")
    values["proto_ver"] = VERSIONS.get(version, version)
    if version == "mqttv5":
        values.pop("bridge_mode", None)
    if (most := given.get("max_inflight_size", "")).isdecimal():
        values["max_inflight"] = min(int(most) or INFLIGHT_MAX, INFLIGHT_MAX)
    if given.get("start_type", "manual") != "auto":
        values["enable"] = False
        found.remark(f"{said}.start_type = manual: not enabled here either, before connectors.mqtt.{name}.enable is true")
    client_id = _with_node(found, f"{said}.clientid", given.get("clientid", ""))
    if client_id:
        values["static_clientids"] = [{"ids": [client_id]}]
    return {("connectors", "mqtt", name, key): value for key, value in values.items()}


def _with_node(found: Imported, said: str, text: str) -> str:
    """Returns a text with the name of the node in place of its placeholder; empty if that is not known, or there are others."""
    node = found.settings.get(("node", "name"))
    text = text.replace(NODE, node) if node is not None else text
    if "${" not in text:
        return text
    found.remark(f"{said} = {text}: has a placeholder; name the file with node.name, too")
    return ""


def _action(found: Imported, name: str, said: str, given: dict[str, str]) -> dict[KeyPath, Any]:
    """Returns an action and its rule. Raises ValueError for a filter that a rule cannot have."""
    filters = [one.strip() for one in given.get("forwards", "").split(",") if one.strip()]
    if not filters:
        return {}
    check_filters_of_rule(filters)
    own: dict[KeyPath, Any] = {
        ("actions", "mqtt", name, "connector"): name,
        ("actions", "mqtt", name, "parameters", "topic"): given.get("forward_mountpoint", "") + "${topic}",
        ("actions", "mqtt", name, "parameters", "qos"): "1",
        ("rules", f"bridge-{name}", "sql"): "SELECT * FROM " + ", ".join([f'"{one}"' for one in filters]),
        ("rules", f"bridge-{name}", "actions"): [f"mqtt:{name}"],
    }
    if "queue.max_total_size" in given:
        own["actions", "mqtt", name, "resource_opts", "max_buffer_bytes"] = given["queue.max_total_size"]
    return own


def _sources(found: Imported, name: str, said: str, given: dict[str, str]) -> dict[KeyPath, Any]:
    """Returns a source for each subscription. Raises ValueError for a mountpoint with a placeholder that is not known."""
    numbers = dict.fromkeys(match[1] for key in given if (match := SUBSCRIPTION.fullmatch(key)) and match[2] == "topic")
    mountpoint = given.get("receive_mountpoint", "")
    if numbers and mountpoint and not (mountpoint := _with_node(found, f"{said}.receive_mountpoint", mountpoint)):
        raise ValueError("the mount point of what is received is not known")
    own: dict[KeyPath, Any] = {}
    for number in numbers:
        path: KeyPath = ("sources", "mqtt", f"{name}-{number}")
        qos = given.get(f"subscription.{number}.qos", "1")
        own |= {
            (*path, "connector"): name,
            (*path, "parameters", "topic"): [given[f"subscription.{number}.topic"]],
            (*path, "parameters", "qos"): int(qos) if qos.isdecimal() else qos,
            (*path, "parameters", "local", "topic"): mountpoint + "${topic}",
        }
    return own
