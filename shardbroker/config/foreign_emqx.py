"""Import of emqx.conf: HOCON with tables in braces, `key = value`, dotted keys, comments, arrays, and text with or without quotes.

Besides the configuration that is here under the same names, it reads connectors, actions, sources, and rules of `rule_engine`.
Files of EMQX 4 are lines of dotted keys: of these, the listeners, access control and the cluster.
"""

import json
import re
import textwrap
from typing import Any

from shardbroker.config.errors import ConfigError
from shardbroker.config.foreign import SECRET, Imported, bind_of, flatten
from shardbroker.config.foreign_emqx_cluster import OWN_KEYS, take_cluster
from shardbroker.config.foreign_emqx_gateways import take_gateways
from shardbroker.config.keys import KeyPath, field_at
from shardbroker.config.sinks.definition import ACTIONS, CONNECTORS, SOURCES, from_emqx
from shardbroker.config.sinks.ids import normal_id, normal_type, types_text
from shardbroker.config.sinks.types import SINK_TYPES

__all__ = ["SAME", "read_emqx"]

_TOKEN = re.compile(
    r'\s*(?:(?:#|//)[^\n]*|(?P<raw>"""(?s:.)*?""""*)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<mark>[{}\[\]=:,])'
    r'|(?P<word>[^\s{}\[\]=:,"#]+))'
)

SAME = ("mqtt", "retainer", "delayed", "flapping_detect")
"""Sections whose keys have the same names and meanings here."""
TLS = ("certfile", "keyfile", "cacertfile", "verify", "fail_if_no_peer_cert", "ciphers", "versions", "handshake_timeout")
"""Keys of `ssl_options`, without the password, which belongs in no readable file."""
LISTENER = (
    "max_connections", "max_conn_rate", "messages_rate", "bytes_rate", "access_rules", "proxy_protocol", "proxy_protocol_timeout",
    "enable_authn", "mountpoint",
)  # fmt: skip
LISTENER_HARMLESS = re.compile(
    r"acceptors|zone|tcp_options\..*|tcp_backend|max_connections_.*|websocket\..*|parse_unit|nodelay"
    r"|ssl_options\.(depth|secure_renegotiate|honor_cipher_order|reuse_sessions|hibernate_after|gc_after_handshake|log_level"
    r"|client_renegotiation|dhfile|password|sni|keep_secrets|cacerts|managed_certs)"
)
"""Keys without which a listener is still imported; the password of the key has to be set then, or the broker does not start."""
OTHER = {
    ("node", "name"): ("node", "name"),
    ("rule_engine", "ignore_sys_message"): ("rule_engine", "ignore_sys_message"),
    ("rule_engine", "jq_function_default_timeout"): ("rule_engine", "jq_function_default_timeout"),
    ("log", "console", "level"): ("log", "level"),
    ("log", "console_handler", "level"): ("log", "level"),
    ("sys_topics", "sys_msg_interval"): ("sys", "msg_interval"),
    ("sys_topics", "sys_heartbeat_interval"): ("sys", "heartbeat_interval"),
    **{
        ("opentelemetry", *path): ("opentelemetry", *path)
        for path in (
            ("metrics", "enable"), ("metrics", "interval"), ("traces", "enable"), ("traces", "max_queue_size"),
            ("traces", "scheduled_delay"), ("traces", "filter", "trace_all"),
        )
    },
    ("retainer", "max_retained_messages"): ("retainer", "max_messages"),
    ("retainer", "backend", "max_retained_messages"): ("retainer", "max_messages"),
}
AUTHORIZATION = {("no_match",): "no_match", ("deny_action",): "deny_action", ("cache", "enable"): "cache.enable",
                 ("cache", "max_size"): "cache.max_size", ("cache", "ttl"): "cache.ttl"}  # fmt: skip
LOGIN = re.compile(
    r"include|psk_authentication\.enable = True|mqtt\.(peer_cert_as_\w+|use_username_as_clientid) = (?!disabled|False)"
    r"|exhook\.servers = (?!\[\])|zones\..*|mqtt\.(client_attrs_init|clientid_override) = (?!\[\]|disabled|$)"
)
"""Prefixes of lines about authentication."""
TAKEN_OF_RULES = ("sql", "enable", "name", "description")
"""Keys of a rule besides its actions; `metadata` has the time of its creation."""
REMARKS = {
    "dashboard": "see docs/configuration.md",
    "rule_engine": "there is nothing like it here",
    "opentelemetry": "data is sent by OTLP over HTTP, port 4318 of a collector; see docs/opentelemetry.md",
    "bridges": "connectors, actions and sources replace them since EMQX 5.4",
}


