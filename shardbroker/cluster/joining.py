"""How a broker that is no node yet asks a member for what a node of the cluster has to know: messages and proofs, without sockets.

    broker alone                     member
    CHALLENGE(nonce)        ->
                            <-       CHALLENGE(nonce)
    JOIN(request, proof)    ->
                            <-       ADMIT(admission, proof), or BYE

A proof covers both nonces, the role of its sender and all that is sent with it, so nothing that was recorded, sent back or altered
is accepted. Before the proof of the broker the member sends nothing but its nonce.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar

import cbor2

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import NAME_BYTES_MAX, NODE_ID_MAX, NONCE_BYTES, PROTO_MAX, PROTO_MIN

__all__ = ["ADMIT_BYTES_MAX", "JOIN_BYTES_MAX", "Admission", "JoinRequest", "Joining", "check_versions"]

JOIN_BYTES_MAX = 4_096
"""Largest JOIN: name and address have up to 255 bytes each."""
ADMIT_BYTES_MAX = 1 << 18
"""Largest ADMIT: 250 seeds of up to 255 bytes, or a CA file."""
CA_BYTES_MAX = 1 << 16
"""Largest file with issuers of etcd's certificate that is sent: some tens of certificates."""
KEYS_MAX = 64
"""Most keys in an admission."""
KEY_BYTES_MAX = 255
UUID_BYTES = 16
VERSION_MAX = 64
"""Characters of a version."""
PROOF_BYTES = 32
BROKER, MEMBER = b"join broker", b"join member"

T = TypeVar("T")


class JoinRequest(NamedTuple):
    """The broker that is to be a node."""

    name: str
    node_id: int
    """`node.id`; 0: any."""
    uuid: bytes
    """Of its data directory."""
    address: str
    """Where its links listen, or the address for the others; with `core.mode = none` one of the seeds."""
    proto_min: int
    proto_max: int
    version: str


class Admission(NamedTuple):
    """What a node has to know."""

    node: str
    """Name of the member that answers."""
    cluster: bytes
    """Uuid of the cluster."""
    keys: Mapping[str, Any]
    """Dotted key of the configuration -> value."""
    ca: bytes = b""
    """Issuers of the certificate of an external etcd, PEM; empty: those of gRPC, or none are needed."""


def check_versions(least: int, most: int, name: str) -> None:
    """Raises PeerFault unless the link protocol of the other side and that of this one have a version in common."""
    if max(PROTO_MIN, least) > min(PROTO_MAX, most):
        text = f"protocol {least} to {most} of node {name}: must overlap {PROTO_MIN} to {PROTO_MAX}"
        raise PeerFault(ByeReason.NO_COMMON_PROTOCOL, text)


@dataclass
class Joining:
    """One side of such a connection."""

    cookie: bytes
    nonce: bytes
    is_member: bool
    peer_nonce: bytes = b""

    def on_challenge(self, nonce: bytes) -> None:
        """Takes the nonce of the other side. Raises PeerFault."""
        if len(nonce) != NONCE_BYTES or self.peer_nonce:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"CHALLENGE: must arrive once with {NONCE_BYTES} bytes, got {len(nonce)}")
        if nonce == self.nonce:
            raise PeerFault(ByeReason.NOT_AUTHENTICATED, "CHALLENGE: must differ from the nonce of the other side")
        self.peer_nonce = nonce

    def request(self, request: JoinRequest) -> bytes:
        """Returns the body of JOIN."""
        return self._sealed([*request])

    def on_join(self, body: bytes) -> JoinRequest:
        """Returns the request of a JOIN whose proof is right. Raises PeerFault."""
        return _read("JOIN", _request, self._opened("JOIN", body, JOIN_BYTES_MAX))

    def admission(self, admission: Admission) -> bytes:
        """Returns the body of ADMIT."""
        return self._sealed([*admission])

    def on_admit(self, body: bytes) -> Admission:
        """Returns the admission of an ADMIT whose proof is right. Raises PeerFault."""
        return _read("ADMIT", _admission, self._opened("ADMIT", body, ADMIT_BYTES_MAX))

    def _sealed(self, content: list[Any]) -> bytes:
        text = cbor2.dumps(content)
        return self._proof(text, self.is_member) + text

    def _opened(self, name: str, body: bytes, limit: int) -> bytes:
        """Returns the content of a body. Raises PeerFault."""
        if not self.peer_nonce:
            raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{name}: must follow CHALLENGE")
        if not PROOF_BYTES < len(body) <= limit:
            raise PeerFault(ByeReason.LIMIT, f"{name}: must have {PROOF_BYTES + 1} to {limit} bytes, got {len(body)}")
        content = body[PROOF_BYTES:]
        if not hmac.compare_digest(body[:PROOF_BYTES], self._proof(content, not self.is_member)):
            raise PeerFault(ByeReason.NOT_AUTHENTICATED, "the other node has another cookie: compare cluster.cookie_file")
        return content

    def _proof(self, content: bytes, of_member: bool) -> bytes:
        broker, member = (self.peer_nonce, self.nonce) if self.is_member else (self.nonce, self.peer_nonce)
        return hmac.new(self.cookie, (MEMBER if of_member else BROKER) + broker + member + content, sha256).digest()


def _read(name: str, parse: Callable[[Any], T], text: bytes) -> T:
    """Returns what a content means. Its sender has proved the cookie, and may be of another version. Raises PeerFault."""
    try:
        return parse(cbor2.loads(text))
    except (cbor2.CBORError, ValueError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise PeerFault(ByeReason.PROTOCOL_ERROR, f"{name}: {str(error) or type(error).__name__}") from None


def _request(found: Any) -> JoinRequest:
    name, node_id, uuid, address, proto_min, proto_max, version = found
    _text("name", name, NAME_BYTES_MAX)
    _text("address", address, NAME_BYTES_MAX)
    _text("version", version, VERSION_MAX)
    for field, value, most in ("node id", node_id, NODE_ID_MAX), ("protocol", proto_min, 65535), ("protocol", proto_max, 65535):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise ValueError(f"{field}: must be 0 to {most}")
    _uuid(uuid)
    return JoinRequest(name, node_id, uuid, address, proto_min, proto_max, version)


def _admission(found: Any) -> Admission:
    node, cluster, keys, ca = found
    _text("node", node, NAME_BYTES_MAX)
    _uuid(cluster)
    if not isinstance(keys, dict) or len(keys) > KEYS_MAX:
        raise ValueError(f"keys: must be a map of up to {KEYS_MAX}")
    for key, value in keys.items():
        _text("key", key, KEY_BYTES_MAX)
        if not isinstance(value, bool | int | str) and not (isinstance(value, list) and all(isinstance(one, str) for one in value)):
            raise ValueError(f"{key}: must be a number, a text, or a list of texts")
    if not isinstance(ca, bytes) or len(ca) > CA_BYTES_MAX:
        raise ValueError(f"CA: must have at most {CA_BYTES_MAX} bytes")
    return Admission(node, cluster, keys, ca)


def _text(field: str, value: Any, most: int) -> None:
    if not isinstance(value, str) or not 0 < len(value.encode()) <= most or not value.isprintable():
        raise ValueError(f"{field}: must be a text of 1 to {most} bytes")


def _uuid(value: Any) -> None:
    if not isinstance(value, bytes) or len(value) != UUID_BYTES:
        raise ValueError(f"uuid: must have {UUID_BYTES} bytes")
