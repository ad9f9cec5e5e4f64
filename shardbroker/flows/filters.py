"""Topic filters of rules as a tree by levels, so that a new topic costs its levels and not the number of rules."""

from typing import Generic, TypeVar

__all__ = ["FilterTree"]

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("children", "found", "here", "rest")

    def __init__(self) -> None:
        self.children: dict[bytes, _Node[T]] = {}
        self.here: list[T] = []
        self.rest: list[T] = []
        """Those of the filters that end here with `#`."""


class FilterTree(Generic[T]):
    """Values by filter. A value of several filters that match is found once for each."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, filter: bytes, value: T) -> None:
        """Adds a valid filter."""
        node = self._root
        for level in filter.split(b"/"):
            if level == b"#":
                node.rest.append(value)
                return
            node = node.children.setdefault(level, _Node())
        node.here.append(value)

    def remove(self, filter: bytes, value: T) -> None:
        """Removes one value that was added with this filter. Raises ValueError, KeyError if it is not there."""
        node = self._root
        above: list[tuple[_Node[T], bytes]] = []
        values = None
        for level in filter.split(b"/"):
            if level == b"#":
                values = node.rest
                break
            above.append((node, level))
            node = node.children[level]
        (node.here if values is None else values).remove(value)
        for parent, level in reversed(above):
            child = parent.children[level]
            if child.children or child.here or child.rest:
                break
            del parent.children[level]

    def match(self, topic: bytes) -> list[T]:
        """Returns the values of all filters that match."""
        levels = topic.split(b"/")
        found: list[T] = []
        # A filter that begins with a wildcard does not match a topic that begins with $ [MQTT-4.7.2-1].
        if topic[:1] != b"$":
            found += self._root.rest
            nodes = self._below([self._root], levels[0])
        else:
            nodes = [child for child in (self._root.children.get(levels[0]),) if child is not None]
        for level in levels[1:]:
            for node in nodes:
                found += node.rest
            nodes = self._below(nodes, level)
        for node in nodes:
            found += node.rest  # `a/#` matches `a` too
            found += node.here
        return found

    @staticmethod
    def _below(nodes: list[_Node[T]], level: bytes) -> list[_Node[T]]:
        return [child for node in nodes for name in (level, b"+") if (child := node.children.get(name)) is not None]
