"""Counts of an action, with the names of EMQX.

matched = success + failed + inflight + queuing + late_reply + dropped
"""

__all__ = ["Figures"]


cdef class Figures:
    """Rows since the start of the process; `inflight` and `queuing` are those at this moment."""

    @property
    def dropped(self) -> int:
        return self.expired + self.lost

    def reset(self) -> None:
        """Sets the counts to 0; rows that wait have matched."""
        self.matched = self.inflight + self.queuing
        self.success = self.failed = self.late_reply = self.expired = self.lost = self.retried = 0

    def without_waiting(self) -> Figures:
        """Returns the counts of another run of the action, in which the rows that wait will match again."""
        cdef Figures other = Figures()
        other.matched = self.matched - self.inflight - self.queuing
        other.success, other.failed, other.late_reply = self.success, self.failed, self.late_reply
        other.expired, other.lost, other.retried = self.expired, self.lost, self.retried
        return other

    def named(self) -> dict:
        """Returns the counts by name."""
        return {
            "matched": self.matched, "success": self.success, "failed": self.failed, "inflight": self.inflight,
            "queuing": self.queuing, "late_reply": self.late_reply, "dropped": self.dropped, "dropped.expired": self.expired,
            "dropped.queue_full": self.lost, "retried": self.retried,
        }  # fmt: skip
