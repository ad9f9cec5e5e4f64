"""Verbs of a cluster."""

from shardbroker.control.verbs import Verb, table

__all__: list[str] = []

table(
    Verb(
        "cluster status",
        "The nodes of the cluster as this node sees them: state of each node, of the link to each peer, and of the peer's routes.",
    )
)
