"""Plugins `emqx_backend_<db>` of EMQ X Enterprise 3 and 4, which keep clients and messages in databases.

A file is lines of `backend.<db>.<pool>.<key> = <value>` and of
`backend.<db>.hook.<event>.<n> = {"topic": ..., "action": ..., "pool": ...}`.

A pool becomes a connector. Hooks with the functions of the plugin become a preset `persistence.<db>`, those with own statements
a rule and an action, and the lookup of subscriptions a source of `auto_subscribe`. Hooks of InfluxDB, OpenTSDB and TimescaleDB
write what their templates make of a message (foreign_emqx_templates.py): a rule and an action for each.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from shardbroker.config.errors import ConfigError
from shardbroker.config.foreign import Imported
from shardbroker.config.foreign_emqx_templates import Template, made_of, read_templates
from shardbroker.config.keys import KeyPath
from shardbroker.config.persistence import check_filters_of_rule
from shardbroker.config.units import Duration

__all__ = ["BACKEND", "add_backends"]

TYPES = {
    "cassa": "cassandra",
    "dynamo": "dynamo",
    "ecql": "cassandra",
    "influxdb": "influxdb",
    "mongo": "mongodb",
    "mysql": "mysql",
    "opentsdb": "opents",
    "pgsql": "pgsql",
    "redis": "redis",
    "timescale": "timescale",
}
"""Name of a plugin -> type of connectors and actions. Cassandra's pools have another name than its hooks."""
BACKEND = re.compile(rf"^[ \t]*backend\.({'|'.join(TYPES)})\.", re.MULTILINE)
"""What a file of such a plugin has."""
WITH_TEMPLATES = ("influxdb", "opents", "timescale")
LOOKUPS = {"mongodb": "mongodb", "mysql": "mysql", "pgsql": "postgresql", "redis": "redis"}
"""Type -> source of `auto_subscribe`."""
TEXTS = ("username", "password", "database", "keyspace")
"""Keys of connectors whose value is text also where it is digits."""
NUMBERS = (("database", "redis"),)
_COMMON = {
    "server": "server", "user": "username", "username": "username", "password": "password", "database": "database",
    "pool_size": "pool_size", "ssl": "tls", "cacertfile": "tls_ca", "certfile": "tls_cert", "keyfile": "tls_key",
    "ssl.cacertfile": "tls_ca", "ssl.certfile": "tls_cert", "ssl.keyfile": "tls_key",
}  # fmt: skip
KEYS = {
    "cassandra": _COMMON | {"nodes": "servers", "keyspace": "keyspace"},
    "dynamo": _COMMON | {
        "server": "url", "aws_access_key_id": "aws_access_key_id", "aws_secret_access_key": "aws_secret_access_key",
    },
    "influxdb": _COMMON | {"https_enabled": "tls"},
    "mongodb": _COMMON | {
        "type": "mongo_type", "rs_set_name": "replica_set_name", "login": "username", "auth_source": "auth_source",
        "c_pool_size": "pool_size",
    },
    "mysql": _COMMON,
    "opents": _COMMON | {"summary": "summary", "details": "details", "sync": "sync"},
    "pgsql": _COMMON,
    "redis": _COMMON | {"type": "redis_type", "sentinel": "sentinel"},
    "timescale": _COMMON,
}  # fmt: skip
"""Type -> key of a pool -> key of a connector."""
WITHOUT_EFFECT = re.compile(
    r"auto_reconnect|batch_size|encoding|logger|max_batch_size|query_timeout|set_timestamp|size|topology\..*"
)
"""Keys of pools for which there is nothing to choose here."""
NAMES = {"mongo_type": {"shared": "sharded", "unknown": "single"}}
SECRET = re.compile("password|secret")
DURATION: TypeAdapter[float] = TypeAdapter(Duration)
KEEPS = {
    ("client.connected", "on_client_connected"): "clients",
    ("session.created", "on_client_connected"): "clients",
    ("client.disconnected", "on_client_disconnected"): "clients",
    ("message.publish", "on_message_publish"): "messages",
    ("message.publish", "on_message_store"): "messages",
    ("message.publish", "on_message_retain"): "retained",
    ("message.publish", "on_retain_delete"): "removed",
    ("message.acked", "on_message_acked"): "acked",
    ("message.acked", "on_message_acked_for_pubsub"): "acked",
    ("message.acked", "on_message_acked_for_queue"): "deleted",
    ("session.subscribed", "on_message_fetch"): "fetch",
    ("session.subscribed", "on_message_fetch_for_pubsub"): "fetch",
    ("session.subscribed", "on_message_fetch_for_queue"): "fetch",
    ("session.subscribed", "on_retain_lookup"): "retain_lookup",
}
"""Event and function -> key of a preset; removed: retained messages, and deleted: acknowledged ones, which a preset removes."""
SUBSCRIBES = ("on_subscribe_lookup", "on_subscription_lookup")
REASONS = {
    "on_acked_delete": "positions stay when a client unsubscribes",
}
"""Start of the name of a function -> why it is left out."""
STATEMENTS = {"mysql": "sql", "pgsql": "sql", "timescale": "sql", "cassandra": "cql", "redis": "commands"}
"""Type -> name of the own statements of a hook."""
EVENTS = {
    "client.connected": "$events/client_connected",
    "client.disconnected": "$events/client_disconnected",
    "session.subscribed": "$events/session_subscribed",
    "session.unsubscribed": "$events/session_unsubscribed",
    "message.delivered": "$events/message_delivered",
    "message.acked": "$events/message_acked",
}
"""Event -> name behind FROM."""
FIELDS = {
    "client.connected": "clientid",
    "client.disconnected": "clientid",
    "session.subscribed": "clientid, topic, qos",
    "session.unsubscribed": "clientid, topic",
    "message.publish": "id AS msgid, topic, payload, payload AS message, qos, clientid",
    "message.delivered": "id AS msgid, topic, clientid",
    "message.acked": "id AS msgid, topic, clientid",
}
"""Event -> fields of a rule for own statements, with the names that they have there."""


