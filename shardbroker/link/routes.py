"""Routes of this node and of its peers, as the signal process uses them."""

from shardbroker.cluster.messages import Route
from shardbroker.cluster.rlog import RouteSource, RouteStore
from shm.epochs import Epochs
from shm.remote_routes import RemoteRoutes
from shm.route_log import LmdbRouteLog
from shm.routes import RouteTable
from shm.topology import Topology

__all__ = ["open_routes"]


def open_routes(topology: Topology) -> tuple[RouteSource, RouteStore]:
    """Returns the routes of this node with their log, and the table of those of its peers.

    All epochs are raised: a process before this one may have been killed between the commit of a route and the epoch that follows
    it, and the topic caches of workers would then miss that route for ever.
    """
    epochs = Epochs.attach(topology.epochs_name)
    source = LmdbRouteLog(RouteTable(topology.routes_dir, log=True), Route)
    epochs.bump_all()
    return source, RemoteRoutes(topology.remote_routes_dir, epochs)
