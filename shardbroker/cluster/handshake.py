"""The first four messages of a connection: who is there, and the proof of the cookie.

    dialling side                            accepting side
    HELLO(identity, nonce)  ->
                            <-               HELLO(identity, nonce)
    WELCOME(proof)          ->
                            <-               WELCOME(proof)

A proof covers both HELLOs and the role of its sender, so neither side can send back what it received, and nothing recorded on
another connection is of use. An identity counts only once it is proved: a process that has died cannot complete a handshake, so a
proved incarnation is that of a running process and need not be compared with others by size.
"""

import hmac
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import NamedTuple

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import POSITION_MAX, Hello, Message, Welcome

__all__ = [
    "AUTH_TIMEOUT_MS",
    "CALLS",
    "CHANNEL_MAX",
    "FEATURES",
    "FEATURE_ACCESS",
    "FEATURE_LOAD",
    "FEATURE_RETAINED",
    "FEATURE_SESSIONS",
    "JOIN",
    "NAME_BYTES_MAX",
    "NODE_ID_MAX",
    "NONCE_BYTES",
    "PREFACE_CHANNEL_MAX",
    "PROTO_MAX",
    "PROTO_MIN",
    "Handshake",
    "Identity",
    "cluster_uuid",
]

PROTO_MIN = PROTO_MAX = 1
"""Versions of the protocol that this code speaks."""
FEATURE_LOAD = 1
"""Feature of a node that takes LOAD."""
FEATURE_SESSIONS = 2
"""Feature of a node whose sessions move: `cluster.registry = on`. Nodes with and without it are linked, as messages are no matter
of it; the difference is an alarm."""
FEATURE_RETAINED = 4
"""Feature of a node that takes retained messages of other nodes."""
FEATURE_ACCESS = 8
"""Feature of a node that takes users, rules, bans, accounts and API keys of other nodes: tables 1 to 3."""
FEATURES = FEATURE_LOAD | FEATURE_RETAINED | FEATURE_ACCESS
"""Those of every node."""
NODE_ID_MAX = 250
"""Node ids are 1 to 250: 8 bits, with room for marks."""
NAME_BYTES_MAX = 255
"""Bytes of a node's name and of its address: a host name has at most 253."""
UUID_BYTES = NONCE_BYTES = 16
CALLS = 9
"""Channel for verbs, between managers."""
CHANNEL_MAX = CALLS
"""Channels of a pair of nodes: signals, `cluster.links` (1 to 8), and verbs."""
JOIN = 10
"""Channel for brokers that are no nodes yet, which have a proof of their own (joining.py)."""
PREFACE_CHANNEL_MAX = JOIN
"""Channels that a connection may be for."""
AUTH_TIMEOUT_MS = 5_000
"""`cluster.link.auth_timeout`: from the opened connection to the proof."""


def cluster_uuid(name: str) -> bytes:
    """Returns the uuid of a cluster without a core: the digest of its name."""
    return blake2b(name.encode(), digest_size=UUID_BYTES, person=b"shard-cluster").digest()


class Identity(NamedTuple):
    """Who a node is, for as long as its broker runs."""

    node_id: int
    name: str
    address: str
    cluster: bytes
    node_uuid: bytes
    incarnation: int


def _checked(hello: Hello) -> Hello:
    """Returns a HELLO whose fields are in range. Raises PeerFault."""
    for field, size in ("name", len(hello.name.encode())), ("address", len(hello.address.encode())):
        if not 0 < size <= NAME_BYTES_MAX:
            raise PeerFault(ByeReason.LIMIT, f"HELLO {field}: must have 1 to {NAME_BYTES_MAX} bytes, got {size}")
    for field, value, least, most in (
        ("node id", hello.node_id, 1, NODE_ID_MAX),
        ("incarnation", hello.incarnation, 1, POSITION_MAX),
        ("channel", hello.channel, 0, CHANNEL_MAX),
    ):
        if not least <= value <= most:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"HELLO {field}: must be {least} to {most}, got {value}")
    for field, text in ("cluster", hello.cluster), ("node uuid", hello.node_uuid), ("nonce", hello.nonce):
        if len(text) != UUID_BYTES:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"HELLO {field}: must have {UUID_BYTES} bytes, got {len(text)}")
    return hello


