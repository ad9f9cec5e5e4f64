"""What can change while the broker runs, and the settings that are in force after such changes.

Every process starts with the settings that were in force when the broker started. What has changed since stands in a file of the
runtime directory, so that a process that is started again has it too. Keys that need a restart never get there.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import cbor2
from pydantic import BaseModel

from shardbroker.config.base import RESTART, Live
from shardbroker.config.keys import section_of
from shardbroker.config.settings import Settings
from shardbroker.stores.files import replace_file
from shm.channels import dump_plain

__all__ = ["InForce", "dump", "in_force", "is_live", "keep_in_force", "parse", "reach_of", "replaced"]

IN_FORCE = "settings.cbor"
"""In the runtime directory."""


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
    """A copy with another value at `path`, which is one of the settings' own."""

    def copy(model: Any, parts: list[str]) -> Any:
        if not parts:
            return value
        if isinstance(model, BaseModel):
            return model.model_copy(update={parts[0]: copy(getattr(model, parts[0]), parts[1:])})
        return {**model, parts[0]: copy(model[parts[0]], parts[1:])}

    result: Settings = copy(settings, list(path))
    return result


def dump(settings: Settings) -> bytes:
    """Settings as bytes, for another process."""
    return dump_plain(settings.model_dump())


def parse(data: bytes) -> Settings:
    """The reverse of dump()."""
    return Settings.model_validate(cbor2.loads(data))


def keep_in_force(runtime_dir: Path, settings: Settings) -> None:
    """Processes that are started from now on begin with these. Raises OSError."""
    replace_file(runtime_dir / IN_FORCE, dump(settings), sync=False)


def in_force(runtime_dir: Path, at_start: Settings) -> Settings:
    """What is in force: `at_start` unless something has changed since."""
    try:
        return parse((runtime_dir / IN_FORCE).read_bytes())
    except FileNotFoundError:
        return at_start


class InForce:
    """in_force() for who asks again and again: parsed, which takes some 8 ms, only after a change."""

    def __init__(self, runtime_dir: Path, at_start: Settings) -> None:
        self._file = runtime_dir / IN_FORCE
        self._seen: tuple[int, int] | None = None
        self._settings = at_start

    def __call__(self) -> Settings:
        try:
            status = self._file.stat()
        except FileNotFoundError:
            return self._settings
        if (status.st_ino, status.st_mtime_ns) != self._seen:
            self._settings = parse(self._file.read_bytes())
            self._seen = status.st_ino, status.st_mtime_ns
        return self._settings
