"""Lines about records and servers of a source."""

from shardbroker.flows import complaints
from shardbroker.flows.complaints import SHOWN_MAX
from shardbroker.logs.phrases import log_line

__all__ = ["Complaints"]


class Complaints(complaints.Complaints):
    """Those of one source."""

    def record_failed(self, reason: str) -> None:
        """Notes a record that is not possible in this broker."""
        self._failed(lambda more: log_line("record not taken over", source=self._id, reason=reason[:SHOWN_MAX], **more))

    def bridge_refused(self, reason: str) -> None:
        """Notes a connection of another broker that was refused."""
        self._failed(lambda more: log_line("bridge refused", source=self._id, reason=reason[:SHOWN_MAX], **more))

    def lost(self, reason: str) -> None:
        """Notes that the server cannot be used."""
        self._lost(log_line("source not available", source=self._id, reason=reason[:SHOWN_MAX]))

    def reached(self) -> None:
        """Notes that the server can be used."""
        self._reached(log_line("source available again", source=self._id))
