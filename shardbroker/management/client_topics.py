"""$SYS messages about connects and disconnects of clients, with EMQX's topics and fields; made only for existing subscriptions.

The epoch of these topics shows whether there may be a subscription: the manager searches the route table again after the epoch has
moved. While it has not and there was no subscription, workers send no events of connects. A subscriber gets its SUBACK after the
epoch has moved, so it misses no later event.
"""

import json
import time
from contextlib import closing
from itertools import islice

from shardbroker.config.settings import SysEvents
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.spec import closing_word
from shardbroker.mqtt.topics import check_topic_name, matches
from shm.epochs import Epochs
from shm.events import KIND_CONNECTED, KIND_DISCONNECTED, SIDES, ClientEvent, clients_prefix
from shm.routes import RouteTable

__all__ = ["ClientTopics"]

SYS = b"$SYS/"
WORDS = {KIND_CONNECTED: "connected", KIND_DISCONNECTED: "disconnected"}
"""Last levels of the topics."""
FEW = 8
"""Filters up to which comparing each is cheaper than a search in the route table, which costs some 14 µs."""


class ClientTopics:
    """Makes (topic, payload) of events. `ports` are those of the listeners, by number."""

    def __init__(
        self, node: str, wanted: SysEvents, max_levels: int, ports: dict[int, int], routes: RouteTable, epochs: Epochs
    ) -> None:
        self._prefix = clients_prefix(node)
        self.max_levels = max_levels
        self._ports = ports
        self._routes = routes
        self._epochs = epochs
        self.epoch = -1
        """Epoch of these topics for which their subscriptions are known."""
        self.want(wanted)
        self._filters: dict[int, list[bytes]] = {kind: [] for kind in WORDS}
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def want(self, wanted: SysEvents) -> None:
        """Selects the messages to make from now on."""
        self._wanted = {KIND_CONNECTED: wanted.client_connected, KIND_DISCONNECTED: wanted.client_disconnected}

    def message(self, event: ClientEvent) -> tuple[bytes, bytes] | None:
        """Returns the message about an event, or None without a subscriber."""
        if not self._wanted.get(event.kind) or not event.client_id:
            return None
        filters = self._filters[event.kind]
        if not filters:
            return None
        topic = self._prefix + event.client_id + b"/" + WORDS[event.kind].encode()
        if not self._fits(topic) or not self._is_heard(topic, filters):
            return None
        fields = self._connected(event) if event.kind == KIND_CONNECTED else self._disconnected(event)
        return topic, self._encode(fields).encode()

    def _fits(self, topic: bytes) -> bool:
        """Returns whether the topic is valid: client ids may contain + and #, many slashes, and be as long as a topic may be."""
        try:
            check_topic_name(topic, self.max_levels)
        except MqttError:
            return False
        return True

    def _is_heard(self, topic: bytes, filters: list[bytes]) -> bool:
        if len(filters) <= FEW:
            return any(matches(filter, topic) for filter in filters)
        match = self._routes.match(topic)
        return bool(match.destinations or match.groups)

    @property
    def listened_to(self) -> bool:
        """Returns whether messages about clients had a subscription at the last refresh()."""
        return any(filters and self._wanted[kind] for kind, filters in self._filters.items())

    def refresh(self) -> bool:
        """Searches the subscriptions again if those to `$SYS` have changed; returns whether they have."""
        epoch = self._epochs.of(self._prefix)
        if epoch == self.epoch:
            return False
        self.epoch = epoch  # taken before the search: what changes meanwhile moves it again
        for kind, word in WORDS.items():
            sample = (self._prefix + b"id/" + word.encode()).split(b"/")
            with closing(self._routes.filters(SYS)) as all_of_them:
                found = (filter for filter in all_of_them if _may_match(filter.split(b"/"), sample))
                self._filters[kind] = list(islice(found, FEW + 1))  # more than FEW: the rest is not needed
        return True

    def _connected(self, event: ClientEvent) -> dict[str, object]:
        return {
            **_identity(event),
            "sockport": self._ports.get(event.listener, 0),
            "keepalive": event.keepalive_s,
            "connack": 0,
            "clean_start": event.clean_start,
            "expiry_interval": event.expiry_s,
            "connected_at": event.at_ms,
            "ts": time.time_ns() // 1_000_000,
        }

    def _disconnected(self, event: ClientEvent) -> dict[str, object]:
        return {
            **_identity(event),
            "reason": closing_word(event.reason_code, event.side < len(SIDES) and SIDES[event.side] == "network"),
            "disconnected_at": event.at_ms,
            "ts": time.time_ns() // 1_000_000,
        }


def _identity(event: ClientEvent) -> dict[str, object]:
    return {
        "clientid": event.client_id.decode(errors="replace"),
        "username": event.username.decode(errors="replace") or None,
        "ipaddress": event.peer.rpartition(":")[0].strip("[]"),
        "proto_name": "MQIsdp" if event.version == 3 else "MQTT",
        "proto_ver": event.version,
    }


def _may_match(levels: list[bytes], sample: list[bytes]) -> bool:
    """Returns whether a filter may match a topic like `sample`, with any client id of one or several levels."""
    for level, word in zip(levels[:4], sample[:4], strict=False):
        if level == b"#":
            return True
        if level not in (b"+", word):
            return False
    return len(levels) > 4 and levels[-1] in (b"#", b"+", sample[-1])
