"""Routes of this node and of its peers, as the signal process uses them."""

from collections.abc import Callable

from shardbroker.cluster.messages import Route
from shardbroker.cluster.rlog import RouteSource
from shardbroker.link.stored_routes import StoredRoutes
from shardbroker.logs.phrases import Line
from shm.epochs import Epochs
from shm.remote_routes import RemoteRoutes
from shm.route_log import LmdbRouteLog
from shm.routes import RouteTable
from shm.topology import Topology

__all__ = ["open_peer_routes", "open_routes"]


def open_peer_routes(
    topology: Topology, log: Callable[[str, Line], None], bell: int, *, is_new: bool, beat: Callable[[], None] = lambda: None
) -> StoredRoutes:  # fmt: skip
    """Returns the routes of peers; with `is_new`, for a broker that starts, as they were stored.

    All epochs are raised: a process before this one may have been killed between the commit of a route and the epoch that follows
    it, and the topic caches of workers would then miss that route for ever. Raises OSError.
    """
    epochs, settings = Epochs.attach(topology.epochs_name), topology.settings
    stored = StoredRoutes(
        RemoteRoutes(topology.remote_routes_dir, epochs), topology.peer_routes_dir, log, bell,
        members=None if settings.cluster.has_core else settings.cluster.static.seeds, is_new=is_new,
        waits=settings.durability.level == "machine", beat=beat,
    )  # fmt: skip
    epochs.bump_all()
    return stored


def open_routes(topology: Topology) -> RouteSource:
    """Returns the routes of this node with their log."""
    return LmdbRouteLog(RouteTable(topology.routes_dir, log=True), Route)
