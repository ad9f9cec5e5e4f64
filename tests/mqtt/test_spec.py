"""Tables that exist in Python and in C: the same names with the same values in both, and no table declared again elsewhere."""

import re
from enum import IntEnum
from pathlib import Path

import pytest

from shardbroker.journal.schema import Ack, DeferredFor, DropReason, EndReason, Kind, MessageFlag, ReleaseReason, WillEnd
from shardbroker.mqtt.spec import BRIDGE_BIT, FAILURE, PacketType, PropertyId, ReasonCode, Wire
from shardbroker.worker.features.event_messages import EVENTS

ROOT = Path(__file__).parents[2]
FLAGGED = (PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE)
"""Packets whose fixed header has the flags 0010 (MQTT 5.0 §2.1.3)."""
NAMESAKES = {
    "perf/arrivals.pyx": "states of a client",
    "shardbroker/access/rules.py": "actions of a rule, as bits",
    "shardbroker/access/wire.py": "kinds of requests",
    "shardbroker/cluster/faults.py": "reasons of BYE between nodes",
    "shardbroker/connectors/pulsar_login.py": "commands of Pulsar",
    "shardbroker/flows/drivers/rabbitmq.py": "methods of AMQP",
    "shardbroker/gateways/exproto/session.py": "codes of answers of ExProto",
    "shardbroker/gateways/mqttsn/codec.py": "messages of MQTT-SN",
    "shardbroker/journal/schema.py": "a file format, which does not follow this table",
    "shardbroker/transport/websocket.pyx": "close codes of WebSocket",
}
"""Files with a constant of the same name and another meaning."""
_ROW = re.compile(r"^    ([A-Z][A-Z0-9_]*) = (0x[0-9A-F]+|\d+) *(?:#.*)?$", re.MULTILINE)


def rows(path: str) -> list[tuple[str, int]]:
    """Members of the enums of a .pxd file; one that this cannot read is missing from the result."""
    enums = re.findall(r"^cdef enum\b.*:.*\n((?: {4}.*\n)+)", (ROOT / path).read_text(), re.MULTILINE)
    return [(name, int(value, 0)) for enum in enums for name, value in _ROW.findall(enum)]


def test_c_has_every_row_of_the_tables_and_no_other() -> None:
    first = {f"{packet.name}_FIRST": packet << 4 | (2 if packet in FLAGGED else 0) for packet in PacketType if packet}
    tables = [(one.name, int(one)) for table in (PacketType, ReasonCode, PropertyId, Wire) for one in table]
    expected = [*tables, *first.items(), ("FAILURE", FAILURE), ("BRIDGE_BIT", BRIDGE_BIT)]
    assert sorted(rows("shardbroker/mqtt/spec.pxd")) == sorted(expected)


def test_kinds_and_flags_of_the_journal_are_those_of_its_schema() -> None:
    found = rows("shardbroker/journal/encode.pxd")
    kinds = {f"KIND_{kind.name}": int(kind) for kind in Kind}
    assert all(kinds[name] == value for name, value in found if name.startswith("KIND_"))
    flags = [(f"FLAG_{flag.name}", int(flag)) for flag in MessageFlag.__members__.values()]
    session = [row for row in rows("shardbroker/session/journaling.pxd") if row[0].startswith("FLAG_")]
    topics = [row for row in rows("shardbroker/pubsub/topic_cache.pxd") if row[0] in ("CAPTURED", "FED")]
    assert sorted(session + [(f"FLAG_{name}", value) for name, value in topics], key=lambda row: row[1]) == flags
    assert [row for row in found if row[0].startswith("ACK_")] == [(f"ACK_{ack.name}", int(ack)) for ack in Ack]
    assert all(PacketType[ack.name] == ack for ack in Ack)


@pytest.mark.parametrize(
    ("path", "prefix", "table", "complete"),
    [
        ("session/journaling.pxd", "DROPPED_", DropReason, False),
        ("session/journaling.pxd", "ENDED_", EndReason, False),
        ("session/journaling.pxd", "WILL_", WillEnd, True),
        ("session/journaling.pxd", "RELEASED_", ReleaseReason, True),
        ("worker/deferred.pxd", "DEFERRED_FOR_", DeferredFor, True),
    ],
)
def test_reasons_in_the_journal_are_those_of_its_schema(path: str, prefix: str, table: type[IntEnum], complete: bool) -> None:
    found = {name: value for name, value in rows(f"shardbroker/{path}") if name.startswith(prefix)}
    expected = {f"{prefix}{one.name}": int(one) for one in table}
    assert found and found.items() <= expected.items()
    assert len(found) == len(expected) or not complete


def test_flags_of_event_messages_are_those_of_their_names() -> None:
    flags = {f"NOTIFY_{name.partition('_')[2].upper()}": 1 << number for number, name in enumerate(EVENTS)}
    assert dict(rows("shardbroker/session/context.pxd")) == flags


def test_no_other_file_declares_a_packet_type_or_a_reason_code() -> None:
    names = "|".join(one.name for table in (PacketType, ReasonCode) for one in table)
    declared = re.compile(rf"^ *(?:[A-Z_]+, )*(?:{names}|FAILURE|FAILED)\b(?:, [A-Z_]+)* = [0-9(]", re.MULTILINE)
    found = {
        str(path.relative_to(ROOT))
        for top in ("shardbroker", "acceptor", "shm", "perf")
        for path in (ROOT / top).rglob("*.p*")
        if path.suffix in (".py", ".pyx", ".pxd") and declared.search(path.read_text())
    }
    assert found == {"shardbroker/mqtt/spec.py", "shardbroker/mqtt/spec.pxd", *NAMESAKES}
