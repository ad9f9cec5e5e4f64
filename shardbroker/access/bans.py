"""Bans, and detection of clients that connect and disconnect too often."""

import re
import time
from dataclasses import dataclass

from shardbroker.access.rules import Network, network_of, pattern_of
from shardbroker.access.stores import Ban, RuleStore

__all__ = ["Banned", "Flapping"]

FLAPPERS_MAX = 65_536
"""Client ids whose disconnects one worker counts at a time; others are not counted until some windows have ended."""


class Banned:
    """The bans as a worker uses them. Exact ones are looked up in the store; the few others are held in memory."""

    def __init__(self, store: RuleStore) -> None:
        self._store = store
        self._any = False
        self._networks: list[tuple[Network, Ban]] = []
        self._patterns: list[tuple[str, re.Pattern[str], Ban]] = []
        self._own: dict[str, float] = {}
        self.reload()

    def reload(self) -> None:
        """Reads the bans after a change of the store."""
        self._any = self._store.ban_count() > 0
        scanned = self._store.scanned_bans() if self._any else []
        self._networks = [(network_of(ban.value), ban) for ban in scanned if ban.kind == "peerhost_net"]
        self._patterns = [(ban.kind, pattern_of(ban.value), ban) for ban in scanned if ban.kind != "peerhost_net"]

    @property
    def any(self) -> bool:
        """Returns whether there is any ban."""
        return self._any or bool(self._own)

    def flapped(self, client_id: str, until: float) -> None:
        """Adds a ban by this worker, which is in the store a moment later."""
        self._own[client_id] = until

    def find(self, client_id: str, username: str | None, peerhost: str) -> Ban | None:
        """Returns the ban that applies to a client, or None."""
        now = time.time()
        own = self._own.get(client_id)
        if own is not None:
            if own > now:
                return Ban("clientid", client_id, own, "flapping detector", "too many disconnects (flapping_detect)")
            del self._own[client_id]
        if not self._any:
            return None
        for kind, value in (("clientid", client_id), ("username", username), ("peerhost", peerhost)):
            ban = self._store.banned(kind, value) if value is not None else None
            if ban is not None and not ban.expired(now):
                return ban
        for kind, pattern, ban in self._patterns:
            text = client_id if kind == "clientid_re" else username
            if text is not None and pattern.search(text) and not ban.expired(now):
                return ban
        return self._in_networks(peerhost, now)

    def _in_networks(self, peerhost: str, now: float) -> Ban | None:
        if self._networks and peerhost:
            address = network_of(peerhost).network_address
            for network, ban in self._networks:
                if address in network and not ban.expired(now):
                    return ban
        return None


@dataclass(slots=True)
class _Window:
    since: float
    count: int


class Flapping:
    """Counts disconnects per client id. A client id belongs to one worker, so each worker counts its own."""

    def __init__(self, window_s: float, max_count: int, ban_s: float) -> None:
        self.window_s, self.max_count, self.ban_s = window_s, max_count, ban_s
        self._windows: dict[str, _Window] = {}

    def disconnected(self, client_id: str, now: float) -> bool:
        """Counts a disconnect; returns whether the limit is reached."""
        window = self._windows.get(client_id)
        if window is None or window.since + self.window_s <= now:
            self._windows.pop(client_id, None)
            if len(self._windows) >= FLAPPERS_MAX:
                self._sweep(now)
            if len(self._windows) < FLAPPERS_MAX:
                self._windows[client_id] = _Window(now, 1)
            return self.max_count <= 1
        window.count += 1
        if window.count < self.max_count:
            return False
        del self._windows[client_id]
        return True

    def _sweep(self, now: float) -> None:
        """Removes ended windows. Windows begin in the order of the table, so these are in front."""
        while self._windows:
            first = next(iter(self._windows))
            if self._windows[first].since + self.window_s > now:
                return
            del self._windows[first]