class Hook(NamedTuple):
    """said: the line, for remarks."""

    event: str
    function: str
    statements: dict[str, Any]
    options: Any
    """`offline_opts`, of a function that fetches."""
    topic: str
    pool: str
    expires_s: Any
    said: str


@dataclass
class _Plugin:
    """What the files have about a database. keys: of pools, by name. own: keys of the plugin itself."""

    pools: dict[str, dict[str, str]] = field(default_factory=dict)
    own: dict[str, str] = field(default_factory=dict)
    hooks: list[Hook] = field(default_factory=list)
    templates: list[Template] = field(default_factory=list)
    precisions: dict[str, str] = field(default_factory=dict)
    """Unit of times that are not those of the broker, by pool."""


def add_backends(found: Imported, confs: Sequence[str], templates: Sequence[tuple[str, str]]) -> None:
    """Imports the files of plugins, and files of templates with their names. Raises ConfigError for other files."""
    plugins: dict[str, _Plugin] = {}
    for text in confs:
        for line in text.splitlines():
            _read_line(found, plugins, line.strip())
    for name, text in templates:
        try:
            made, wrong = read_templates(text)
        except ValueError as error:
            raise ConfigError(f"{name}: {error}") from None
        found.remarks += [f"{name}: {one}" for one in wrong]
        for one in made:
            plugins.setdefault(one.type, _Plugin()).templates.append(one)
    for type, plugin in plugins.items():
        there = _take_pools(found, type, plugin)
        hooks = [one for one in plugin.hooks if _has_pool(found, type, one, there)]
        if type in WITH_TEMPLATES:
            _take_templates(found, type, plugin, hooks)
        else:
            _take_preset(found, type, plugin, hooks, there)
            _take_lookups(found, type, hooks, there)
        for number, hook in enumerate(hooks, 1):
            if hook.statements:
                _take_statements(found, type, hook, number)


