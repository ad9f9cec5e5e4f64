"""What a broker that becomes a node and a member send each other: proofs, bounds and versions."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.joining import ADMIT_BYTES_MAX, JOIN_BYTES_MAX, Admission, Joining, JoinRequest, check_versions

COOKIE = b"a secret of the nodes"
REQUEST = JoinRequest("n2@10.0.0.2", 0, b"u" * 16, "10.0.0.2:5370", 1, 1, "1.0")
ADMISSION = Admission("n1@10.0.0.1", b"c" * 16, {"cluster.enable": True, "cluster.static.seeds": ["10.0.0.1:5370"]}, b"ca")


def pair(cookie: bytes = COOKIE, other: bytes = COOKIE) -> tuple[Joining, Joining]:
    broker, member = Joining(cookie, b"b" * 16, is_member=False), Joining(other, b"m" * 16, is_member=True)
    broker.on_challenge(member.nonce)
    member.on_challenge(broker.nonce)
    return broker, member


def refused(reason: ByeReason, text: str) -> "pytest.RaisesExc[PeerFault]":
    return pytest.raises(PeerFault, match=text, check=lambda fault: fault.reason is reason)


def test_a_request_and_its_answer() -> None:
    broker, member = pair()
    assert member.on_join(broker.request(REQUEST)) == REQUEST
    assert broker.on_admit(member.admission(ADMISSION)) == ADMISSION


def test_another_cookie_is_refused_by_both_sides() -> None:
    broker, member = pair(other=b"a secret of others")
    with refused(ByeReason.NOT_AUTHENTICATED, "compare cluster.cookie_file"):
        member.on_join(broker.request(REQUEST))
    with refused(ByeReason.NOT_AUTHENTICATED, "compare cluster.cookie_file"):
        broker.on_admit(member.admission(ADMISSION))


def test_a_proof_that_is_sent_back_or_of_another_connection_is_refused() -> None:
    broker, member = pair()
    with pytest.raises(PeerFault, match="cookie"):
        broker.on_admit(broker.request(REQUEST))
    with pytest.raises(PeerFault, match="cookie"):
        member.on_join(member.admission(ADMISSION))
    later = Joining(COOKIE, b"x" * 16, is_member=True)
    later.on_challenge(broker.nonce)
    with pytest.raises(PeerFault, match="cookie"):
        later.on_join(broker.request(REQUEST))


@given(at=st.integers(0, 500), bit=st.integers(0, 7))
def test_an_answer_that_was_altered_is_refused(at: int, bit: int) -> None:
    broker, member = pair()
    body = bytearray(member.admission(ADMISSION))
    body[at % len(body)] ^= 1 << bit
    with pytest.raises(PeerFault, match="cookie"):
        broker.on_admit(bytes(body))


def test_challenges_have_bounds() -> None:
    one = Joining(COOKIE, b"b" * 16, is_member=False)
    with refused(ByeReason.PROTOCOL_ERROR, "ADMIT: must follow CHALLENGE"):
        one.on_admit(b"x" * 40)
    for nonce in b"", b"x" * 17:
        with refused(ByeReason.PROTOCOL_ERROR, "CHALLENGE: must arrive once with 16 bytes"):
            one.on_challenge(nonce)
    with refused(ByeReason.NOT_AUTHENTICATED, "must differ"):
        one.on_challenge(one.nonce)
    one.on_challenge(b"m" * 16)
    with refused(ByeReason.PROTOCOL_ERROR, "once"):
        one.on_challenge(b"n" * 16)


def test_bodies_have_bounds() -> None:
    broker, member = pair()
    for size in 0, 32, JOIN_BYTES_MAX + 1:
        with refused(ByeReason.LIMIT, "JOIN: must have"):
            member.on_join(b"x" * size)
    with refused(ByeReason.LIMIT, "ADMIT: must have"):
        broker.on_admit(b"x" * (ADMIT_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "content",
    [
        None, 1, [], {}, [*REQUEST][:-1], [*REQUEST, 1], [*REQUEST._replace(name="")], [*REQUEST._replace(name="n" * 256)],
        [*REQUEST._replace(name="a\nb")], [*REQUEST._replace(node_id=251)], [*REQUEST._replace(node_id=-1)],
        [*REQUEST._replace(uuid=b"u")], [*REQUEST._replace(address="")], [*REQUEST._replace(version="v" * 65)],
        [5, *[*REQUEST][1:]], [*REQUEST._replace(proto_min=1 << 20)],
    ],
)  # fmt: skip
def test_a_proved_request_that_is_none(content: object) -> None:
    broker, member = pair()
    text = cbor2.dumps(content)
    with refused(ByeReason.PROTOCOL_ERROR, "JOIN: "):
        member.on_join(broker._proof(text, of_member=False) + text)


@pytest.mark.parametrize(
    "content",
    [
        None, [], ["n1", b"c" * 16, {}], ["n1", b"c", {}, b""], ["n1", b"c" * 16, [], b""], ["n1", b"c" * 16, {1: 2}, b""],
        ["n1", b"c" * 16, {f"k{number}": 1 for number in range(65)}, b""], ["n1", b"c" * 16, {}, "text"],
        ["n1", b"c" * 16, {"k": None}, b""], ["n1", b"c" * 16, {"k": {}}, b""], ["n1", b"c" * 16, {"k": [1]}, b""],
        ["n1", b"c" * 16, {}, b"x" * 65537],
    ],
)  # fmt: skip
def test_a_proved_answer_that_is_none(content: object) -> None:
    broker, member = pair()
    text = cbor2.dumps(content)
    with refused(ByeReason.PROTOCOL_ERROR, "ADMIT: "):
        broker.on_admit(member._proof(text, of_member=True) + text)


@given(noise=st.binary(min_size=1, max_size=200))
def test_proved_noise_is_a_fault(noise: bytes) -> None:
    broker, member = pair()
    try:
        found = member.on_join(broker._proof(noise, of_member=False) + noise)
    except PeerFault:
        return
    assert isinstance(found, JoinRequest)


def test_versions_without_a_common_one() -> None:
    check_versions(1, 7, "n2")
    with refused(ByeReason.NO_COMMON_PROTOCOL, "protocol 2 to 3 of node n2: must overlap 1 to 1"):
        check_versions(2, 3, "n2")
