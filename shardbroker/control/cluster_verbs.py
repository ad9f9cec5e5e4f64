"""Verbs of a cluster."""

from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Params, Verb, argument, table

__all__ = [
    "Adopt", "Give", "JoinedMember", "OneMember", "OneNode", "Recovery", "StartEvacuation", "StartRebalance", "StartRebalanceOfAll",
    "WhichNodes",
]  # fmt: skip

NODE_MAX = 255
NODES_MAX = 250
PATH_MAX = 4096
ADDRESS_MAX = 300
"""Characters of HOST:PORT."""
REFERENCE_MAX = 1000
"""Characters of a Server Reference, as `process.drain_server_reference`."""
RATE_MAX = 10_000
THRESHOLD_MAX = 1_000_000_000
DURATION_MAX = 32
COUNT_MAX = (1 << 32) - 1
"""Most clients or sessions that a node reports."""


def _as_text(value: object) -> object:
    """Returns a number as seconds: EMQX takes both."""
    return f"{value}s" if isinstance(value, int) and not isinstance(value, bool) else value


Wait = Annotated[str, BeforeValidator(_as_text), StringConstraints(min_length=1, max_length=DURATION_MAX)]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=NODE_MAX)]


class OneNode(Params):
    node: NodeName = argument("Name of the node, its node.name.")


class OneMember(OneNode):
    address: str = Field(
        "", max_length=ADDRESS_MAX, description="HOST:PORT of the etcd of a witness. Empty: the member is a node, which tells it."
    )


class JoinedMember(Params):
    address: Annotated[str, StringConstraints(min_length=1, max_length=NODE_MAX + 8)] = argument(
        "HOST or HOST:PORT, where the links of a member listen (its cluster.link.bind); the port is 5370 by default."
    )
    restart: bool = Field(True, description="Drain the broker and start it again; otherwise its next start is that of a node.")


class Adopt(Params):
    directory: Annotated[str, StringConstraints(min_length=1, max_length=PATH_MAX)] = argument(
        "Data directory of the node that died, an absolute path on the machine of this node."
    )
    node: NodeName = Field(..., description="Name of the node that died, its node.name.")
    check: bool = Field(False, description="Only report what would be adopted, or what speaks against it.")
    wait: bool = Field(True, description="Wait for the end, and show what is left; otherwise it continues by itself.")
    leave_behind: bool = Field(
        False, description="End without what does not move: delayed messages, and what nodes that are not linked may have."
    )
    sess_rate: int = Field(500, ge=1, le=RATE_MAX, description="Most sessions that move in a second.")
    address: str = Field(
        "", max_length=ADDRESS_MAX,
        description="HOST:PORT by which other nodes reach the stand-in; empty: the host of this node's links, and any free port.",
    )
    certfile: str = Field("", max_length=PATH_MAX, description="With cluster.tls: PEM file, a certificate of the node that died.")
    keyfile: str = Field("", max_length=PATH_MAX, description="PEM file of its private key; empty: certfile contains the key.")


class WhichNodes(Params):
    own: bool = Field(False, description="What this node knows of itself only, without a question to the others.")


class StartEvacuation(Params):
    conn_rate: int = Field(500, ge=1, le=RATE_MAX, description="Most clients that are disconnected in a second.")
    sess_rate: int = Field(500, ge=1, le=RATE_MAX, description="Most sessions that move in a second.")
    wait: Wait = Field(
        "60s", description="Time in which clients are still accepted, so that load balancers notice, such as 60s; 0s: none."
    )
    wait_takeover: Wait = Field("60s", description="Time for clients to take their sessions along; then the rest moves.")
    redirect_to: str = Field(
        "", max_length=REFERENCE_MAX, pattern=r"^([!-~]+( [!-~]+)*)?$",
        description="HOST:PORT of other nodes, separated by spaces: the Server Reference for 5.0 clients.",
    )  # fmt: skip
    migrate_to: list[NodeName] | None = Field(
        None, max_length=NODES_MAX, description="Node that gets sessions, may be repeated; all others if left out."
    )


class StartRebalance(Params):
    nodes: list[NodeName] | None = Field(
        None, max_length=NODES_MAX, description="Node that takes part beside this one, may be repeated; all if left out."
    )
    wait_health_check: Wait = Field("60s", description="Time in which clients are still accepted, so that load balancers notice.")
    conn_evict_rate: int = Field(500, ge=1, le=RATE_MAX, description="Most clients that are disconnected in a second.")
    abs_conn_threshold: int = Field(1000, ge=1, le=THRESHOLD_MAX, description="Clients above the average that may stay.")
    rel_conn_threshold: float = Field(1.1, gt=1, le=100, description="Clients that may stay, as a multiple of the average.")
    wait_takeover: Wait = Field("60s", description="Time for clients to take their sessions along; then sessions move.")
    sess_evict_rate: int = Field(500, ge=1, le=RATE_MAX, description="Most sessions that move in a second.")
    abs_sess_threshold: int = Field(1000, ge=1, le=THRESHOLD_MAX, description="Absent sessions above the average that may stay.")
    rel_sess_threshold: float = Field(1.1, gt=1, le=100, description="Absent sessions that may stay, as a multiple of the average.")