def read_emqx(text: str) -> Imported:
    """Imports a file. Unknown keys become remarks. Raises ConfigError for a file of another format."""
    found = Imported()
    if _EMQX_4.search(text):
        text = _from_4(text)
    tree = _parse(text)
    login, rules, dashboard = (tree.pop(name, None) for name in ("authentication", "authorization", "dashboard"))
    listeners: dict[tuple[str, str], dict[tuple[str, ...], Any]] = {}
    left_out: dict[tuple[str, str], str] = {}
    closed: list[str] = []
    for kind in (CONNECTORS, ACTIONS, SOURCES):
        _take_sinks(found, kind, tree.pop(kind, None))
    take_gateways(found, tree.pop("gateway", None))
    node = tree["node"] if isinstance(tree.get("node"), dict) else {}
    of_cluster = {key: node.pop(key) for key in OWN_KEYS if key in node}
    take_cluster(found, node.get("name"), of_cluster, tree.pop("cluster", None), tree.pop("rpc", None))
    if "rewrite" in tree:
        _take_list(found, "rewrite", "rules", tree.pop("rewrite"))
    if isinstance(tree.get("auto_subscribe"), dict) and "topics" in tree["auto_subscribe"]:
        _take_list(found, "auto_subscribe", "topics", tree["auto_subscribe"].pop("topics"))
    if isinstance(tree.get("rule_engine"), dict):
        _take_rules(found, tree["rule_engine"].pop("rules", None))
    for path, value in flatten(tree):
        said = f"{'.'.join(path)} = {'******' if SECRET.search(path[-1]) else value}"
        if LOGIN.match(said):
            closed.append(f"{said}: there is nothing like it here")
        elif path in OTHER:
            value = {"warning": "warning", "notice": "info", "critical": "error"}.get(value, value) if path[0] == "log" else value
            found.take(OTHER[path], value, said)
        elif path[0] in SAME:
            found.take(path, value, said)
        elif path[0] == "listeners" and len(path) >= 4:
            _note_listener(found, listeners, left_out, path, value, said)
        else:
            found.remark(f"{said}: {REMARKS.get(path[0], 'there is nothing like it here')}")
    taken = []
    for (kind, name), own in listeners.items():
        why = left_out.get((kind, name))
        if why:
            found.remark(f"listeners.{kind}.{name}: left out: {why}")
        taken.append(not why and found.take_together(own, f"listeners.{kind}.{name}"))
    if taken and not any(taken):
        closed.append("no listener could be taken over")
    _take_dashboard(found, dashboard if isinstance(dashboard, dict) else {})
    _take_authentication(found, login, closed)
    if rules:
        _take_authorization(found, rules if isinstance(rules, dict) else {"sources": [rules]})
    return found


def _take_list(found: Imported, section: str, key: str, value: Any) -> None:
    """Imports a list of tables with the same keys as here."""
    tables = list(value.values()) if isinstance(value, dict) else value
    if tables:
        found.take((section, key), tables, section)


def _take_sinks(found: Imported, kind: str, types: Any) -> None:
    """Imports connectors, actions or sources of types that are here; an action or a source with its connector alone."""
    for type, entries in types.items() if isinstance(types, dict) else ():
        for name, given in entries.items() if isinstance(entries, dict) else ():
            said = f"{kind}.{type}.{name}"
            if normal_type(type) not in SINK_TYPES:
                found.remark(f"{said}: type must be {types_text()}, got {type}")
            elif not isinstance(given, dict):
                found.remark(f"{said}: must be a table")
            else:
                _take_sink(found, kind, normal_type(type), name, given)


