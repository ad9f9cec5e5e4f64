"""Checks of a rule before it is in force."""

import json
import re

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter
from shardbroker.rules.compiler import compile_rule
from shardbroker.rules.errors import SqlError
from shardbroker.rules.events import event_of

__all__ = ["EVENTS", "SOURCES", "check_json", "check_metadata", "checked_sources"]

ACTIONS_MAX = 100
"""Actions of a rule."""
METADATA_MAX = 16_384
"""Bytes of the metadata of a rule, as JSON: each list of rules has them."""
DEPTH_MAX = 20
"""Levels of arrays and objects: arguments have three or four, and encoders give up at some hundreds."""
EVENTS, SOURCES = "$events/", ("$bridges/", "$sources/")
"""Beginnings of names behind FROM that are no topic filters."""
SOURCE_NAME = re.compile(r"\$(sources|bridges)/[a-z0-9_]{1,64}:[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def check_json(actions: object) -> None:
    """Raises ValueError, RecursionError for what no encoder takes: each list of rules has the actions again."""
    if not _is_flat(actions, DEPTH_MAX):
        raise ValueError(f"actions: must be nested at most {DEPTH_MAX} levels deep")
    try:
        json.dumps(actions, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"actions: must be a JSON array, got {error}") from None


def check_metadata(metadata: object) -> None:
    """Raises ValueError for metadata that are no JSON object, or too large."""
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata: must be a JSON object, got {metadata!r:.200}")
    if not _is_flat(metadata, DEPTH_MAX):
        raise ValueError(f"metadata: must be nested at most {DEPTH_MAX} levels deep")
    try:
        size = len(json.dumps(metadata, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError) as error:
        raise ValueError(f"metadata: must be a JSON object, got {error}") from None
    if size > METADATA_MAX:
        raise ValueError(f"metadata: must be at most {METADATA_MAX} bytes as JSON, got {size}")


def _is_flat(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_flat(one, levels - 1) for one in inner)


def checked_sources(sql: str, actions: list[object]) -> list[str]:
    """Returns the names behind FROM, each once. Raises ValueError for a rule that cannot be in force."""
    if len(actions) > ACTIONS_MAX:
        raise ValueError(f"actions: must be at most {ACTIONS_MAX}, got {len(actions)}")
    check_json(actions)
    try:
        names = compile_rule(sql).filters
    except SqlError as error:
        raise ValueError(f"sql: {error}") from None
    for name in names:
        if name.startswith(SOURCES):
            if not SOURCE_NAME.fullmatch(name):
                raise ValueError(f"sql: FROM: a source must be $sources/type:name, got {name}")
            continue
        if name.startswith(EVENTS):
            if event_of(name) is None:
                raise ValueError(f"sql: FROM: no event {name}")
            continue
        try:
            check_topic_filter(name.encode())
        except (MqttError, ValueError) as error:
            raise ValueError(f"sql: FROM: {error}") from None
    return list(dict.fromkeys(names))
