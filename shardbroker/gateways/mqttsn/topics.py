"""Topics by the ids that MQTT-SN has for them: registered, predefined and short ones."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from shardbroker.gateways.mqttsn.codec import TopicKind, short_name
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_name

__all__ = ["TOPIC_BYTES", "TOPIC_IDS", "Topics", "is_topic", "predefined"]

TOPIC_IDS = 65534
"""0 and 65535 are reserved (MQTT-SN §5.3.11)."""
TOPIC_BYTES = 65536
"""Bytes of topics that a device has registered; above it, the oldest are forgotten."""
FEW = 8
"""Topics of a device that are searched by name without an index, which would take 0.4 KB."""
NO_TOPICS: Mapping[int, bytes] = MappingProxyType({})


def is_topic(topic: bytes, levels: int) -> bool:
    """Returns whether a topic name is valid and has at most `levels` levels."""
    try:
        check_topic_name(topic, levels)
    except MqttError:
        return False
    return True


class Predefined:
    """Predefined topics in both directions, made once for each value of the setting."""

    def __init__(self) -> None:
        self._of: Any = None
        self.by_id: dict[int, bytes] = {}
        self.by_topic: dict[bytes, int] = {}

    def __call__(self, settings: Any) -> "Predefined":
        if self._of is not settings.predefined:
            self._of = settings.predefined
            self.by_id = {one.id: one.topic.encode() for one in settings.predefined}
            self.by_topic = {topic: id for id, topic in self.by_id.items()}
        return self


predefined = Predefined()


class Topics:
    """The topics of one device. settings: `gateways.mqttsn`. levels: most levels of a topic.

    Most devices have one or two, and sleep: there is an index by name only above FEW topics."""

    __slots__ = ("_by_id", "_by_name", "_bytes", "_last_id", "_levels", "_settings")

    def __init__(self, settings: Any, levels: int) -> None:
        self._settings, self._levels = settings, levels
        self._by_id: Mapping[int, bytes] = NO_TOPICS
        self._by_name: dict[bytes, int] | None = None
        self._bytes = self._last_id = 0

    def clear(self) -> None:
        """Forgets what is registered."""
        self._by_id, self._by_name, self._bytes = NO_TOPICS, None, 0

    def image(self) -> tuple[list[tuple[int, bytes]], int]:
        """Returns what is registered, oldest first, and the last id, as plain values."""
        return [*self._by_id.items()], self._last_id

    def adopt(self, values: tuple[list[tuple[int, bytes]], int]) -> None:
        """Takes what a device has registered at another process."""
        for topic_id, topic in values[0]:
            self.keep(topic, topic_id)
        self._last_id = values[1]

    def find(self, kind: int, topic_id: int) -> bytes | None:
        """Returns the topic of an id."""
        if kind == TopicKind.NORMAL:
            return self._by_id.get(topic_id)
        if kind == TopicKind.PREDEFINED:
            return predefined(self._settings).by_id.get(topic_id)
        if kind == TopicKind.SHORT:
            topic = short_name(topic_id)
            return topic if is_topic(topic, self._levels) else None
        return None

    def id_of(self, topic: bytes) -> int | None:
        """Returns the registered id of a topic."""
        if self._by_name is not None:
            return self._by_name.get(topic)
        return next((id for id, one in self._by_id.items() if one == topic), None)

    def keep(self, topic: bytes, topic_id: int) -> None:
        """Remembers a topic, and forgets the oldest ones above the limits. An id is not given to another topic before all others
        were used: so a device that still uses it gets `invalid topic id`, and not another topic."""
        found = self._by_id if isinstance(self._by_id, dict) else {}
        self._by_id = found
        found[topic_id] = topic
        if self._by_name is not None:
            self._by_name[topic] = topic_id
        elif len(found) > FEW:
            self._by_name = {one: id for id, one in found.items()}
        self._bytes += len(topic)
        while len(found) > self._settings.max_topics or (self._bytes > TOPIC_BYTES and len(found) > 1):
            self.forget(next(iter(found)))

    def forget(self, topic_id: int) -> None:
        """Forgets a registered topic."""
        topic = self._by_id.get(topic_id)
        if topic is not None and isinstance(self._by_id, dict):
            del self._by_id[topic_id]
            self._bytes -= len(topic)
            if self._by_name is not None:
                del self._by_name[topic]

    def new_id(self) -> int:
        """Returns an id that no topic has."""
        while True:
            self._last_id = self._last_id % TOPIC_IDS + 1
            if self._last_id not in self._by_id:
                return self._last_id

    def registered(self, topic: bytes) -> int:
        """Returns the id of a topic that the device knows or gets now."""
        found = self.id_of(topic)
        if found is None:
            found = self.new_id()
            self.keep(topic, found)
        return found
