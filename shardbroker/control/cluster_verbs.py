"""Verbs of a cluster."""

from typing import Annotated

from pydantic import Field, StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Params, Verb, argument, table

__all__ = ["OneNode", "Recovery"]

NODE_MAX = 255


class OneNode(Params):
    node: Annotated[str, StringConstraints(min_length=1, max_length=NODE_MAX)] = argument("Name of the node, its node.name.")


class Recovery(Params):
    force: bool = Field(False, description="The etcds of all other nodes are stopped or cut off.")


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
        "cluster core add",
        "Have a node run etcd as a further member of the core. It has a vote once it has all keys.",
        OneNode, changes=True,
    ),
    Verb(
        "cluster core remove",
        "Remove the etcd of a node from the core, also of one that is gone. The node stays in the cluster.",
        OneNode, changes=True,
    ),
    Verb(
        "cluster core recover",
        "When the majority of the core is lost for good: have the etcd of this node go on as its only member.",
        Recovery, changes=True,
    ),
    Verb(
        "cluster leave",
        "Have this node leave the cluster when its broker stops, with the routes and messages that others keep for it. Its etcd "
        "leaves the core at once.",
        changes=True,
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
