"""Events of clients: a log line for each, a $SYS message where there is a subscription, a ban for a flapping client."""

from collections.abc import Callable, Iterable

from shardbroker.logs.lines import client_line
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shardbroker.management.client_topics import ClientTopics
from shardbroker.management.configuration import Configuration
from shardbroker.management.flapping import FlappingBans
from shm.counters import Counters
from shm.events import KIND_CONNECTED, KIND_DISCONNECTED, KIND_FLAPPING, EventError, kind_of, unpack_event

__all__ = ["ClientEvents"]


class ClientEvents:
    """`publish` takes topic and payload of a message; False: the ring has no room, and the message is dropped and counted."""

    def __init__(
        self,
        topics: ClientTopics,
        counters: Counters,
        configuration: Configuration,
        log: Log,
        bans: FlappingBans,
        publish: Callable[[bytes, bytes], bool],
    ) -> None:
        self._topics = topics
        self._counters = counters
        self._configuration = configuration
        self._log = log
        self._bans = bans
        self._publish = publish
        self._connected_logged = False
        self._events_dropped = counters.totals()["events.dropped"]
        self._messages_dropped = 0

    def take(self, events: Iterable[bytes]) -> None:
        """Logs and publishes a batch."""
        subscribed = self.refresh()
        connected = self._configuration.settings.log.client_connected
        levels = {KIND_CONNECTED: connected, KIND_FLAPPING: "warning"}
        lines = []
        for event in events:
            try:
                kind = kind_of(event)
                line = client_line(event, connected.upper().encode())
                if self._log.enabled(levels.get(kind, "info")):
                    lines.append(line)
                if kind == KIND_FLAPPING:
                    self._bans.add(unpack_event(event).client_id)
                elif subscribed and kind in (KIND_CONNECTED, KIND_DISCONNECTED):
                    message = self._topics.message(unpack_event(event))
                    self._messages_dropped += message is not None and not self._publish(*message)
            except EventError as error:
                self._log.add("error", log_line("event not readable", reason=error))
        self._log.add_lines(lines)

    def refresh(self) -> bool:
        """Returns whether messages about clients have subscribers. Workers read from the counters which events to leave out."""
        topics = self._topics
        logged = self._log.enabled(self._configuration.settings.log.client_connected)
        if topics.refresh() or logged != self._connected_logged:
            self._connected_logged = logged
            self._counters.want_connected(topics.listened_to or logged, topics.epoch)
        return topics.listened_to

    def log_dropped(self, events_dropped: int) -> None:
        """Logs what was dropped since the last call. events_dropped: the counter of all workers."""
        dropped = events_dropped - self._events_dropped
        self._events_dropped = events_dropped
        if dropped:
            self._log.add("warning", log_line("log lines dropped", count=dropped, reason="ring to the manager full"))
        if self._messages_dropped:
            self._log.add("warning", log_line("event messages dropped", count=self._messages_dropped, reason="worker ring full"))
        if dropped or self._messages_dropped:
            self._log.flush()
        self._messages_dropped = 0
