"""C fields of a worker that mirror keys of the schema: name, type and conversion of each, derived from the field of the schema.

A worker reads these keys for each packet, so it has them as C fields. The declarations, shardbroker/session/mqtt_settings.pxd, are
written by `python -m shardbroker.config.mqtt_pxd`; the values are set by `MqttSettings.configure` in one loop over c_values().
"""

from collections.abc import Callable, Iterator
from math import inf
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from shardbroker.config.base import Live
from shardbroker.config.units import Unit
from shm.roles import WORKER

__all__ = ["CField", "c_fields", "c_values"]

NEVER = 2**64 - 1
"""A time that is never reached, ms."""


class CField(NamedTuple):
    """How a key is mirrored."""

    name: str
    type: str
    convert: Callable[[Any], Any]


def milliseconds(seconds: float | None) -> int:
    """Returns a duration in ms; 0, which means no limit, for infinity and for `disabled`."""
    return 0 if seconds is None or seconds == inf else int(seconds * 1000)


EXCEPTIONS = {
    "max_qos_allowed": CField("max_qos", "uint32_t", int),
    "max_clientid_len": CField("max_client_id", "uint32_t", int),
    "session_expiry_interval": CField("session_expiry_ms", "uint64_t", lambda value: milliseconds(value) or NEVER),
    "max_session_expiry_interval": CField("max_session_expiry_ms", "uint64_t", milliseconds),
    "message_expiry_interval": CField("message_expiry_ms", "uint64_t", milliseconds),
    "server_keepalive": CField("server_keepalive_s", "uint32_t", lambda value: int(value or 0)),
    "mqueue_overflow": CField("push_back", "bint", lambda value: value == "push_back"),
    "push_back_topics": CField("push_back_topics", "list", lambda filters: [one.encode() for one in filters]),
    "mqueue_default_priority": CField("mqueue_default_priority", "int", lambda value: 256 if value == "highest" else 0),
}
"""Keys whose field has another name or meaning in C than the rules give it. A new key needs none."""


def c_fields(section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo, CField]]:
    """Yields (key, field of the schema, C field) of each key of a section that can change in a running worker."""
    for key, field in section.model_fields.items():
        mark = next((mark for mark in field.metadata if isinstance(mark, Live)), None)
        if mark is None or WORKER in mark.reaches:
            yield key, field, EXCEPTIONS.get(key) or _by_rule(key, field)


def _by_rule(key: str, field: FieldInfo) -> CField:
    annotation: Any = field.annotation
    if Unit.DURATION in field.metadata:
        return CField(f"{key}_ms", "uint64_t", milliseconds)
    if annotation is bool:
        return CField(key, "bint", bool)
    if annotation is int:
        return CField(key, "uint32_t", int)
    if annotation is float:
        return CField(key, "double", float)
    if annotation is str:
        return CField(key, "bytes", str.encode)
    if get_origin(annotation) is dict and get_args(annotation)[0] is str:
        return CField(key, "dict", lambda table: {name.encode(): value for name, value in table.items()})
    raise TypeError(f"{key}: no rule for a C field of type {annotation}; EXCEPTIONS takes a row for it")


def c_values(section: BaseModel) -> dict[str, Any]:
    """Returns the value of each C field by its name."""
    return {mirror.name: mirror.convert(getattr(section, key)) for key, _, mirror in c_fields(type(section))}
