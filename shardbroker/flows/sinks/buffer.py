"""The bounds of what one action has in memory: rows in queues and rows under way."""

__all__ = ["Buffer"]


class Buffer:
    """records, size: the bounds; whichever is reached first."""

    def __init__(self, records: int, size: int) -> None:
        self.records_max, self.bytes_max = records, size
        self.records = self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another record. The rows of one record are admitted together: a little more may be there."""
        return self.records >= self.records_max or self.bytes >= self.bytes_max

    @property
    def room(self) -> int:
        """Records for which there is room."""
        return self.records_max - self.records

    @property
    def is_low(self) -> bool:
        """Whether half of it is free: a reader that waits for room is worth waking."""
        return self.records * 2 <= self.records_max and self.bytes * 2 <= self.bytes_max

    def add(self, size: int) -> None:
        """Notes a row."""
        self.records += 1
        self.bytes += size

    def remove(self, size: int) -> None:
        """Notes that a row is done."""
        self.records -= 1
        self.bytes -= size
