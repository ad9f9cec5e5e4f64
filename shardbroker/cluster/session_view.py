"""The view of sessions: what the session cores of a worker know of the cluster."""

from typing import NamedTuple

__all__ = ["SessionView"]


class SessionView(NamedTuple):
    """The members of the cluster and the links to them, at one moment."""

    run: int = 0                   # epochs of different runs cannot be compared: messages and views may be missing between two runs
    epoch: int = 0                 # grows with each change of members
    members: tuple[tuple[int, int], ...] = ()  # (node id, incarnation), in the order of ids
    digest: bytes = b""            # of the members
    owners: bytes = b""            # node id of the registrar of each partition; b"": none, as this node leaves alone
    linked: frozenset[int] = frozenset()  # node ids of the peers whose signal link is connected
    all_up: bool = False           # all seeds are linked and have all routes
    isolated: bool = False         # fewer than half of the seeds are reachable