# --- lines ------------------------------------------------------------------------------------------------------------------------


def _read_line(found: Imported, plugins: dict[str, _Plugin], line: str) -> None:
    key, _, value = (part.strip() for part in line.partition("="))
    if not key or key.startswith("#"):
        return
    parts = key.split(".")
    if parts[0] != "backend" or len(parts) < 3 or parts[1] not in TYPES:
        found.remark(f"{_shown(key, value)}: must be backend.<db>.<pool>.<key>, with one of {', '.join(TYPES)}")
        return
    plugin = plugins.setdefault(TYPES[parts[1]], _Plugin())
    rest = parts[2:]
    if rest[0] == "hook":
        _note_hook(found, plugin, key, ".".join(rest[1:-1]), value)
    elif rest[0] in ("udp", "http") and len(rest) == 3 and parts[1] == "influxdb":
        plugin.pools.setdefault(rest[1], {})[f"{rest[0]}.{rest[2]}"] = value
    elif len(rest) == 1 or rest[0] == "msg":
        plugin.own[".".join(rest)] = value
    else:
        plugin.pools.setdefault(rest[0], {})[".".join(rest[1:])] = value


def _note_hook(found: Imported, plugin: _Plugin, key: str, event: str, value: str) -> None:
    said = f"{key} = {value}"
    try:
        given = json.loads(value)
        action = given["action"]
        function = action.get("function", "")
        statements = {name: one for name, one in action.items() if name != "function"}
        topic, pool = given.get("topic", "#"), given.get("pool", "")
        check_filters_of_rule([topic])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        found.remark(f'{said}: must be {{"topic": filter, "action": {{"function": name}}, "pool": name}}: {error}')
        return
    options, expires_s = given.get("offline_opts"), given.get("expired_time")
    plugin.hooks.append(Hook(event, str(function), statements, options, topic, str(pool), expires_s, said))


def _shown(key: str, value: object) -> str:
    return f"{key} = {'******' if SECRET.search(key) else value}"


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _plain(value: str) -> Any:
    """Returns the value of a key: a boolean, a number or text."""
    text = _unquoted(value)
    if text.lower() in ("true", "on", "false", "off"):
        return text.lower() in ("true", "on")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text


# --- pools ------------------------------------------------------------------------------------------------------------------------


def _take_pools(found: Imported, type: str, plugin: _Plugin) -> dict[str, dict[str, Any]]:
    """Imports pools as connectors; returns those that are there, with their keys."""
    there = {}
    for pool, given in plugin.pools.items():
        said = f"backend.{type}.{pool}"
        keys = _of_influxdb(found, plugin, pool, given) if type == "influxdb" else given
        values = _of_pool(found, type, said, keys)
        if type == "dynamo" and "region" in plugin.own:
            values["region"] = plugin.own["region"]
        if type == "influxdb":
            values["influxdb_type"] = "influxdb_api_v1"
        path: KeyPath = ("connectors", type, pool)
        if found.take_together({(*path, name): value for name, value in values.items()}, said):
            there[pool] = values
    for key, value in plugin.own.items():
        if (type, key) not in (("dynamo", "region"), ("redis", "msg.expired_after")):
            found.remark(f"{_shown(f'backend.{type}.{key}', value)}: there is nothing like it here")
    return there


