"""Definitions of connectors, actions and sources that arrive as JSON: their checks, secrets that are sent back masked, and EMQX's
keys."""

import re
from typing import Any

from pydantic import ValidationError

from shardbroker.config.errors import complaints
from shardbroker.config.keys import MASK
from shardbroker.config.sinks.base import ResourceOptions
from shardbroker.config.sinks.ids import normal_id
from shardbroker.config.sinks.types import SINK_TYPES, source_types

__all__ = ["ACTIONS", "CONNECTORS", "SOURCES", "checked", "from_emqx", "model_of", "with_secrets"]

CONNECTORS, ACTIONS, SOURCES = "connectors", "actions", "sources"
"""The kinds, as their sections are named."""
OF_RESPONSES = (
    "id", "type", "name", "status", "status_reason", "node_status", "node_metrics", "metrics", "rules", "actions", "origin",
    "sources", "created_at", "last_modified_at", "local_topic", "rate", "received", "failed", "lag_records", "lag_seconds",
    "fallback_of",
)  # fmt: skip
"""Keys of a response, which clients send back with a change."""
WITHOUT_EFFECT = (
    "auto_reconnect", "connect_timeout", "disable_prepared_statements", "enable_pipelining", "ipv6_probe", "max_inactive",
    "max_part_size", "max_retries", "min_part_size", "no_ack", "pool_size", "pool_type", "request_timeout", "retry_interval",
    "url_expire_time", "wait_for_publish_confirmations",
)  # fmt: skip
"""Keys of EMQX for which there is nothing to choose here, unless the type has them."""
RESOURCE_WITHOUT_EFFECT = (
    "async_inflight_window", "auto_restart_interval", "buffer_mode", "dispatch_strategy", "enable_batch", "enable_queue",
    "health_check_interval_jitter", "health_check_timeout", "max_buffer_size", "metrics_flush_interval", "query_mode",
    "resume_interval", "start_after_created", "start_timeout",
)  # fmt: skip
"""Keys of EMQX's `resource_opts`, likewise. A connector has no `resource_opts` here."""
TLS_KEYS = {"enable": "tls", "cacertfile": "tls_ca", "certfile": "tls_cert", "keyfile": "tls_key"}
"""Key of EMQX's table `ssl` -> key of a connector."""
VERIFY = {"verify_peer": True, "verify_none": False}


def checked(kind: str, type: str, given: dict[str, Any]) -> Any:
    """Returns the model of a definition. Raises ValueError that names each wrong key."""
    try:
        return model_of(kind, type).model_validate(given)
    except ValidationError as error:
        raise ValueError(complaints(error, (kind, type, "<name>"))) from None


def model_of(kind: str, type: str) -> Any:
    """Returns the model of a definition. Raises ValueError for a type without sources."""
    row = SINK_TYPES[type]
    if kind == SOURCES and row.source is None:
        raise ValueError(f"type: must be one with sources ({', '.join(source_types())}), got {type!r}")
    return {CONNECTORS: row.connector, ACTIONS: row.action, SOURCES: row.source}[kind]


def with_secrets(given: Any, before: Any, key: str = "") -> Any:
    """Returns a definition in which masked values are those of the definition before. Raises ValueError without one."""
    if isinstance(given, dict):
        old = before if isinstance(before, dict) else {}
        return {name: with_secrets(value, old.get(name), f"{key}.{name}") for name, value in given.items()}
    if given == MASK and not isinstance(before, str):
        raise ValueError(f"{key.removeprefix('.')}: must be a value, since there is none before, got {MASK}")
    return before if given == MASK else given


def from_emqx(kind: str, type: str, given: dict[str, Any]) -> dict[str, Any]:
    """Returns a definition with the keys that it has here. Unknown keys stay, and `checked` refuses them. Raises ValueError."""
    model = model_of(kind, type)
    fields = model.model_fields
    found: dict[str, Any] = _without(given, fields, (*OF_RESPONSES, *WITHOUT_EFFECT))
    if kind == CONNECTORS:
        found = _adapted(model, found)
        if "resource_opts" not in fields:
            found.pop("resource_opts", None)
        if "parameters" not in fields and isinstance(found.get("parameters"), dict):
            found = found.pop("parameters") | found  # EMQX has them there for some types
        if "transport_options" not in fields and isinstance(found.get("transport_options"), dict):
            found = _without(found.pop("transport_options"), fields, WITHOUT_EFFECT) | found
        _join_port(found, fields)
        if "ssl" not in fields and isinstance(found.get("ssl"), dict):
            found = _tls_keys(found.pop("ssl"), fields) | found
        return found
    for table, without in (("parameters", WITHOUT_EFFECT), ("resource_opts", RESOURCE_WITHOUT_EFFECT)):
        if table in found and table in fields:
            part = fields[table].annotation
            found[table] = _adapted(part, _without(found[table], part.model_fields, without))
    if kind == SOURCES and isinstance(found.get("resource_opts"), dict):
        known = fields["resource_opts"].annotation.model_fields
        found["resource_opts"] = _without(found["resource_opts"], known, tuple(ResourceOptions.model_fields))
    if isinstance(found.get("fallback_actions"), list):
        found["fallback_actions"] = [_reference(one) for one in found["fallback_actions"]]
    return found


def _adapted(model: Any, values: Any) -> Any:
    """Returns what a type makes of keys that only EMQX's has. Raises ValueError."""
    return model.adapted(values) if hasattr(model, "adapted") and isinstance(values, dict) else values


def _join_port(found: dict[str, Any], fields: dict[str, Any]) -> None:
    """Puts EMQX's `port` behind the host in `server`, where a connector has no key for it."""
    if "port" in fields or "server" not in fields or "port" not in found or not isinstance(found.get("server"), str):
        return
    port = found.pop("port")
    host = f"[{found['server']}]" if found["server"].count(":") > 1 and not found["server"].startswith("[") else found["server"]
    found["server"] = host if re.search(r":\d+$", host) else f"{host}:{port}"


def _without(values: Any, known: Any, names: tuple[str, ...]) -> Any:
    return {name: one for name, one in values.items() if name in known or name not in names} if isinstance(values, dict) else values


def _reference(fallback: Any) -> Any:
    """Returns `type:name` for a table of EMQX; other values as they are."""
    if isinstance(fallback, dict) and fallback.get("kind", "reference") == "reference" and {"type", "name"} <= fallback.keys():
        return normal_id(f"{fallback['type']}:{fallback['name']}")
    return normal_id(fallback) if isinstance(fallback, str) else fallback


def _tls_keys(ssl: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a connector for EMQX's table `ssl`. Without `verify` the certificate is verified, other than in EMQX."""
    if ssl.get("enable") is not True:
        return {"tls": False} if "tls" in fields and fields["tls"].default else {}
    if ssl.get("server_name_indication") not in (None, "", "auto"):
        raise ValueError(f"ssl.server_name_indication: must be auto, got {ssl['server_name_indication']!r:.100}")
    found: dict[str, Any] = {here: ssl[there] for there, here in TLS_KEYS.items() if ssl.get(there) not in (None, "")}
    if "tls" not in fields:
        del found["tls"]  # the scheme of a URL decides
    if "verify" in ssl:
        if str(ssl["verify"]) not in VERIFY:
            raise ValueError(f"ssl.verify: must be verify_peer or verify_none, got {ssl['verify']!r:.100}")
        found["tls_verify"] = VERIFY[str(ssl["verify"])]
    return found