def _take_sink(found: Imported, kind: str, type: str, name: str, given: dict[str, Any]) -> None:
    said, path = f"{kind}.{type}.{name}", (kind, type, name)
    try:
        values = from_emqx(kind, type, given)
    except ValueError as error:
        found.remark(f"{said}: {error}")
        return
    fallbacks = values.pop("fallback_actions", None)
    if fallbacks:
        found.remark(f"{said}.fallback_actions = {fallbacks}: to be set once all actions are there")
    own = _leaves(path, values)
    used = (CONNECTORS, type, values.get("connector"))
    of_connector = {key: value for key, value in found.settings.items() if key[:3] == used} if kind != CONNECTORS else {}
    found.take_together({**of_connector, **own}, said)


def _leaves(path: KeyPath, values: dict[str, Any]) -> dict[KeyPath, Any]:
    """Returns the keys of a section with their values."""
    found: dict[KeyPath, Any] = {}
    for name, value in values.items():
        field, _ = field_at((*path, name))
        found |= _leaves((*path, name), value) if isinstance(value, dict) and field is None else {(*path, name): value}
    return found


def _take_rules(found: Imported, rules: Any) -> None:
    """Imports rules. Actions that were not imported (`type:name`) become remarks; the rule is there without them."""
    for id, rule in rules.items() if isinstance(rules, dict) else ():
        said = f"rule_engine.rules.{id}"
        if not isinstance(rule, dict):
            found.remark(f"{said} = {rule}: must be a table")
            continue
        given = rule.get("actions", [])
        given = given if isinstance(given, list) else [given]
        there = {f"{key[1]}:{key[2]}" for key in found.settings if key[0] == ACTIONS}
        given = [normal_id(one) if isinstance(one, str) else one for one in given]
        actions = [one for one in given if isinstance(one, dict) or one in there]
        for one in given:
            if one not in actions:
                found.remark(f"{said}.actions: {one}: no such action was imported")
        values: dict[tuple[str, ...], Any] = {("rules", id, name): rule[name] for name in TAKEN_OF_RULES if name in rule}
        found.take_together(values | {("rules", id, "actions"): actions}, said)


def _take_authentication(found: Imported, login: Any, closed: list[str]) -> None:
    """Imports the chain of authenticators. An empty chain admits every client in both brokers."""
    members = [login] if isinstance(login, dict) else login or []
    chain = [one for one in members if not isinstance(one, dict) or one.get("enable", True) is not False]
    for one in chain:
        if isinstance(one, dict) and (one.get("mechanism"), one.get("backend")) == ("password_based", "built_in_database"):
            closed.append("authentication, built_in_database: its users are not taken over")
            if one.get("user_id_type") in ("username", "clientid"):
                found.settings["auth", "builtin", "user_id_type"] = one["user_id_type"]
        else:
            closed.append(f"authentication, {_backend(one)}: written otherwise here, see auth in docs/access.md")
    for text in closed[:-1]:
        found.remark(text)
    if closed:
        found.close_login(closed[-1])


def _take_authorization(found: Imported, rules: dict[str, Any]) -> None:
    """Imports sources up to the first one that does not exist here: a later one might allow what that one denies."""
    sources = rules.pop("sources", [])
    listed = [one for one in (sources if isinstance(sources, list) else [sources]) if not _off(one)]
    for path, value in flatten(rules):
        said = f"authorization.{'.'.join(path)} = {value}"
        if path in AUTHORIZATION:
            if not found.take(("acl", *AUTHORIZATION[path].split(".")), value, said):
                found.close_rules(said)
                return
        else:
            found.remark(f"{said}: there is nothing like it here")
    found.settings.setdefault(("acl", "no_match"), "allow")
    taken = []
    for one in listed:
        kind = one.get("type") if isinstance(one, dict) else None
        if kind == "file" and isinstance(one.get("path"), str) and "$" not in one["path"]:
            taken.append("file")
            found.settings["acl", "file", "path"] = one["path"]
        else:
            found.close_rules(f"authorization, source {kind or one}: its rules are not taken over, see acl in docs/access.md")
            return
    if taken:
        found.settings["acl", "sources"] = taken
    elif found.settings["acl", "no_match"] == "deny":
        found.close_rules("authorization.no_match = deny, and no source")


def _off(one: Any) -> bool:
    return isinstance(one, dict) and one.get("enable", True) is False


