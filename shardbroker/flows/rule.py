"""A rule as it is evaluated: compiled SQL, actions, figures."""

import time
from dataclasses import dataclass, field
from typing import Any

from shardbroker.flows.actions import Action
from shardbroker.flows.deferral import Deferral
from shardbroker.flows.rate import Rate
from shardbroker.flows.wire import COUNTS
from shardbroker.rules.compiler import CompiledRule

__all__ = ["LoadedRule"]

SLOW_NS = 50_000_000
"""Evaluation of one message from which on a rule is slow: others wait for it."""
SLOW_MAX, SLOW_WINDOW_S = 100, 60.0
"""So many slow evaluations in this time disable a rule: 5 s of a minute."""
COMPLAIN_S = 10.0
"""Between two lines about errors of a rule."""


@dataclass(slots=True, eq=False)
class LoadedRule:
    """A rule of the table."""

    id: str
    definition: dict[str, Any]
    compiled: CompiledRule
    actions: list[Action]
    publisher: bytes = b""
    """Of the messages that the rule republishes; it passes over them."""
    publisher_text: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    """Journal -> position of the first record that the rule sees; missing: all."""
    figures: dict[str, int] = field(default_factory=dict)
    rate: Rate = field(default_factory=Rate)
    sinks: tuple[str, ...] = ()
    """Ids of the actions on other systems, in the order of `actions`."""
    is_shipped: bool = False
    """Whether all its actions take whole messages from the journal, so that it is not evaluated."""
    deferred: dict[str, Deferral] = field(default_factory=dict)
    """By journal; of its only action, if that is on another system."""
    disabled: str | None = None
    written: bytes = b""
    """Its figures in the last file of figures (flows/figures.py); empty: they have to be made."""
    _slow: list[float] = field(default_factory=list)
    _complained_s: float = float("-inf")

    def __post_init__(self) -> None:
        self.publisher_text = f"$rule:{self.id}"
        self.publisher = self.publisher_text.encode()
        self.metadata = {"rule_id": self.id}
        self.reset()

    def has_caused(self, columns: dict[str, Any]) -> bool:
        """Returns whether an event is of a message of this rule, which would see deliveries of what it makes of deliveries."""
        return bool(columns.get("from_clientid", columns.get("clientid")) == self.publisher_text)

    def is_deferred(self, journal: str, position: int) -> bool:
        """Returns whether the live stream passes over a record, which a reader behind evaluates."""
        found = self.deferred.get(journal)
        return found is not None and position < found.end

    def reset(self) -> None:
        """Sets the figures to 0."""
        self.figures = dict.fromkeys((*COUNTS, "time_us", "longest_us"), 0)
        self.rate = Rate()
        self.written = b""

    def took(self, spent_ns: int) -> bool:
        """Notes a slow evaluation; returns whether it disables the rule."""
        now_s = time.monotonic()
        self._slow = [at for at in self._slow if at > now_s - SLOW_WINDOW_S]
        self._slow.append(now_s)
        if len(self._slow) >= SLOW_MAX:
            self.written = b""
            self.disabled = f"{SLOW_MAX} evaluations of more than {SLOW_NS // 1_000_000} ms within {SLOW_WINDOW_S:g} s"
        return self.disabled is not None

    def may_complain(self) -> bool:
        """Returns whether a line about this rule is due, and counts it as written."""
        now_s = time.monotonic()
        if now_s - self._complained_s < COMPLAIN_S:
            return False
        self._complained_s = now_s
        return True
