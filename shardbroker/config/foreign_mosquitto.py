"""Import of mosquitto.conf: `key value` lines; those after a `listener` line belong to that listener."""

import re
from collections.abc import Callable
from typing import Any

from shardbroker.config.foreign import Imported
from shardbroker.config.foreign_mosquitto_acl import convert_acl
from shardbroker.config.foreign_mosquitto_bridge import Bridges

__all__ = ["GLOBAL", "PER_LISTENER", "read_mosquitto"]

UNLIMITED = ("-1", "0")

GLOBAL = {
    "max_inflight_messages": "mqtt.max_inflight",
    "max_queued_messages": "mqtt.max_mqueue_len",
    "max_packet_size": "mqtt.max_packet_size",
    "message_size_limit": "mqtt.max_packet_size",
    "persistent_client_expiration": "mqtt.session_expiry_interval",
    "queue_qos0_messages": "mqtt.mqueue_store_qos0",
    "retain_available": "mqtt.retain_available",
    "upgrade_outgoing_qos": "mqtt.upgrade_qos",
    "persistence": "durability.level",
    "sys_interval": "sys.msg_interval",
}
"""Settings of the whole broker and their keys here."""
PER_LISTENER = {
    "max_connections": "max_connections",
    "cafile": "tls.cacertfile",
    "certfile": "tls.certfile",
    "keyfile": "tls.keyfile",
    "crlfile": "tls.crlfile",
    "ciphers": "tls.ciphers",
    "tls_version": "tls.versions",
    "require_certificate": "tls.verify",
    "use_identity_as_username": "peer_cert_as_username",
    "use_subject_as_username": "peer_cert_as_username",
    "protocol": "type",
    "bind_address": "bind",
    "port": "bind",
}
REMARKS = {
    "persistence_location": "process.data_dir is chosen with the service; mosquitto.db is not read: no session is there yet",
}
HARMLESS = re.compile(
    r"allow_duplicate_messages|allow_zero_length_clientid|check_retain_source|max_inflight_bytes|max_keepalive|max_queued_bytes|max_qos|max_topic_alias|memory_limit|set_tcp_nodelay|websockets_(?:log_level|headers_size)"
    r"|http_dir|socket_domain|max_topic_alias.*|global_max_.*"
)
"""Keys without an effect on access control."""
PLACES = re.compile(r"pid_file|user|log_.*|connection_messages|persistence_.*|autosave_.*")
"""Keys about the process itself."""
LOGIN = ("allow_anonymous", "password_file", "acl_file")
"""Keys that are evaluated together at the end."""
BOOLEANS = (
    "allow_anonymous", "per_listener_settings", "require_certificate", "use_identity_as_username", "use_subject_as_username",
)  # fmt: skip
"""Values of booleans; mosquitto also accepts 1 and 0."""
NO_LISTENER = ("psk_hint", "bind_interface", "capath", "tls_keyform", "tls_engine", "tls_engine_kpass_sha1")
"""Keys without an equivalent here: a listener with one of them is not imported."""
DURATIONS = {"h": "h", "d": "d", "w": "d", "m": "d", "y": "d"}
DAYS = {"d": 1, "w": 7, "m": 30, "y": 365}
"""Seconds of each unit; m is a month in mosquitto."""


def read_mosquitto(text: str, acl: Callable[[str], str | None] = lambda path: None) -> Imported:
    """Imports a file without failing: an unknown key becomes a remark and restricts access, unless it is known to be harmless.
    `acl` reads the file of acl_file; None if there is no place for its rules, or no such file."""
    found = Imported()
    listeners: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    login: dict[str, str] = {}
    closed: list[str] = []
    bridges = Bridges()
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition(" ")
        value = value.strip()
        if key in BOOLEANS:
            value = {"1": "true", "0": "false"}.get(value, value)
        if key == "listener":
            port, _, host = value.partition(" ")
            current = {"bind": f"unix:{host.strip()}" if port == "0" else f"{_host(host.strip())}:{port}", "said": {}}
            listeners.append(current)
        elif key in LOGIN:
            login[key] = value
        elif key != "listener" and bridges.note(key, value, line):
            pass
        elif key in PER_LISTENER or key == "mount_point" or key in NO_LISTENER:
            if not listeners and not current:
                current = {"bind": "127.0.0.1:1883", "said": {}}
                listeners.append(current)
            _note(current, key, value, line)
        elif key in GLOBAL:
            found.take(tuple(GLOBAL[key].split(".")), _converted(key, value), line)
        elif key == "per_listener_settings" and value == "false":
            pass
        elif PLACES.fullmatch(key):
            found.notes.append(f"{line}: {REMARKS.get(key, 'that is for the service here')}")
        elif HARMLESS.fullmatch(key):
            found.remark(f"{line}: {REMARKS.get(key, 'there is nothing like it here')}")
        else:
            closed.append(f"{line}: there is nothing like it here, and it may be about who connects")
    taken = [
        _take_listener(found, "default" if number == 0 else f"listener-{number + 1}", listener)
        for number, listener in enumerate(listeners)
    ]
    if listeners and not any(taken):
        closed.append("no listener could be taken over")
    _take_login(found, login, closed, bool(listeners))
    bridges.take(found)
    _take_rules(found, login, acl)
    return found