def _backend(one: Any) -> str:
    return str(one.get("backend") or one.get("mechanism")) if isinstance(one, dict) else str(one)


def _take_dashboard(found: Imported, dashboard: dict[str, Any]) -> None:
    """Imports one address: that of HTTPS, if there is one."""
    listeners = dashboard.pop("listeners", {})
    listeners = listeners if isinstance(listeners, dict) else {}
    there = {name: one for name, one in listeners.items() if isinstance(one, dict) and one.get("bind") not in (0, "0", None)}
    there = {name: one for name, one in there.items() if not _off(one)}
    if "https" in there:
        secure = there["https"]
        files = secure.get("ssl_options", secure)
        own: dict[tuple[str, ...], Any] = {("api", "bind"): bind_of(secure["bind"])}
        own |= {("api", key): files[key] for key in ("certfile", "keyfile") if isinstance(files, dict) and key in files}
        if ("api", "certfile") in own:
            found.take_together(own, "dashboard.listeners.https")
        else:
            found.remark("dashboard.listeners.https: left out: no certfile, which would be plain HTTP")
        if "http" in there:
            found.remark("dashboard.listeners.http: the dashboard has one address, that of https")
    elif "http" in there:
        found.take(("api", "bind"), bind_of(there["http"]["bind"]), "dashboard.listeners.http")
    for path, value in flatten(dashboard):
        shown = "******" if SECRET.search(path[-1]) else value
        found.remark(f"dashboard.{'.'.join(path)} = {shown}: there is nothing like it here")


