"""Lines about rows and servers of an action."""

from shardbroker.flows import complaints
from shardbroker.flows.complaints import SHOWN_MAX
from shardbroker.logs.phrases import log_line

__all__ = ["Complaints"]


class Complaints(complaints.Complaints):
    """Those of one action."""

    def row_failed(self, journal: str, position: int, reason: str) -> None:
        """Notes a row that has failed for good."""
        place = {"action": self._id, "journal": journal, "position": position}
        self._failed(lambda more: log_line("row not written", **place, reason=reason[:SHOWN_MAX], **more))

    def lost(self, reason: str) -> None:
        """Notes that the server cannot be used."""
        self._lost(log_line("sink not available", action=self._id, reason=reason[:SHOWN_MAX]))

    def reached(self) -> None:
        """Notes that the server can be used."""
        self._reached(log_line("sink available again", action=self._id))