class StartRebalanceOfAll(StartRebalance):
    nodes: list[NodeName] | None = Field(
        None, max_length=NODES_MAX, description="Node that takes part, may be repeated; all that are linked if left out."
    )


class Give(StartRebalance):
    nodes: list[NodeName] | None = Field(None, max_length=NODES_MAX, description="All nodes that take part, may be repeated.")
    donors: list[NodeName] = Field(..., min_length=1, max_length=NODES_MAX, description="Those that give, this node included.")
    coordinator: NodeName = Field(..., description="The node that has decided.")
    connection_goal: int = Field(..., ge=0, le=COUNT_MAX, description="Clients that stay at each donor.")
    session_goal: int = Field(..., ge=0, le=COUNT_MAX, description="Absent sessions that stay at each donor.")


class Recovery(Params):
    force: bool = Field(False, description="The etcds of all other nodes are stopped or cut off.")


table(
    Verb(
        "cluster status",
        "The nodes of the cluster as this node sees them: state of each node, of the link to each peer, and of the peer's routes.",
    ),
    Verb(
        "cluster topology",
        "Which nodes are core nodes, and which are replicants: to which core nodes each core node is linked, and at which one each "
        "replicant keeps its lease.",
        WhichNodes, columns=("node", "role", "state", "cores", "reason"), is_shared=True,
    ),
    Verb(
        "cluster core status",
        "The members of etcd: which one leads, which are not reached, the size of each database, and etcd's alarms.",
        columns=("name", "state", "version", "database_bytes", "alarms", "client", "peer", "id"),
    ),
    Verb(
        "cluster core add",
        "Have a node or a witness run etcd as a further member of the core. It has a vote once it has all keys.",
        OneMember, changes=True,
    ),
    Verb(
        "cluster core remove",
        "Remove the etcd of a node or a witness from the core, also of one that is gone. A node stays in the cluster.",
        OneMember, changes=True,
    ),
    Verb(
        "cluster core recover",
        "When the majority of the core is lost for good: have the etcd of this node go on as its only member.",
        Recovery, changes=True,
    ),
    Verb(
        "cluster join",
        "Make this broker, which runs alone, a node of the cluster of a member: the keys of the cluster are stored, and the broker "
        "starts again.",
        JoinedMember, changes=True,
    ),
    Verb(
        "cluster leave",
        "Have this node leave the cluster when its broker stops, with the routes and messages that others keep for it. Its etcd "
        "leaves the core at once. What `cluster join` has stored is removed.",
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
    Verb(
        "cluster adopt",
        "Take over the sessions and messages of a node that died, from its data directory. The node is forgotten at the end, and "
        "cannot start with that directory any more.",
        Adopt, changes=True, stream=True,
    ),
    Verb(
        "cluster adoptions",
        "What this node adopts, and has adopted since its manager was started.",
        columns=("node", "state", "sessions", "initial", "delayed", "message", "problem", "directory"),
    ),
    Verb(
        "cluster stop-adoption",
        "End an adoption of this node: what has moved stays, and the node may start with its data directory again.",
        OneNode, changes=True,
    ),
    Verb(
        "cluster rebalance start",
        "Have all nodes with more clients or sessions than average give them to the others, down to the average and a threshold.",
        StartRebalanceOfAll, changes=True,
        rest=(Rest("POST /load_rebalance/{node}/start", "Node", "start_rebalance"),),
    ),
    Verb(
        "cluster rebalance stop",
        "End the rebalance of each node that is reached: all of them accept clients again.",
        changes=True,
        rest=(Rest("POST /load_rebalance/{node}/stop", "Node", "stop_rebalance"),),
    ),
    Verb(
        "cluster rebalance status",
        "State of the rebalance of each node: what it has, and what shall stay.",
        columns=(
            "node", "state", "coordinator", "connections", "connection_goal", "absent", "session_goal", "message",
        ),
        is_shared=True,
    ),
    Verb(
        "node evacuate start",
        "Empty this node: turn new clients away, disconnect the others, and move the sessions of absent ones to other nodes.",
        StartEvacuation, changes=True,
        rest=(Rest(
            "POST /load_rebalance/{node}/evacuation/start", "Node", "start_evacuation",
            names={"conn_evict_rate": "conn_rate", "sess_evict_rate": "sess_rate", "wait_health_check": "wait"},
        ),),
    ),
    Verb(
        "node evacuate stop",
        "End the evacuation: this node accepts clients again.",
        changes=True,
        rest=(Rest("POST /load_rebalance/{node}/evacuation/stop", "Node", "stop_evacuation"),),
    ),
    Verb(
        "node rebalance start",
        "Have this node give clients and sessions to the others until it has no more than their average and a threshold.",
        StartRebalance, changes=True,
    ),
    Verb(
        "node rebalance give",
        "The part of one node in `cluster rebalance start`, which gives this verb to each donor.",
        Give, changes=True,
    ),
    Verb(
        "node rebalance stop",
        "End the rebalance: this node accepts clients again.",
        changes=True,
    ),
    Verb(
        "node rebalance status",
        "State of the rebalance of this node: what it has, and what shall stay.",
    ),
    Verb(
        "node evacuate status",
        "State of the evacuation of this node, what is left, and whether the node may be stopped.",
        rest=(Rest("GET /load_rebalance/status", "Node", "load_rebalance_status"),),
    ),
)  # fmt: skip