def _note_listener(
    found: Imported,
    listeners: dict[tuple[str, str], dict[tuple[str, ...], Any]],
    left_out: dict[tuple[str, str], str],
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
        own[*here, "bind"] = bind_of(value)
    elif rest in (("enable",), ("enabled",)):
        if value is not True:
            left_out[kind, path[2]] = "not enabled"
    elif rest == ("authentication",) and value == []:
        pass
    elif rest[0] in LISTENER and len(rest) == 1:
        own[*here, rest[0]] = value
    elif rest[0] == "ssl_options" and len(rest) == 2 and rest[1] in TLS:
        own[*here, "tls", rest[1]] = value
    elif rest == ("websocket", "mqtt_path"):
        own[*here, "websocket", "path"] = value
    elif LISTENER_HARMLESS.fullmatch(".".join(rest)):
        found.remark(f"{said}: there is nothing like it here")
    else:
        left_out[kind, path[2]] = f"{said}: there is nothing like it here"


_EMQX_4 = re.compile(r"^[ \t]*(listener\.(tcp|ssl|ws|wss)\.|allow_anonymous\b|acl_nomatch\b|acl_file\b|zone\.\w+\.)", re.MULTILINE)
CLUSTER_4 = {"cluster.discovery": "cluster.discovery_strategy", "cluster.dns.type": "cluster.dns.record_type"}
"""Keys of a cluster that EMQX 5 has under another name."""
_LISTENER_4 = re.compile(r"listener\.(tcp|ssl|ws|wss)\.(\w+)(?:\.(.+))?")


def _from_4(text: str) -> str:
    """Returns the lines of a file of EMQX 4 as keys of EMQX 5. Keys with another meaning keep their names and become remarks."""
    lines, sources, rules, anonymous = [], "", [], "false"
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if not key or key.startswith("#"):
            continue
        listener = _LISTENER_4.fullmatch(key)
        quoted = '"' + value.strip('"').replace("\\", "\\\\").replace('"', '\\"') + '"'
        if listener is not None:
            kind, name, rest = listener.groups()
            rest = "bind" if rest is None else f"ssl_options.{rest}" if rest in TLS else rest
            rest = {"ssl_options.handshake_timeout": "tcp_options.handshake_timeout"}.get(rest, rest)
            if rest.split(".")[0] in ("access", "peer_cert_as_username", "mountpoint", "proxy_protocol", "bind", "ssl_options",
                                      "max_connections"):  # fmt: skip
                lines.append(f"listeners.{kind}.{name}.{rest} = {value if value in ('true', 'false') else quoted}")
            else:
                lines.append(f"listeners.{kind}.{name}.tcp_options.{rest} = {quoted}")
        elif key == "allow_anonymous":
            anonymous = value
        elif key == "acl_nomatch":
            rules.append(f"authorization.no_match = {quoted}")
        elif key == "acl_deny_action":
            rules.append(f"authorization.deny_action = {quoted}")
        elif key == "acl_file":
            sources = f"authorization.sources = [{{ type = file, path = {quoted} }}]"
        elif key in ("node.name", "node.cookie"):
            lines.append(f"{key} = {quoted}")
        elif re.fullmatch(r"(cluster|rpc)\.[a-z0-9_.]+", key):
            lines.append(f"{CLUSTER_4.get(key, key)} = {quoted}")
        elif key == "mqtt.max_packet_size":
            lines.append(f"mqtt.max_packet_size = {quoted}")
        elif re.fullmatch(r"[\w.-]+", key):
            lines.append(f'"{key}" = {quoted}')
        else:
            raise ConfigError(f"EMQX 4's file: must be lines of key = value, got {line.strip()!r}")
    if anonymous != "true":
        lines.append('authentication = [{ mechanism = "allow_anonymous", backend = "allow_anonymous = false" }]')
    return "\n".join([*lines, *rules, sources])


def _parse(text: str) -> dict[str, Any]:
    """Raises ConfigError for syntax that this reader would misread."""
    tokens: list[re.Match[str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            if not text[at:].strip():
                break
            raise _misread(text, at + len(text[at:]) - len(text[at:].lstrip()))
        if match["quoted"] == '""' and text[match.end() : match.end() + 1] == '"':
            raise _misread(text, match.start())  # three quotes without an end
        if (match["word"] or "").endswith("$") and text[match.end() : match.end() + 1] == "{":
            raise _misread(text, match.start())  # a reference to another key
        if match.lastgroup:
            tokens.append(match)
        at = match.end()
    table, end = _table(tokens, 0)
    if end <= len(tokens) and any(one["mark"] == "}" for one in tokens[end - 1 : end]):
        raise _misread(text, tokens[end - 1].start())
    return table


def _misread(text: str, at: int) -> ConfigError:
    line = text.count("\n", 0, at) + 1
    rest = text[at:].partition("\n")[0][:80]
    return ConfigError(f"line {line}: must be tables, key = value and lists, as docs/coming-from.md says, got {rest!r}")


def _table(tokens: list[re.Match[str]], at: int) -> tuple[dict[str, Any], int]:
    """Reads members up to the closing brace or the end."""
    table: dict[str, Any] = {}
    while at < len(tokens) and tokens[at][0].strip() != "}":
        if tokens[at]["mark"]:
            at += 1  # commas between members
            continue
        path = [tokens[at]["word"] or _text(tokens[at])]
        if path == ["include"]:
            raise ConfigError("include: must be read with the file that has it, got a file of its own; put both into one")
        path = path[0].split(".") if tokens[at]["word"] else path
        at += 1
        if at < len(tokens) and tokens[at]["mark"] in ("=", ":"):
            at += 1
        value, at = _value(tokens, at)
        here = table
        for part in path[:-1]:
            inner = here.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"{'.'.join(path)}: must be below a table, got {part} = {inner}")
            here = inner
        old = here.get(path[-1])
        here[path[-1]] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return table, at + 1


def _is_text(token: re.Match[str]) -> bool:
    return token["quoted"] is not None or token["raw"] is not None


def _text(token: re.Match[str]) -> str:
    """Returns a text in quotes, or in three of them: `\"\"\"~` begins one whose lines are indented, and `~\"\"\"` ends it."""
    if token["raw"]:
        raw = token["raw"][3:-3]
        return textwrap.dedent(raw[2:].rstrip().removesuffix("~")).rstrip() if raw.startswith("~\n") else raw
    try:
        text: str = json.loads(token["quoted"], strict=False)
    except ValueError:
        return token["quoted"][1:-1].replace('\\"', '"')
    return text


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
    if _is_text(tokens[at]):
        return _text(tokens[at]), at + 1
    # Text without quotes may contain colons: 0.0.0.0:1883.
    word, line_end = tokens[at]["word"] or "", tokens[at].end()
    at += 1
    while at < len(tokens) and tokens[at].start(tokens[at].lastgroup or 0) == line_end and not _is_text(tokens[at]):
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
