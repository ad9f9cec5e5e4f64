"""Identity and proof of a connection between nodes, fed by hand and by attackers."""

from itertools import count
from typing import Any

import pytest

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import AUTH_TIMEOUT_MS, Handshake, Identity, cluster_uuid
from shardbroker.cluster.messages import Hello, Welcome

_numbers = count(1)


def identity(node_id: int, **fields: Any) -> Identity:
    name = f"n{node_id}"
    return Identity(node_id, name, f"{name}:5370", cluster_uuid("c"), bytes([node_id]) * 16, 1000 + node_id)._replace(**fields)


def side(me: Identity, is_dialer: bool, cookie: bytes = b"cookie", expected: str = "n2:5370") -> Handshake:
    nonce = next(_numbers).to_bytes(16, "big")
    return Handshake(me, cookie, nonce, 0, is_dialer, AUTH_TIMEOUT_MS, expected_address=expected if is_dialer else "")


def meet(dialer: Handshake, acceptor: Handshake) -> None:
    (hello,) = dialer.start()
    (answer,) = acceptor.on_hello(hello)
    (proof,) = dialer.on_hello(answer)
    (answer,) = acceptor.on_welcome(proof)
    assert dialer.on_welcome(answer) == []


def test_both_sides_prove_the_cookie_and_know_each_other() -> None:
    dialer, acceptor = side(identity(1), True), side(identity(2), False)
    meet(dialer, acceptor)
    assert dialer.is_done and acceptor.is_done
    assert dialer.peer is not None and dialer.peer.node_id == 2
    assert acceptor.peer is not None and acceptor.peer.incarnation == 1001


def test_another_cookie_is_refused_before_the_acceptor_proves_anything() -> None:
    dialer, acceptor = side(identity(1), True, b"other"), side(identity(2), False)
    (answer,) = acceptor.on_hello(dialer.own)
    (proof,) = dialer.on_hello(answer)
    with pytest.raises(PeerFault, match="another cookie") as caught:
        acceptor.on_welcome(proof)
    assert caught.value.reason == ByeReason.NOT_AUTHENTICATED


def test_a_proof_that_is_sent_back_is_refused() -> None:
    dialer = side(identity(1), True)
    (hello,) = dialer.start()
    # An attacker without the cookie answers with what it received.
    (proof,) = dialer.on_hello(hello._replace(node_id=2, address="n2:5370", name="n2", nonce=b"x" * 16))
    with pytest.raises(PeerFault, match="another cookie"):
        dialer.on_welcome(proof)


def test_a_proof_of_another_connection_is_refused() -> None:
    first = side(identity(1), True), side(identity(2), False)
    (answer,) = first[1].on_hello(first[0].own)
    (recorded,) = first[0].on_hello(answer)
    acceptor = side(identity(2), False)
    acceptor.on_hello(first[0].own)
    with pytest.raises(PeerFault, match="another cookie"):
        acceptor.on_welcome(recorded)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cluster": cluster_uuid("d")}, ByeReason.WRONG_CLUSTER),
        ({"proto_min": 2, "proto_max": 9}, ByeReason.NO_COMMON_PROTOCOL),
        ({"proto_min": 1, "proto_max": 0}, ByeReason.NO_COMMON_PROTOCOL),
        ({"name": ""}, ByeReason.LIMIT),
        ({"name": "é" * 128}, ByeReason.LIMIT),
        ({"address": "a" * 256}, ByeReason.LIMIT),
        ({"node_id": 0}, ByeReason.PROTOCOL_ERROR),
        ({"node_id": 251}, ByeReason.PROTOCOL_ERROR),
        ({"incarnation": 0}, ByeReason.PROTOCOL_ERROR),
        ({"incarnation": 1 << 63}, ByeReason.PROTOCOL_ERROR),
        ({"channel": 10}, ByeReason.PROTOCOL_ERROR),
        ({"nonce": b""}, ByeReason.PROTOCOL_ERROR),
        ({"node_uuid": b"x" * 17}, ByeReason.PROTOCOL_ERROR),
    ],
)
def test_a_hello_out_of_range_ends_the_connection(fields: dict[str, Any], reason: ByeReason) -> None:
    hello: Hello = side(identity(1), True).own._replace(**fields)
    with pytest.raises(PeerFault) as caught:
        side(identity(2), False).on_hello(hello)
    assert caught.value.reason == reason


def test_a_dialled_address_has_to_be_that_of_the_node() -> None:
    dialer = side(identity(1), True, expected="n3:5370")
    with pytest.raises(PeerFault, match=r"n2:5370.*cluster\.static\.seeds"):
        dialer.on_hello(side(identity(2), False).own)


def test_order_of_messages_is_fixed() -> None:
    acceptor = side(identity(2), False)
    with pytest.raises(PeerFault, match="must follow HELLO"):
        acceptor.on_welcome(Welcome(b""))
    acceptor.on_hello(side(identity(1), True).own)
    with pytest.raises(PeerFault, match="twice"):
        acceptor.on_hello(side(identity(1), True).own)
