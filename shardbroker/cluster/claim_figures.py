"""Figures of the claims of one worker, for metrics. They start at 0 with the worker."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ClaimFigures"]

RESULTS = {0: "returned", 0x88: "unavailable", 0x89: "busy", 0x8E: "taken_over", 0x97: "exclusive"}
"""Reason code of a claim without a session to its result; `returned`: the session was served by this node again."""


@dataclass
class ClaimFigures:
    """Results of claims, times from CONNECT to their ends, and merges."""

    results: Counter[str] = field(default_factory=Counter)
    merges: Counter[str] = field(default_factory=Counter)
    claim_ms: int = 0
    takeovers: int = 0
    takeover_ms: int = 0

    def ended(self, reason: int) -> None:
        """Takes the end of a claim without a session."""
        self.results[RESULTS.get(reason, "busy")] += 1

    def owned(self, ms: int, is_provisional: bool, is_takeover: bool) -> None:
        """Takes the end of a claim with a session, so many ms behind its CONNECT."""
        self.results["provisional" if is_provisional else "granted"] += 1
        self.claim_ms += ms
        if is_takeover:
            self.takeovers += 1
            self.takeover_ms += ms

    def as_answer(self) -> dict[str, Any]:
        """Returns the figures as a worker answers them."""
        return {
            "results": dict(self.results), "merges": dict(self.merges),
            "claims": self.results["granted"] + self.results["provisional"], "claim_ms": self.claim_ms,
            "takeovers": self.takeovers, "takeover_ms": self.takeover_ms,
        }  # fmt: skip
