"""Values of sessions on their way to another process, and the version of what is written of a gateway."""

import marshal
from collections import deque
from enum import IntEnum
from typing import Any, NamedTuple
from zlib import crc32

import pytest

from shardbroker.gateways.coap import session as coap
from shardbroker.gateways.image import Records, from_plain, to_plain
from shardbroker.gateways.mqttsn import session as mqttsn
from shardbroker.gateways.mqttsn.publisher import PublisherSession
from shardbroker.gateways.session import VERSION
from shardbroker.mqtt.packets import Publish
from shm.roles import ROLES


class Colour(IntEnum):
    RED = 3


class Pair(NamedTuple):
    left: Any
    right: Any


class Node:
    __slots__ = ("next", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.next: Any = None


RECORDS = Records(Node, Pair)


def moved(value: Any) -> Any:
    return from_plain(marshal.loads(marshal.dumps(to_plain(value, RECORDS), 4)), RECORDS)


@pytest.mark.parametrize("value", [
    None, True, 7, 1.5, "text", b"bytes", (), (1, (b"2",)), [1, [2]], {1: (2,), "a": {}}, Pair(1, [Pair(b"", None)]),
], ids=repr)  # fmt: skip
def test_values_are_as_they_were(value: Any) -> None:
    found = moved(value)
    assert found == value and type(found) is type(value)


def test_a_queue_stays_a_queue_and_an_enum_becomes_its_number() -> None:
    found = moved(deque([Colour.RED]))
    assert found == deque([3]) and type(found) is deque and type(found[0]) is int


def test_a_message_is_encoded() -> None:
    publish = Publish(b"a/b", b"payload", qos=1, packet_id=7)
    assert moved([publish])[0].encode(VERSION) == publish.encode(VERSION)


def test_a_part_in_two_places_is_one_part_also_in_itself() -> None:
    node = Node([1])
    node.next = node
    found = moved({"a": node, "b": [node]})
    assert found["a"] is found["b"][0] is found["a"].next and found["a"].value == [1]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(TypeError, match="a set is not plain"):
        to_plain([{1}], RECORDS)
    with pytest.raises(TypeError, match="a Node is not plain"):
        to_plain(Node(1), Records())
    with pytest.raises(KeyError):
        from_plain(to_plain(Node(1), RECORDS), Records())
    with pytest.raises(ValueError, match="kind 99"):
        from_plain((99, ()), RECORDS)


def fields(made: Any) -> list[str]:
    return [*getattr(made, "_fields", ()), *(one for one in getattr(made, "__slots__", ()) if one != "__dict__")]


STATES = {
    "coap": [
        coap.CoapSession.MOVES, coap.PARTS, [one.name for one in coap.State],
        [(name, fields(made)) for name, made in sorted(coap.RECORDS.by_name.items())],
    ],
    "mqttsn": [
        mqttsn.MqttSnSession.MOVES, PublisherSession.MOVES, [one.name for one in mqttsn.State], [one.name for one in mqttsn.Step],
        [(made.__name__, fields(made)) for made in (mqttsn._Incoming, mqttsn._Outgoing, mqttsn._Recent, mqttsn._Request)],
    ],
}  # fmt: skip
VERSIONS = {"coap": (1, 278167139), "mqttsn": (1, 1479075923)}
"""`Role.moves`, and a checksum of the names in the state that has this number."""


@pytest.mark.parametrize("kind", VERSIONS)
def test_another_state_has_another_version(kind: str) -> None:
    """A process of the earlier version hands its state to one of this version, which must know each name in it."""
    (role,) = (one for one in ROLES if one.name == f"gateway-{kind}")
    found = role.moves, crc32(repr(STATES[kind]).encode())
    assert found == VERSIONS[kind], f"raise Role.moves of gateway-{kind} in shm/roles.py, and note {found} here"