def _encoded(hello: Hello) -> bytes:
    """Returns the bytes of a HELLO that a proof covers; each field has its length in front."""
    fields = [value if isinstance(value, bytes) else str(value).encode() for value in hello]
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


@dataclass
class Handshake:
    """One connection until both sides have proved the cookie."""

    me: Identity
    cookie: bytes
    nonce: bytes
    channel: int
    is_dialer: bool
    deadline_ms: int
    expected_address: str = ""
    """Dialling side: the address that was dialled."""
    peer: Hello | None = None
    proto: int = 0
    is_done: bool = False
    features: int = FEATURES

    @property
    def own(self) -> Hello:
        """Returns this side's HELLO."""
        me = self.me
        who = me.node_id, me.name, me.address, me.cluster, me.node_uuid, me.incarnation
        return Hello(self.channel, *who, PROTO_MIN, PROTO_MAX, self.features, self.nonce)

    def start(self) -> list[Message]:
        """Returns what this side sends first."""
        return [self.own] if self.is_dialer else []

    def on_hello(self, hello: Hello) -> list[Message]:
        """Takes the peer's HELLO and returns the answer. Raises PeerFault; whether the identity is welcome is for the view."""
        if self.peer is not None:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, "HELLO: received twice on one connection")
        _checked(hello)
        if hello.nonce == self.nonce:
            raise PeerFault(ByeReason.NOT_AUTHENTICATED, "HELLO nonce: must differ from the nonce of the other side")
        if hello.cluster != self.me.cluster:
            raise PeerFault(ByeReason.WRONG_CLUSTER, f"node {hello.name} belongs to another cluster: compare cluster.name")
        if max(PROTO_MIN, hello.proto_min) > min(PROTO_MAX, hello.proto_max):
            text = f"protocol {hello.proto_min} to {hello.proto_max} of node {hello.name}: must overlap {PROTO_MIN} to {PROTO_MAX}"
            raise PeerFault(ByeReason.NO_COMMON_PROTOCOL, text)
        if self.is_dialer and hello.channel != self.channel:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"HELLO channel: must be {self.channel}, got {hello.channel}")
        if self.is_dialer and hello.address != self.expected_address:
            text = f"node {hello.name} at {self.expected_address} has the address {hello.address}: compare cluster.static.seeds"
            raise PeerFault(ByeReason.NOT_A_MEMBER, text)
        self.channel = hello.channel
        self.peer = hello
        self.proto = min(PROTO_MAX, hello.proto_max)
        return [Welcome(self._proof(True))] if self.is_dialer else [self.own]

    def on_welcome(self, welcome: Welcome) -> list[Message]:
        """Takes the peer's proof and returns the answer; the handshake is then done. Raises PeerFault."""
        if self.peer is None or self.is_done:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, "WELCOME: must follow HELLO, once")
        if not hmac.compare_digest(welcome.proof, self._proof(not self.is_dialer)):
            raise PeerFault(ByeReason.NOT_AUTHENTICATED, f"node {self.peer.name} has another cookie: compare cluster.cookie_file")
        self.is_done = True
        return [] if self.is_dialer else [Welcome(self._proof(False))]

    def _proof(self, of_dialer: bool) -> bytes:
        assert self.peer is not None
        dialled, accepted = (self.own, self.peer) if self.is_dialer else (self.peer, self.own)
        covered = (b"dialer" if of_dialer else b"acceptor") + _encoded(dialled) + _encoded(accepted)
        return hmac.new(self.cookie, covered, sha256).digest()
