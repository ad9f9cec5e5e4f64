"""Counts of an action, with the names of EMQX.

matched = success + failed + inflight + queuing + late_reply + dropped
"""

from dataclasses import dataclass, replace

__all__ = ["Figures"]


@dataclass(slots=True)
class Figures:
    """Rows since the start of the process; `inflight` and `queuing` are those at this moment."""

    matched: int = 0
    success: int = 0
    failed: int = 0
    inflight: int = 0
    queuing: int = 0
    late_reply: int = 0
    """Written, but after request_ttl."""
    expired: int = 0
    lost: int = 0
    """Records of a journal that were removed before they were read: the hold has given way."""
    retried: int = 0

    @property
    def dropped(self) -> int:
        return self.expired + self.lost

    def reset(self) -> None:
        """Sets the counts to 0; rows that wait have matched."""
        waiting = self.inflight, self.queuing
        self.__init__()  # type: ignore[misc]
        self.inflight, self.queuing = waiting
        self.matched = sum(waiting)

    def without_waiting(self) -> "Figures":
        """Returns the counts of another run of the action, in which the rows that wait will match again."""
        return replace(self, matched=self.matched - self.inflight - self.queuing, inflight=0, queuing=0)

    def named(self) -> dict[str, int]:
        """Returns the counts by name."""
        return {
            "matched": self.matched, "success": self.success, "failed": self.failed, "inflight": self.inflight,
            "queuing": self.queuing, "late_reply": self.late_reply, "dropped": self.dropped, "dropped.expired": self.expired,
            "dropped.queue_full": self.lost, "retried": self.retried,
        }  # fmt: skip
