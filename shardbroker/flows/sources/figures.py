"""Counts of a source.

received = published or fed to rules + failed + under way
"""

from dataclasses import dataclass

__all__ = ["Figures"]


@dataclass(slots=True)
class Figures:
    """Records since the start of the process."""

    received: int = 0
    published: int = 0
    """Of them, as messages in this broker."""
    failed: int = 0
    """Neither published nor seen by rules: the topic or a value is not possible here. They are acknowledged."""
    acknowledged: int = 0
    """Consumed by workers, so that the server need not keep them."""

    @property
    def inflight(self) -> int:
        """Records under way to workers."""
        return self.received - self.failed - self.acknowledged

    def named(self) -> dict[str, int]:
        """Returns the counts by name."""
        return {
            "received": self.received, "published": self.published, "failed": self.failed, "acknowledged": self.acknowledged,
            "inflight": max(self.inflight, 0),
        }  # fmt: skip
