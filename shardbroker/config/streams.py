"""Keys of named streams, `[streams.<name>]`."""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from shardbroker.config.base import LEVELS_MAX, Section
from shardbroker.config.units import Duration, Size
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter

__all__ = ["KEY_MAX", "KEY_NAMES", "STREAMS_FILE", "STREAMS_MAX", "STREAM_NAME", "Kept", "Stream", "check_names", "has_streams"]

STREAM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""EMQX's names, up to 64 characters."""
STREAMS_MAX = 1000
"""Streams of a node, EMQX's default: each change writes all of them, and each worker looks through them for `$s/`."""
STREAMS_FILE = "streams.json"
"""Streams made while the broker runs, in the data directory; those in force, in the runtime directory."""
FILTER_MAX = 1024
"""Characters of a topic filter: all streams together are a command of 1 MB to a worker."""
KEY_MAX = 1024
"""Characters of a key."""
KEY_NAMES = ("clientid", "payload", "pub_props", "qos", "topic")
"""What a key may begin with: journals have these of a message."""
KEY_OF_PUBLISHER = "${clientid}"
_PLACEHOLDER = re.compile(r"\$\{([^{}]*)\}")
_FIRST = re.compile(r"\.?([^.\[]*)")


class Kept(Section):
    """What a stream keeps. Segments of journals have messages of other topics, too."""

    age: Duration = Field(604_800.0, ge=1, description="Age up to which messages are kept and delivered.")
    bytes: Size = Field(
        1 << 30,
        ge=1 << 20,
        le=1 << 50,
        description="Size of each journal up to which it is kept for the stream; the oldest segments go.",
    )


class Stream(Section):
    """A named stream, which clients subscribe to as `$stream/<name>` (streams.md)."""

    topic_filter: str = Field("", description="Topic filter of its messages; it is needed.")
    enable: bool = Field(True, description="Whether messages are kept for it, and clients may subscribe to it.")
    description: str = Field("", max_length=4096, description="What the stream is for.")
    retention: Kept = Kept()
    last_value: bool = Field(False, description="Whether only the newest message of each key is delivered from the past.")
    key: str = Field(
        KEY_OF_PUBLISHER,
        min_length=1,
        max_length=KEY_MAX,
        description="Template of the key, such as `${payload.id}`, `${topic}` or `${clientid}`.",
    )

    @field_validator("topic_filter")
    @classmethod
    def _filter(cls, value: str) -> str:
        try:
            check_topic_filter(value.encode(), LEVELS_MAX)
        except (MqttError, UnicodeEncodeError) as error:
            raise ValueError(f"allowed is a topic filter such as sensors/#, not {value[:100]!r}: {error}") from None
        if len(value) > FILTER_MAX or value.startswith(("$share/", "$queue/", "$exclusive/", "$replay/", "$stream/", "$s/")):
            raise ValueError(f"allowed is a topic filter of up to {FILTER_MAX} characters without a prefix such as $share/")
        return value

    @field_validator("key")
    @classmethod
    def _key(cls, value: str) -> str:
        names = [_FIRST.match(one) for one in _PLACEHOLDER.findall(value)]
        if not names or any(found is None or found[1] not in KEY_NAMES for found in names):
            allowed = ", ".join(KEY_NAMES)
            raise ValueError(f"allowed is a template such as ${{payload.id}} with one of {allowed}, not {value[:100]!r}")
        return value


def has_streams(data_dir: Path) -> bool:
    """Returns whether streams were made at run time; a file that cannot be read may have some."""
    try:
        return bool(json.loads((data_dir / STREAMS_FILE).read_bytes()).get("streams"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError, RecursionError):
        return True


def check_names(streams: dict[str, Any]) -> None:
    """Raises ValueError for a wrong name, or too many streams."""
    for name in streams:
        if not STREAM_NAME.fullmatch(name):
            raise ValueError(
                f"allowed is a name of up to 64 letters, digits, - _ and ., a letter or digit first, not {name[:100]!r}"
            )
    if len(streams) > STREAMS_MAX:
        raise ValueError(f"allowed is up to {STREAMS_MAX} of them, not {len(streams)}")
