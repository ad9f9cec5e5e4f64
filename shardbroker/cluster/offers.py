"""Offers of sessions by a node that is evacuated: which node is asked for which session, and which nodes are not asked for a while.

    B, evacuated                        A
    OFFER(session)      ->              claims it, if it may; what follows is a takeover (takeover.py)
                        <-  DECLINE     A is evacuated, too, or short of memory, or has a full disk

An offer is no promise: B holds the session until TAKE arrives, and serves it. An offer without TAKE or DECLINE ends after
`OFFER_MS`, and the next round offers the session again. So a node that dies, or a message that is dropped, costs time only.
"""

from collections.abc import Collection

from shardbroker.cluster.messages import Key
from shardbroker.cluster.rendezvous import rank

__all__ = ["OFFERS_MAX", "Offers"]

OFFERS_MAX = 500
"""Offers of one worker without an answer, with the sessions that are on their way; likewise claims for offers of others."""
OFFER_MS = 3_000
"""For TAKE: a claim without agreement is given up earlier."""
UNWILLING_MS = 2_000
"""How long a node is not asked that has declined, or not answered."""


class Offers:
    """The offers of one worker."""

    def __init__(self) -> None:
        self._under_way: dict[Key, tuple[int, int]] = {}
        """Session to the node that was asked, and the end of the offer."""
        self._unwilling: dict[int, int] = {}
        """Node to the time until which it is not asked."""
        self.too_large: set[Key] = set()
        """Sessions that were found too large to move."""

    def __len__(self) -> int:
        return len(self._under_way)

    def clear(self) -> None:
        """Takes the end of the evacuation."""
        self._under_way.clear()
        self._unwilling.clear()
        self.too_large.clear()

    def shift(self, ms: int) -> None:
        """Takes the end of a time in which nothing was received."""
        self._under_way = {key: (node, due_ms + ms) for key, (node, due_ms) in self._under_way.items()}

    def image(self) -> tuple[dict[Key, tuple[int, int]], dict[int, int], set[Key]]:
        """Returns everything, for `take_image`."""
        return self._under_way, self._unwilling, self.too_large

    def take_image(self, image: tuple[dict[Key, tuple[int, int]], dict[int, int], set[Key]]) -> None:
        """Continues with the offers of another process."""
        self._under_way, self._unwilling, self.too_large = image

    def make(self, key: Key, nodes: Collection[int], now_ms: int) -> int:
        """Returns the node to which a session is offered; 0: none, or an offer is under way."""
        if key in self._under_way:
            return 0
        willing = [node for node in nodes if self._unwilling.get(node, 0) <= now_ms]
        if not willing:
            return 0
        node = rank(willing, key.partition)[0]
        self._under_way[key] = node, now_ms + OFFER_MS
        return node

    def taken(self, key: Key) -> None:
        """Takes the end of an offer."""
        self._under_way.pop(key, None)

    def declined(self, key: Key, node: int, now_ms: int) -> None:
        """Takes the answer of a node that does not want sessions."""
        if self._under_way.get(key, (0, 0))[0] == node:
            del self._under_way[key]
            self._unwilling[node] = now_ms + UNWILLING_MS

    def tick(self, held: Collection[Key], now_ms: int) -> None:
        """Ends offers without an answer. `held`: the sessions of this worker; what is not among them was taken otherwise."""
        for key, (node, due_ms) in [*self._under_way.items()]:
            if key not in held:
                del self._under_way[key]
            elif now_ms >= due_ms:
                self.declined(key, node, now_ms)