def _of_pool(found: Imported, type: str, said: str, given: dict[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, text in given.items():
        line, value = _shown(f"{said}.{key}", text), _plain(text)
        name = KEYS[type].get(key)
        if name is not None:
            value = value if (name, type) in NUMBERS or name not in TEXTS else _unquoted(text)
            values[name] = NAMES.get(name, {}).get(value, value)
        elif WITHOUT_EFFECT.fullmatch(key):
            found.notes.append(line)
        elif (key, value) not in (("channel", "mqtt_channel"), ("srv_record", False), ("sync_timeout", 0)):
            found.remark(f"{line}: there is nothing like it here")
    if values.get("redis_type", values.get("mongo_type", "single")) != "single" and "server" in values:
        values["servers"] = values.pop("server")
    if values.get("redis_type", "sentinel") != "sentinel" or not values.get("sentinel", True):
        values.pop("sentinel", None)
    return values


def _of_influxdb(found: Imported, plugin: _Plugin, pool: str, given: dict[str, str]) -> dict[str, str]:
    """Returns the keys of a pool of InfluxDB in one form: it had three, and UDP in each of them."""
    keys = {key.removeprefix("common."): value for key, value in given.items()}
    protocol = keys.pop("write_protocol", "http" if any(key.startswith("http.") for key in keys) else "udp")
    udp = {key.removeprefix("udp."): value for key, value in keys.items() if key.startswith("udp.") or key == "server"}
    own = {key.removeprefix("http."): value for key, value in keys.items() if not key.startswith("udp.") and key != "server"}
    if (precision := own.pop("precision", "")) in ("ns", "us", "ms", "s"):
        plugin.precisions[pool] = precision
    host, port = own.pop("host", ""), own.pop("port", "8086")
    if protocol == "udp" or not (host or "server" in own):
        given_host = udp.get("host") or udp.get("server", "").rpartition(":")[0] or "127.0.0.1"
        said = f"backend.influxdb.{pool}: UDP to {given_host}"
        if not (host or "server" in own):
            host = given_host
            said += f": there is only HTTP here; set server (now {host}:{port}) and database of connectors.influxdb.{pool}"
        else:
            said += ": there is only HTTP here, whose keys were taken"
        found.remark(said)
    return own if "server" in own else own | {"server": f"{host}:{port}"}


def _has_pool(found: Imported, type: str, hook: Hook, there: dict[str, Any]) -> bool:
    if hook.pool not in there:
        found.remark(f"{hook.said}: there is no pool {hook.pool!r} of {type}")
    return hook.pool in there


# --- presets ----------------------------------------------------------------------------------------------------------------------


def _take_preset(found: Imported, type: str, plugin: _Plugin, hooks: Sequence[Hook], there: dict[str, Any]) -> None:
    """Imports the hooks that keep something as a preset: those of one pool."""
    kept: dict[str, list[Hook]] = {}
    for one in hooks:
        part = KEEPS.get((one.event, one.function))
        if part is not None:
            kept.setdefault(part, []).append(one)
        elif one.function and one.function not in SUBSCRIBES:
            why = next((text for start, text in REASONS.items() if one.function.startswith(start)), "there is nothing like it here")
            found.remark(f"{one.said}: {why}")
    if not kept:
        return
    pool = next(iter(kept.values()))[0].pool
    for part, members in kept.items():
        for one in members:
            if one.pool != pool:
                found.remark(f"{one.said}: a preset has one connector, which is {pool}")
        kept[part] = [one for one in members if one.pool == pool]
    values = _of_preset(found, kept)
    if type == "redis":
        expires = {str(one.expires_s) for members in kept.values() for one in members if one.expires_s is not None}
        expires |= {plugin.own["msg.expired_after"]} if "msg.expired_after" in plugin.own else set()
        if len(expires) > 1:
            found.remark(f"expired_time, msg.expired_after: there is one for all messages, taken is {sorted(expires)[0]} s")
        if expires:
            values["expired_after"] = _plain(sorted(expires)[0])
    path: KeyPath = ("persistence", type)
    connector = {key: value for key, value in found.settings.items() if key[:3] == ("connectors", type, pool)}
    own: dict[KeyPath, Any] = {(*path, name): value for name, value in {"connector": pool, **values}.items()}
    found.take_together({**connector, **own}, f"persistence.{type}")


def _of_preset(found: Imported, kept: dict[str, list[Hook]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if kept.get("clients"):
        values["clients"] = True
        if len({one.event for one in kept["clients"]}) == 1:
            found.remark(f"{kept['clients'][0].said}: both are kept, connections and their ends")
    for part in ("messages", "retained"):
        if kept.get(part):
            values[part] = _topics(kept[part])
    if any(one.function == "on_message_store" for one in kept.get("messages", ())):
        values["store_qos0"] = True
        for one in kept["messages"]:
            if one.function != "on_message_store":
                found.remark(f"{one.said}: messages of QoS 0 are kept too, as for the others")
    for one in kept.get("removed", ()):
        if one.topic not in values.get("retained", ()):
            found.remark(f"{one.said}: retained messages are removed where they are kept (on_message_retain), which is not so here")
    positions, deleted = kept.get("acked", []), kept.get("deleted", [])
    if positions:
        values["acked"] = _topics(positions)
        for one in deleted:
            found.remark(f"{one.said}: a preset either keeps positions, as for {positions[0].topic}, or removes messages")
    elif deleted and "messages" in values:
        values |= {"acked": _topics(deleted), "on_acked": "delete"}
    elif deleted:
        found.remark(f"{deleted[0].said}: there are no messages to be removed without on_message_publish")
    return values | _of_lookups(found, kept, "acked" in values)


def _of_lookups(found: Imported, kept: dict[str, list[Hook]], is_acked: bool) -> dict[str, Any]:
    """Returns the keys of what new subscriptions get from the database."""
    values: dict[str, Any] = {}
    is_elsewhere = any(key[0] == "persistence" and key[2] in ("fetch", "retain_lookup") for key in found.settings)
    for key in ("fetch", "retain_lookup"):
        hooks = kept.get(key, [])
        if key == "fetch" and not is_acked:
            why = "without on_message_acked each subscription would get all messages again"
        else:
            why = "subscriptions are looked up in one database"
        if is_elsewhere or (key == "fetch" and not is_acked):
            for one in hooks:
                found.remark(f"{one.said}: {why}")
        elif hooks:
            values[key] = _topics(hooks)
    ranges = [_range_s(found, one) for one in kept.get("fetch", ())]
    if "fetch" in values and any(ranges):
        values["fetch_time_range"] = max(ranges) if all(ranges) else 0
        if len(set(ranges)) > 1:
            found.remark("offline_opts.time_range: there is one for all subscriptions, the longest is taken")
    return values


def _range_s(found: Imported, hook: Hook) -> int:
    """Returns how old the messages may be that a hook fetches, in seconds; 0: any. Other options are named."""
    options = hook.options if isinstance(hook.options, dict) else {}
    for name in sorted(options.keys() - {"time_range"}):
        found.remark(f"{hook.said}: offline_opts.{name}: there is nothing like it here")
    try:
        return round(DURATION.validate_python(options.get("time_range", 0)))
    except ValidationError:
        found.remark(f"{hook.said}: offline_opts.time_range must be a duration such as 2h")
        return 0


def _topics(hooks: Sequence[Hook]) -> list[str]:
    return list(dict.fromkeys(one.topic for one in hooks))


def _take_lookups(found: Imported, type: str, hooks: Sequence[Hook], there: dict[str, Any]) -> None:
    """Imports the lookup of subscriptions as a source of `auto_subscribe`."""
    lookups = [one for one in hooks if one.function in SUBSCRIBES]
    if not lookups:
        return
    first, *others = lookups
    for one in others:
        found.remark(f"{one.said}: subscriptions are looked up once")
    name = LOOKUPS.get(type)
    if name is None:
        found.remark(f"{first.said}: auto_subscribe.sources has {', '.join(LOOKUPS.values())}")
        return
    sources = [*found.settings.get(("auto_subscribe", "sources"), []), name]
    path: KeyPath = ("auto_subscribe", name)
    own: dict[KeyPath, Any] = {(*path, key): value for key, value in there[first.pool].items()}
    found.take_together({("auto_subscribe", "sources"): sources, **own}, first.said)


# --- own statements ---------------------------------------------------------------------------------------------------------------


def _take_statements(found: Imported, type: str, hook: Hook, number: int) -> None:
    """Imports the own statements of a hook: a rule, and an action for each of them."""
    key = STATEMENTS.get(type)
    given = hook.statements.get(key or "")
    statements = [given] if isinstance(given, str) else given
    if key is None or hook.statements.keys() != {key} or hook.event not in FIELDS:
        found.remark(f"{hook.said}: there is nothing like it here")
        return
    if not isinstance(statements, list) or not all(isinstance(one, str) for one in statements):
        found.remark(f"{hook.said}: {key} must be a list of text")
        return
    where = "" if hook.topic == "#" or "topic" not in FIELDS[hook.event] else f" WHERE topic =~ '{hook.topic}'"
    name, where = EVENTS.get(hook.event, hook.topic), where if hook.event in EVENTS else ""
    sql = f'SELECT {FIELDS[hook.event]} FROM "{name}"{where}'
    base = _own_id(found, type, f"{hook.event}-{number}")
    parameters: Callable[[str], dict[str, Any]] = {
        "sql": lambda text: {"sql": text, "undefined_vars_as_null": True},
        "cql": lambda text: {"cql": text, "undefined_vars_as_null": True},
        "commands": lambda text: {"command_template": text.split()},
    }[key]
    made = [parameters(one) for one in statements]
    if len(made) > 1:
        found.remark(f"{hook.said}: its statements are {len(made)} actions, whose order among each other is not kept")
    _take_rule(found, type, base, hook.pool, sql, made, hook.said)


def _take_rule(found: Imported, type: str, id: str, pool: str, sql: str, made: Sequence[dict[str, Any]], said: str) -> bool:
    """Imports a rule with an action for each of the parameters, or nothing. Returns whether they were valid."""
    own: dict[KeyPath, Any] = {key: value for key, value in found.settings.items() if key[:3] == ("connectors", type, pool)}
    actions = []
    for number, parameters in enumerate(made, 1):
        name = id if len(made) == 1 else f"{id}-{number}"
        actions.append(f"{type}:{name}")
        own["actions", type, name, "connector"] = pool
        own |= {("actions", type, name, "parameters", key): value for key, value in parameters.items()}
    return found.take_together(own | {("rules", id, "sql"): sql, ("rules", id, "actions"): actions}, said)


# --- templates --------------------------------------------------------------------------------------------------------------------


def _take_templates(found: Imported, type: str, plugin: _Plugin, hooks: Sequence[Hook]) -> None:
    """Imports each template for each hook that writes messages."""
    writes = []
    for one in hooks:
        if (one.event, one.function) == ("message.publish", "on_message_publish"):
            writes.append(one)
        elif not one.statements:
            found.remark(f"{one.said}: there is nothing like it here")
    if writes and not plugin.templates:
        found.remark(f"{writes[0].said}: nothing is written without templates; name their file, data/templates/*.tmpl, too")
    if plugin.templates and not writes:
        lines = "with a pool and a hook message.publish"
        found.remark(f"templates of {type}: left out, as there is no emqx_backend_{_plugin_of(type)}.conf {lines}; name it, too")
        return
    for template in plugin.templates:
        for hook in writes:
            said = f"template of {template.filter!r}"
            try:
                made = made_of(template, hook.topic, plugin.precisions.get(hook.pool, ""))
            except ValueError as error:
                found.remark(f"{said}: {error}")
                continue
            id = _own_id(found, type, template.body.get("name") or template.filter)
            if _take_rule(found, type, id, hook.pool, made.sql, [made.parameters], said) and made.unit_is_unknown:
                found.remark(f"{said}: timestamp = {template.body['timestamp']}: its unit is not in the files, and taken to be ms")


def _own_id(found: Imported, type: str, wanted: object) -> str:
    """Returns a new name for a rule and its action."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", str(wanted)).strip("-")[:40] or "all"
    base, number = f"{type}-{slug}", 1
    id = base
    while ("rules", id, "sql") in found.settings:
        number += 1
        id = f"{base}-{number}"
    return id


def _plugin_of(type: str) -> str:
    return next(name for name, one in TYPES.items() if one == type)
