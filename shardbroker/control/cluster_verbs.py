"""Verbs of a cluster."""

from typing import Annotated

from pydantic import StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Params, Verb, argument, table

__all__ = ["OneNode"]

NODE_MAX = 255


class OneNode(Params):
    node: Annotated[str, StringConstraints(min_length=1, max_length=NODE_MAX)] = argument("Name of the node, its node.name.")


table(
    Verb(
        "cluster status",
        "The nodes of the cluster as this node sees them: state of each node, of the link to each peer, and of the peer's routes.",
    ),
    Verb(
        "cluster core status",
        "The members of etcd: which one leads, which are not reached, the size of each database, and etcd's alarms.",
        columns=("name", "state", "version", "database_bytes", "alarms", "client", "peer", "id"),
    ),
    Verb(
        "cluster force-leave",
        "Remove a node that is gone, with the routes and messages that others keep for it. It has to have no lease in the core, "
        "and may join again.",
        OneNode, changes=True,
        rest=(Rest("DELETE /cluster/{name}/force_leave", "Node", "force_leave", "nothing", names={"name": "node"}),),
    ),
    Verb(
        "cluster forget",
        "Free the id of a node that was removed. Its data directory may join again while the id is free.",
        OneNode, changes=True,
    ),
)  # fmt: skip
