"""emqx.conf: HOCON as EMQX's users write it: tables in braces, `key = value`, dotted keys, comments, arrays, text with or without
quotes."""

import re
from typing import Any

from shardbroker.config.foreign import Imported

__all__ = ["SAME", "read_emqx"]

_TOKEN = re.compile(r'\s*(?:(?:#|//)[^\n]*|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<mark>[{}\[\]=:,])|(?P<word>[^\s{}\[\]=:,"#]+))')

SAME = ("mqtt", "retainer", "delayed", "flapping_detect")
"""Sections whose keys have the same names and meanings here."""
TLS = ("certfile", "keyfile", "cacertfile", "verify", "fail_if_no_peer_cert", "ciphers", "versions", "handshake_timeout")
"""Of `ssl_options`; not the password, which is for no file that others read."""
LISTENER = ("max_connections", "max_conn_rate", "messages_rate", "bytes_rate", "access_rules", "proxy_protocol", "enable_authn")
OTHER = {
    ("node", "name"): ("node", "name"),
    ("log", "console", "level"): ("log", "level"),
    ("log", "console_handler", "level"): ("log", "level"),
    ("sys_topics", "sys_msg_interval"): ("sys", "msg_interval"),
    ("sys_topics", "sys_heartbeat_interval"): ("sys", "heartbeat_interval"),
    ("retainer", "max_retained_messages"): ("retainer", "max_messages"),
    ("retainer", "backend", "max_retained_messages"): ("retainer", "max_messages"),
}
REMARKS = {
    "authentication": "see auth in docs/access.md: the same kinds of back ends, written otherwise",
    "authorization": "see acl in docs/access.md; acl.conf itself is read as it is: acl.file.path",
    "cluster": "there is one node",
    "dashboard": "see docs/configuration.md",
    "rule_engine": "rules are not built yet",
    "bridges": "bridges are not built yet",
    "actions": "rules are not built yet",
    "connectors": "rules are not built yet",
}


def read_emqx(text: str) -> Imported:
    """What is not understood becomes a remark."""
    found = Imported()
    listeners: dict[tuple[str, str], dict[tuple[str, ...], Any]] = {}
    for path, value in _flatten(_parse(text)):
        said = f"{'.'.join(path)} = {value}"
        if path in OTHER:
            value = {"warning": "warning", "notice": "info", "critical": "error"}.get(value, value) if path[0] == "log" else value
            found.take(OTHER[path], value, said)
        elif path[0] in SAME:
            found.take(path, value, said)
        elif path[0] == "listeners" and len(path) >= 4:
            _note_listener(found, listeners, path, value, said)
        else:
            found.remark(f"{said}: {REMARKS.get(path[0], 'there is nothing like it here')}")
    for (kind, name), own in listeners.items():
        found.take_together(own, f"listeners.{kind}.{name}")
    return found


def _note_listener(
    found: Imported,
    listeners: dict[tuple[str, str], dict[tuple[str, ...], Any]],
    path: tuple[str, ...],
    value: Any,
    said: str,
) -> None:
    kind, name, rest = path[1], path[2].lower(), path[3:]
    here = ("listeners", name if kind == "tcp" else f"{kind}-{name}")
    if kind not in ("tcp", "ssl", "ws", "wss"):
        found.remark(f"{said}: allowed are listeners of tcp, ssl, ws and wss")
        return
    own = listeners.setdefault((kind, path[2]), {(*here, "type"): kind})
    if rest == ("bind",):
        text = str(value)
        own[*here, "bind"] = text if ":" in text else f"0.0.0.0:{text}"
    elif rest[0] in LISTENER and len(rest) == 1:
        own[*here, rest[0]] = value
    elif rest[0] == "ssl_options" and len(rest) == 2 and rest[1] in TLS:
        own[*here, "tls", rest[1]] = value
    elif rest == ("websocket", "mqtt_path"):
        own[*here, "websocket", "path"] = value
    else:
        found.remark(f"{said}: there is nothing like it here")


def _parse(text: str) -> dict[str, Any]:
    tokens = [match for match in _TOKEN.finditer(text) if match.lastgroup]
    table, _ = _table(tokens, 0)
    return table


def _table(tokens: list[re.Match[str]], at: int) -> tuple[dict[str, Any], int]:
    """Up to the closing brace or the end."""
    table: dict[str, Any] = {}
    while at < len(tokens) and tokens[at][0].strip() != "}":
        if tokens[at]["mark"]:
            at += 1  # commas between members
            continue
        path = [tokens[at]["word"] or tokens[at]["quoted"][1:-1]]
        path = path if tokens[at]["quoted"] else path[0].split(".")
        at += 1
        if at < len(tokens) and tokens[at]["mark"] in ("=", ":"):
            at += 1
        value, at = _value(tokens, at)
        here = table
        for part in path[:-1]:
            here = here.setdefault(part, {})
        old = here.get(path[-1])
        here[path[-1]] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return table, at + 1


def _value(tokens: list[re.Match[str]], at: int) -> tuple[Any, int]:
    if at >= len(tokens):
        return "", at
    mark = tokens[at]["mark"]
    if mark == "{":
        return _table(tokens, at + 1)
    if mark == "[":
        items = []
        at += 1
        while at < len(tokens) and tokens[at]["mark"] != "]":
            if tokens[at]["mark"] == ",":
                at += 1
                continue
            item, at = _value(tokens, at)
            items.append(item)
        return items, at + 1
    if tokens[at]["quoted"]:
        return tokens[at]["quoted"][1:-1].replace('\\"', '"'), at + 1
    # Text without quotes may have colons in it: 0.0.0.0:1883.
    word, line_end = tokens[at]["word"] or "", tokens[at].end()
    at += 1
    while at < len(tokens) and tokens[at].start(tokens[at].lastgroup or 0) == line_end and not tokens[at]["quoted"]:
        if tokens[at]["mark"] not in (None, ":"):
            break
        word += tokens[at][0]
        line_end = tokens[at].end()
        at += 1
    return _plain(word), at


def _plain(word: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
    if re.fullmatch(r"-?\d+", word):
        return int(word)
    if re.fullmatch(r"-?\d+\.\d+", word):
        return float(word)
    return word


def _flatten(table: dict[str, Any], prefix: tuple[str, ...] = ()) -> "list[tuple[tuple[str, ...], Any]]":
    flat = []
    for name, value in table.items():
        flat += _flatten(value, (*prefix, name)) if isinstance(value, dict) else [((*prefix, name), value)]
    return flat
