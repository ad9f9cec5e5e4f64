"""Bans of flapping clients. Workers decide on them; the manager stores them, for `ctl` and for workers that start again."""

from pathlib import Path

from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line
from shardbroker.management.access import AccessAdmin, AccessError
from shardbroker.management.configuration import Configuration
from shm.counters import Counters

__all__ = ["FlappingBans"]


class FlappingBans:
    """Collects client ids between two calls of `store()`."""

    def __init__(self, data_dir: Path, counters: Counters, configuration: Configuration, log: Log) -> None:
        self._data_dir = data_dir
        self._counters = counters
        self._configuration = configuration
        self._log = log
        self._client_ids: list[str] = []

    def add(self, client_id: bytes) -> None:
        """Adds one client."""
        self._client_ids.append(client_id.decode(errors="replace"))

    def store(self) -> None:
        """Stores all bans in one transaction."""
        settings = self._configuration.settings
        client_ids, self._client_ids = dict.fromkeys(self._client_ids), []
        if client_ids:
            try:
                with AccessAdmin(settings, self._data_dir, self._counters) as admin:
                    admin.ban_many("clientid", client_ids, seconds=settings.flapping_detect.ban_time, by="flapping detector")
            except AccessError as error:
                self._log.add("error", log_line("bans of flapping clients not stored", reason=error))
