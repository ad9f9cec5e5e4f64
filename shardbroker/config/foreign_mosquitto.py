"""mosquitto.conf: `key value` lines; those behind a `listener` line are that listener's."""

from typing import Any

from shardbroker.config.foreign import Imported

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
"""Settings of the whole broker, and what they are here."""
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
    "allow_anonymous": "who connects is said by auth.chain, which is empty: everybody may; see docs/access.md",
    "password_file": "mosquitto's hashes ($6$, $7$) are not read; make the users anew: shardbroker ctl users add",
    "acl_file": "rules have another form; see acl.file in docs/access.md",
    "persistence_location": "process.data_dir is chosen with the service; mosquitto.db is not read, so sessions begin anew",
    "include_dir": "import the files one by one",
    "connection": "bridges are not built yet",
}
DURATIONS = {"h": "h", "d": "d", "w": "d", "m": "d", "y": "d"}
DAYS = {"d": 1, "w": 7, "m": 30, "y": 365}
"""mosquitto's m is a month."""


def read_mosquitto(text: str) -> Imported:
    """Never fails: what is not understood becomes a remark."""
    found = Imported()
    listeners: list[dict[str, Any]] = []
    current: dict[str, Any] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition(" ")
        value = value.strip()
        if key == "listener":
            port, _, host = value.partition(" ")
            current = {"bind": f"unix:{host.strip()}" if port == "0" else f"{_host(host.strip())}:{port}", "said": {}}
            listeners.append(current)
        elif key in PER_LISTENER:
            if not listeners and not current:
                current = {"bind": "127.0.0.1:1883", "said": {}}
                listeners.append(current)
            _note(current, key, value, line)
        elif key in GLOBAL:
            found.take(tuple(GLOBAL[key].split(".")), _converted(key, value), line)
        else:
            found.remark(f"{line}: {REMARKS.get(key, 'there is nothing like it here')}")
    for number, listener in enumerate(listeners):
        _take_listener(found, "default" if number == 0 else f"listener-{number + 1}", listener)
    return found


def _note(listener: dict[str, Any], key: str, value: str, line: str) -> None:
    if key == "port":
        listener["bind"] = f"{listener['bind'].rpartition(':')[0]}:{value}"
    elif key == "bind_address":
        listener["bind"] = f"{_host(value)}:{listener['bind'].rpartition(':')[2]}"
    else:
        listener["said"][key] = (value, line)


def _take_listener(found: Imported, name: str, listener: dict[str, Any]) -> None:
    said = listener["said"]
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
        else:
            own[path] = value
    found.take_together(own, f"listener {listener['bind']}")


def _host(text: str) -> str:
    """mosquitto listens everywhere where no address is given."""
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