def _take_login(found: Imported, login: dict[str, str], closed: list[str], listening: bool) -> None:
    """Imports authentication. Without a listener mosquitto serves only this machine, and then, as before 2.0, without passwords."""
    anonymous = login.get("allow_anonymous", "false" if listening else "true") == "true"
    path = login.get("password_file")
    if path is not None:
        found.settings["auth", "chain"] = ["file"]
        found.settings["auth", "file", "path"] = path
        if anonymous:
            found.remark("allow_anonymous true: with a password_file clients without a name are refused here")
    elif not anonymous:
        found.close_login("" if closed else "allow_anonymous is false and there is no password_file")
    if closed:
        for text in closed[:-1]:
            found.remark(text)
        found.close_login(closed[-1])


def _take_rules(found: Imported, login: dict[str, str], acl: Callable[[str], str | None]) -> None:
    path = login.get("acl_file")
    if path is None:
        return
    text = acl(path)
    if text is None:
        found.close_rules(f"acl_file {path}: not converted: allowed is a file that can be read, and --rules FILE for its rules")
    else:
        convert_acl(found, text, anonymous=not found.settings.get(("auth", "chain")))


def _note(listener: dict[str, Any], key: str, value: str, line: str) -> None:
    if key == "port":
        listener["bind"] = f"{listener['bind'].rpartition(':')[0]}:{value}"
    elif key == "bind_address":
        listener["bind"] = f"{_host(value)}:{listener['bind'].rpartition(':')[2]}"
    else:
        listener["said"][key] = (value, line)


def _take_listener(found: Imported, name: str, listener: dict[str, Any]) -> bool:
    """Returns whether the listener was imported."""
    said = listener["said"]
    for key in NO_LISTENER:
        if key in said:
            found.remark(f"listener {listener['bind']}: left out: {said[key][1]}: there is nothing like it here")
            return False
    if said.get("protocol", ("mqtt",))[0] not in ("mqtt", "websockets"):
        found.remark(f"listener {listener['bind']}: left out: {said['protocol'][1]}: allowed are mqtt and websockets")
        return False
    if "cafile" in said and "certfile" not in said:
        found.remark(f"listener {listener['bind']}: left out: cafile without certfile, which would be a listener without TLS")
        return False
    secure, web = "certfile" in said, said.get("protocol", ("",))[0] == "websockets"
    own: dict[tuple[str, ...], Any] = {("listeners", name, "bind"): listener["bind"]}
    kind = {(False, False): "tcp", (True, False): "ssl", (False, True): "ws", (True, True): "wss"}[secure, web]
    own["listeners", name, "type"] = kind
    for key, (value, _) in said.items():
        if key == "protocol":
            continue
        path = ("listeners", name, *PER_LISTENER[key].split("."))
        if key == "require_certificate":
            if value == "true":
                own |= {path: "verify_peer", (*path[:-1], "fail_if_no_peer_cert"): True}
        elif key == "tls_version":
            own[path] = [value] if value == "tlsv1.3" else ["tlsv1.2", "tlsv1.3"]
        elif key == "max_connections":
            own[path] = "infinity" if value in UNLIMITED else int(value) if value.isdecimal() else value
        elif key in ("use_identity_as_username", "use_subject_as_username"):
            if value == "true":
                own[path] = "cn" if "identity" in key else "dn"
                own["listeners", name, "auth_chain"] = ["certificate"]
                own["auth", "certificate", "identity"] = "any"
        elif key == "mount_point":
            own["listeners", name, "mountpoint"] = value
        else:
            own[path] = value
    if "auth_chain" in {path[-1] for path in own} and said.get("require_certificate", ("",))[0] != "true":
        found.remark(f"listener {listener['bind']}: left out: use_identity_as_username without require_certificate")
        return False
    return found.take_together(own, f"listener {listener['bind']}")


def _host(text: str) -> str:
    """Returns the address. mosquitto listens on all addresses where none is given."""
    return f"[{text}]" if ":" in text else text or "0.0.0.0"


def _converted(key: str, value: str) -> Any:
    if key == "persistence":
        return "process" if value == "true" else "none"
    if value in ("true", "false"):
        return value == "true"
    if key == "persistent_client_expiration" and value[:-1].isdecimal() and value[-1] in DURATIONS:
        return f"{int(value[:-1]) * DAYS[value[-1]]}d" if value[-1] in DAYS else value
    if key == "sys_interval" and value.isdecimal():
        return f"{value}s"
    return int(value) if value.isdecimal() else value
