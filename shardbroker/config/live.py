"""Which keys take effect while the broker runs and which processes they reach, read from the marks of the schema.

How a change travels is in shm/in_force.py; docs/design/0007-configuration.md shows all of it.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import cbor2
from pydantic import BaseModel

from shardbroker.config.base import RESTART, Live
from shardbroker.config.keys import section_of
from shardbroker.config.settings import Settings
from shm.channels import dump_plain

__all__ = ["dump", "is_live", "parse", "reach_of", "replaced"]


@cache
def reach_of(key: str) -> frozenset[str]:
    """Returns the roles of the processes that a change of this dotted key reaches; empty if the change needs a restart."""
    model: type[BaseModel] = Settings
    mark = RESTART
    for part in key.split("."):
        field = model.model_fields.get(part)
        if field is None:
            break  # a name in a table, such as that of a listener
        mark = next((found for found in field.metadata if isinstance(found, Live)), mark)
        section = section_of(field)
        if section is None:
            break
        model = section
    return mark.reaches


def is_live(key: str) -> bool:
    """Whether a change of this dotted key takes effect without a restart."""
    return bool(reach_of(key))


def replaced(settings: Settings, path: Iterable[str], value: Any) -> Settings:
    """Returns a copy with another value at `path`, which exists in the settings."""

    def copy(model: Any, parts: list[str]) -> Any:
        if not parts:
            return value
        if isinstance(model, BaseModel):
            return model.model_copy(update={parts[0]: copy(getattr(model, parts[0]), parts[1:])})
        return {**model, parts[0]: copy(model[parts[0]], parts[1:])}

    result: Settings = copy(settings, list(path))
    return result


def dump(settings: Settings) -> bytes:
    """Returns settings as CBOR, for another process. Secrets are written out."""
    return dump_plain(settings.model_dump())


def parse(data: bytes) -> Settings:
    """Returns the settings that dump() encoded."""
    return Settings.model_validate(cbor2.loads(data))
