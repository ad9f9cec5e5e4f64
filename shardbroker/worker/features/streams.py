"""Named streams in a worker: `$stream/<name>`, `$stream/<name>/<filter>` and `$s/<period>/<filter>`.

The manager has the definitions. A worker gets all of them with each change, and reads them from a file when it starts.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.spec import ReasonCode
from shardbroker.mqtt.topics import STREAM, covers, parse_subscription

__all__ = ["OFFSET", "OFFSETS", "Stream", "Streams", "offset_of"]

OFFSETS = (b"stream-offset", b"$stream.start-from")
"""User properties of SUBSCRIBE with the period of `$stream/`: EMQX's, and that of its first versions."""
OFFSET = b"latest"
"""The period without one."""
SHOWN_MAX = 60
"""Bytes of a wrong name or filter in an error, which names no other: a client learns nothing of other streams."""


class Stream(NamedTuple):
    """One in force. age_us: of messages that are delivered, at most; 0: of all. key: None unless the stream has last values."""

    name: bytes
    filter: bytes
    age_us: int
    key: str | None


def offset_of(user_properties: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Returns the period that a SUBSCRIBE names, or OFFSET."""
    given = dict(reversed([*user_properties]))  # the first of several counts
    return next((given[name] for name in OFFSETS if name in given), OFFSET)


class Streams:
    """Those of a broker."""

    def __init__(self) -> None:
        self._streams: dict[bytes, Stream] = {}
        self._by_filter: dict[bytes, Stream] = {}
        self.filters: tuple[bytes, ...] = ()
        """Their topic filters."""

    def set(self, definitions: Sequence[Sequence[Any]]) -> None:
        """Makes these the streams in force: (name, filter, age_us, key) each."""
        self._streams = {stream.name: stream for stream in (Stream(*one) for one in definitions)}
        self._by_filter = {stream.filter: stream for stream in reversed([*self._streams.values()])}
        self.filters = tuple(self._by_filter)

    def of(self, wire_filter: bytes, filter: bytes) -> Stream | None:
        """Returns the stream of a subscription, if that exists and covers its topic filter."""
        if wire_filter.startswith(STREAM):
            stream = self._streams.get(_name_of(wire_filter))
            return stream if stream is not None and covers(stream.filter, filter) else None
        exact = self._by_filter.get(filter)
        return exact or next((stream for stream in self._streams.values() if covers(stream.filter, filter)), None)

    def filter_of(self, wire_filter: bytes) -> bytes:
        """Returns the topic filter of a subscription: its own, or all of the stream. Raises MqttError 0x8F."""
        _, filter = parse_subscription(wire_filter)
        if not wire_filter.startswith(STREAM):
            if self.of(wire_filter, filter) is None:
                raise _refusal(f"$s/<period>/<filter>: must be a filter that a stream covers, got {_shown(filter)}")
            return bytes(filter)
        name = _name_of(wire_filter)
        stream = self._streams.get(name)
        if stream is None:
            raise _refusal(f"$stream/<name>: must be the name of a stream that is enabled, got {_shown(name)}")
        if filter == wire_filter or covers(filter, stream.filter):
            return stream.filter
        if not covers(stream.filter, filter):
            raise _refusal(f"$stream/<name>/<filter>: must be covered by the filter of the stream, got {_shown(filter)}")
        return bytes(filter)


def _name_of(wire_filter: bytes) -> bytes:
    return wire_filter[len(STREAM) :].partition(b"/")[0]


def _shown(text: bytes) -> str:
    return repr(text[:SHOWN_MAX].decode(errors="replace"))


def _refusal(text: str) -> MqttError:
    return MqttError(ReasonCode.TOPIC_FILTER_INVALID, text)
