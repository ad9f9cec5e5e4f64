"""Records: the compiled encoders write what the schema says, and what was written can be read."""

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.journal.encode import log_for_test
from shardbroker.journal.schema import FIELDS, Field, Kind, MessageFlag, SchemaError, Value, decode_items, encode
from tests.journal.samples import HOT, any_record, fields_of

_LIMITS = {
    "packet_id": 65535, "reason": 255, "flags": 31, "priority": 256, "packet": 7, "version": 5, "options": 127,
    "identifier": 268435455, "expiry_ms": 2**64 - 2,
}  # fmt: skip


class _Block:
    """Takes one record from a compiled encoder by way of a journal."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        from shardbroker.journal import open_journal

        self.directory = tmp_path_factory.mktemp("journal")
        self.writer = open_journal(self.directory)
        self.path = None

    def bytes_of(self, kind: Kind, fields: dict[str, Value]) -> bytes:
        log_for_test(self.writer, kind.name, fields)
        self.writer.seal(1)
        path = next(self.directory.glob("*.sbj"))
        data = path.read_bytes()
        at = data.rindex(b"\xb1\x0cSB") if self.path is None else self.at
        self.path, self.at = path, len(data)
        return data[at + 48 :]


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> _Block:
    return _Block(tmp_path_factory)


@settings(max_examples=400, deadline=None)
@given(data=st.data(), kind=st.sampled_from(HOT))
def test_compiled_encoders_write_what_the_schema_says(block: _Block, data: st.DataObject, kind: Kind) -> None:
    fields = data.draw(fields_of(kind))
    for name, allowed in FIELDS[kind]:
        value = fields[name]
        if name in _LIMITS and isinstance(value, int):
            fields[name] = value % (_LIMITS[name] + 1)
        elif allowed == Field.BYTES and name == "id":
            fields[name] = ((value if isinstance(value, bytes) else b"") + bytes(16))[:16]
        elif allowed == Field.BYTES and name not in ("ids", "group", "publisher") and ("group" not in fields or name != "filter"):
            fields[name] = value or b""
    if fields.get("expires_at_ms") == 0:
        fields["expires_at_ms"] = None
    if "group" in fields and (fields["group"] is None or fields["filter"] is None):
        fields["group"] = fields["filter"] = None
    expected = encode(kind, **fields)
    if kind == Kind.MESSAGE and fields["publisher"] is None:
        expected = cbor2.dumps([*cbor2.loads(expected), None])  # its length is fixed
    assert block.bytes_of(kind, fields) == expected


def test_what_the_queue_knows_is_not_written_again(block: _Block) -> None:
    flags = int(MessageFlag.FROM_QUEUE) | 1
    fields: dict[str, Value] = {"session": 1, "packet_id": 7, "id": bytes(16), "flags": flags}
    given = {**fields, "ids": b"\x0b\x01", "group": b"g", "filter": b"f"}
    assert block.bytes_of(Kind.DELIVERED, given) == encode(Kind.DELIVERED, **fields)


@given(st.lists(any_record(), min_size=1, max_size=20))
def test_a_body_reads_back(records: list[bytes]) -> None:
    items = decode_items(b"".join(records), len(records))
    assert [cbor2.dumps(item, canonical=True) for item in items] == records


@given(st.binary(max_size=60), st.integers(0, 5))
def test_any_bytes_give_items_or_a_schema_error(body: bytes, count: int) -> None:
    try:
        assert len(decode_items(body, count)) == count
    except SchemaError:
        pass


@pytest.mark.parametrize("count", [2, 4, 2**32 - 2, 2**32 - 1])
def test_a_body_of_another_count_is_refused(count: int) -> None:
    with pytest.raises(SchemaError):
        decode_items(encode(Kind.RELEASED, session=1, packet_id=2, reason=0) * 3, count)


@pytest.mark.parametrize(
    "fields",
    [{"session": value, "reason": 0} for value in (None, -1, 1 << 64, b"")] + [{"session": 1, "reason": 0, "more": 1}],
)
def test_wrong_fields_are_refused(fields: dict[str, Value]) -> None:
    with pytest.raises(SchemaError):
        encode(Kind.SESSION_ENDED, **fields)


def test_every_kind_has_fields_and_the_frequent_ones_are_one_byte() -> None:
    assert set(FIELDS) == set(Kind)
    rare = {Kind.HELD, Kind.LET_GO, Kind.ARRIVED, Kind.PLACED, Kind.SEEN, Kind.PUBLISHER, Kind.EVENT, Kind.REPLAYED}
    assert {kind for kind in Kind if kind >= 24} == rare
