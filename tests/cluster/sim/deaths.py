"""Deaths during a takeover: the holder, the node of the client or the registrar ends at each step, for a while.

Three nodes have one role each. The client of a session with a queue connects at another node, messages to it are on their way, and
one node ends at a step: its power is cut, or its processes are killed. Bounds as in the failure table: a CONNECT is answered
within 2 s while a node is down; a session that was not given is served again after 5 s; one session per client id 5 s after the
nodes have the same members. Nothing that was acknowledged is lost, and QoS 2 is delivered once.
"""

from enum import StrEnum

from shardbroker.cluster.claims import ACK_MS, ASK_MS, SessionState
from shardbroker.cluster.outbound import Level
from tests.cluster.sim.node import Node
from tests.cluster.sim.sessions import Client, Copy, RoamingCluster, RoamingNode

__all__ = ["STEPS", "Role", "TakeoverCluster", "takeover"]

NODES = 3
DOWN_US = 8_000_000
"""Longer than every bound."""
CONNECT_MS = 2_000
AGAIN_MS = ACK_MS + ASK_MS + 500
"""From the death of the new node to the session at the old one: STATE_ACK is late, the question has no answer, a tick each."""
START_MS = 14_000
"""Until all seeds have been linked for so long that a new session is known to be the only one."""
QUEUE = 12


class Role(StrEnum):
    """What the node that dies does in the takeover."""

    HOLDER = "holder"
    NEW = "new"
    REGISTRAR = "registrar"


STEPS = {Role.HOLDER: 120, Role.NEW: 120, Role.REGISTRAR: 30}
"""More than a node has in a takeover; how many it has differs from seed to seed."""


class TakeoverCluster(RoamingCluster):
    """Three nodes, one takeover, one death."""

    def __init__(self, seed: int, level: Level, power_cut: bool) -> None:
        super().__init__(seed, NODES)
        self.level, self.power_cut = level, power_cut
        self.lost_session = "new"
        self.died_ms: int | None = None
        while self.to_join:
            self.to_join.pop().start()

    def crashed(self, node: Node) -> None:
        if node.runs and not self.is_healing:
            node.kill(self.power_cut)
            self.died_ms = self.events.now_ms
            self.events.after(DOWN_US, self.restart, node)

    def roles(self) -> tuple[Client, dict[Role, RoamingNode]]:
        """Returns a client, and the nodes: its registrar is neither of the other two."""
        client = self.clients["c0"]
        nodes = [node for node in self.nodes if isinstance(node, RoamingNode)]
        registrar = nodes[nodes[0].core.claims._registrar(client.key) - 1]
        holder, new = (node for node in nodes if node is not registrar)
        return client, {Role.HOLDER: holder, Role.NEW: new, Role.REGISTRAR: registrar}

    def copies_of(self, client: Client, state: SessionState) -> list[Copy]:
        nodes = [node for node in self.running() if isinstance(node, RoamingNode)]
        return [copy for node in nodes for copy in node.copies.values() if copy.key == client.key and copy.state == state]

    def load(self, node: RoamingNode, topic: bytes) -> None:
        for _ in range(QUEUE):
            self.events.after(self.rng.randint(0, 60_000), self.publish, node, topic)


def takeover(role: Role, step: int, level: Level = Level.PROCESS, power_cut: bool = False, skew_ms: int = 0) -> bool:
    """Has a node die at a step of a takeover. Returns whether the takeover had so many. Raises AssertionError. `skew_ms`: by
    which the clock of the node is wrong."""
    try:
        return _takeover(role, step, TakeoverCluster(step, level, power_cut), skew_ms)
    except AssertionError as error:
        raise AssertionError(f"{role} ends at step {step}, level {level.value}, {skew_ms=}: {error}") from error


def _takeover(role: Role, step: int, cluster: TakeoverCluster, skew_ms: int) -> bool:
    cluster.events.run(START_MS)
    client, nodes = cluster.roles()
    nodes[role].skew_ms += skew_ms
    publisher = nodes[Role.NEW if role == Role.REGISTRAR else Role.REGISTRAR]
    cluster.connect(client, nodes[Role.HOLDER], False)
    cluster.events.run(500)
    assert client.is_connected, "the client is not connected"
    nodes[Role.HOLDER].core.claims.disconnected(client.key)
    cluster.cut_off(client)
    cluster.publish(publisher, client.topic)
    cluster.events.run(100)
    cluster.load(publisher, client.topic)
    nodes[role].countdown = step
    cluster.slowest_ms = 0
    cluster.connect(client, nodes[Role.NEW], False)
    cluster.events.run(1_000)
    nodes[role].countdown = 0
    if cluster.died_ms is None:
        return False
    if role == Role.NEW:
        check_served_again(cluster, client, nodes)
    cluster.events.run(3_000)
    assert client.is_connected, f"CONNECT at {client.node and client.node.name} is not answered"
    assert cluster.slowest_ms <= CONNECT_MS, f"CONNECT took {cluster.slowest_ms} ms"
    cluster.heal()
    cluster.check()
    return True


def check_served_again(cluster: TakeoverCluster, client: Client, nodes: dict[Role, RoamingNode]) -> None:
    """Checks that the holder has its session again, or has given it with an acknowledgement; then the client connects there."""
    assert cluster.died_ms is not None
    cluster.events.run(cluster.died_ms + AGAIN_MS - cluster.events.now_ms)
    moving = cluster.copies_of(client, SessionState.MOVING)
    assert not moving, f"still on its way {AGAIN_MS} ms after the death of its new node"
    served = cluster.copies_of(client, SessionState.OWNED)
    gone = cluster.copies_of(client, SessionState.GONE)
    assert len(served) == 1 or gone, "no node has the session, and none was given it"
    cluster.slowest_ms = 0
    cluster.connect(client, nodes[Role.HOLDER], False)
    cluster.events.run(CONNECT_MS)
    assert not served or (client.is_connected and cluster.slowest_ms == 0), "the session that is served again was not found"
