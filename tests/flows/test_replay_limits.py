"""What a replay may see, and what bounds its work."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbroker.flows.replay import READ_BYTES, READS_A_TURN, Replay
from shardbroker.journal import open_journal
from shardbroker.journal.encode import log_for_test
from shardbroker.journal.writer import Writer
from shm.replays import WINDOW_BYTES, WINDOW_RECORDS
from tests.harness import Broker, Client, Publish, client_id_on

pytestmark = pytest.mark.own_broker
NOT_AUTHORIZED, INVALID = 0x87, 0x8F
RULES = """
{deny, all, subscribe, ["log/secret/#", {eq, "log/#"}, "log/mine/${clientid}/private"]}.
{allow, all}.
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    rules = tmp_path_factory.mktemp("rules") / "acl.conf"
    rules.write_text(RULES)
    rewrite = '[{ source_topic = "old/#", re = "^old/(.+)$", dest_topic = "log/$1", action = "subscribe" }]'
    settings = {
        "journal.capture": ["log/#"], "acl.sources": "file", "acl.file.path": rules, "rewrite.rules": rewrite,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(2, settings, Path(name)) as broker:
        with Client(broker.address, 5, "pub") as client:
            for topic in ("log/secret/a", "log/open/a", "log/mine/sub/private"):
                client.publish(topic, topic.encode(), 1)
        yield broker


@pytest.mark.parametrize(
    ("filter", "code"),
    [
        ("log/secret/a", NOT_AUTHORIZED),
        ("log/secret/#", NOT_AUTHORIZED),
        ("log/#", NOT_AUTHORIZED),
        ("log/mine/sub/private", NOT_AUTHORIZED),
        ("log/open/+", 1),
    ],
)
def test_access_rules_decide_about_the_filter_behind_the_period(broker: Broker, filter: str, code: int) -> None:
    with Client(broker.address, 5, "sub") as client:
        assert client.subscribe(filter, 1, check=False).codes == (code,)
        assert client.subscribe(f"$replay/1h/{filter}", 1, check=False).codes == (code,)
        if code == 1:
            client.expect(Publish, topic="log/open/a")
        client.fence()
        client.expect_none()


def test_rewrite_rules_are_about_the_filter_behind_the_period(broker: Broker) -> None:
    with Client(broker.address, 5, "sub-old") as client:
        client.subscribe("$replay/1h/old/open/#", 1)
        client.expect(Publish, topic="log/open/a")
        assert client.unsubscribe("$replay/1h/old/open/#").codes == (0,)


def test_a_mount_point_is_in_front_of_the_filter() -> None:
    settings = {"journal.capture": ["box/#"], "listeners.default.mountpoint": "box/${clientid}/"}
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, Broker(2, settings, Path(name)) as broker:
        for worker in range(2):
            with Client(broker.address, 5, client_id_on(worker, 2, "box")) as client:
                client.publish("a", client.client_id, 1)
        with Client(broker.address, 5, client_id_on(0, 2, "box")) as client:
            client.subscribe("$replay/1h/#", 1)
            assert client.expect(Publish, topic="a").payload == client.client_id.encode()
            client.fence()
            client.expect_none()


def test_many_replays_of_one_session(broker: Broker) -> None:
    """More than may run at a time, in one SUBSCRIBE: those that run take nothing from the session but messages."""
    filters = [(f"$replay/{minutes}m/log/open/a", 0) for minutes in range(1, 301)]
    with Client(broker.address, 5, "sub-many") as client:
        client.subscribe(filters)
        for _ in range(100):
            client.expect(Publish, topic="log/open/a")
        client.expect_none()
        client.unsubscribe(*[filter for filter, _ in filters[:150]])
        for _ in range(100):
            client.expect(Publish, topic="log/open/a")


def write(writer: Writer, number: int, topic: bytes, payload: bytes) -> None:
    log_for_test(writer, "MESSAGE", {
        "id": number.to_bytes(16, "big"), "topic": topic, "payload": payload, "flags": 0x11, "expires_ms": 0, "properties": b"",
        "publisher": b"me",
    })  # fmt: skip
    writer.seal(1_000_000 + number)


def replay_of(tmp_path: Path, filter: bytes, **more: Any) -> Replay:
    replay = Replay(7, 0, filter, 0, None, {}, {}, more.get("rate", 0))
    replay.add_journals([tmp_path / "0"])
    return replay


def test_a_filter_that_matches_little_does_not_read_everything_in_one_turn(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    writer = open_journal(tmp_path / "0")
    many = 4 * READS_A_TURN * READ_BYTES // 1000
    for number in range(many):
        write(writer, number, b"log/other", bytes(1000))
    write(writer, many, b"log/this", b"x")
    writer.close()
    replay, sent, turns = replay_of(tmp_path, b"log/this"), list[bytes](), 0
    while not sent and turns < 100:
        turns += 1
        found = replay.send(lambda record: sent.append(record) is None, 256)
        assert found == ((1, False) if sent else (0, False))
        assert sent or replay.has_more
    assert 4 <= turns < 10
    replay.send(lambda record: sent.append(record) is None, 256)
    assert (len(sent), replay.has_more) == (1, False)
    replay.close()


def test_no_more_is_under_way_than_the_window(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    writer = open_journal(tmp_path / "0")
    for number in range(2 * WINDOW_RECORDS):
        write(writer, number, b"log/a", b"x")
    for number in range(3):
        write(writer, number, b"log/large", bytes(WINDOW_BYTES))
    writer.close()
    replay, sent = replay_of(tmp_path, b"log/#"), list[bytes]()

    def put(record: bytes) -> bool:
        sent.append(record)
        return True

    while replay.send(put, 256)[0]:
        pass
    assert len(sent) == WINDOW_RECORDS
    replay.credit(1, len(sent.pop(0)))
    assert replay.send(put, 256) == (1, False)
    seen_large = 0
    while seen_large < 3:
        replay.credit(len(sent), sum(map(len, sent)))
        sent.clear()
        while replay.send(put, 256)[0]:
            pass
        assert sum(map(len, sent)) < WINDOW_BYTES or len(sent) == 1
        seen_large += any(len(record) > WINDOW_BYTES for record in sent)
    replay.close()


def test_a_full_ring_keeps_the_next_message(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    writer = open_journal(tmp_path / "0")
    for number in range(10):
        write(writer, number, b"log/a", b"%d" % number)
    writer.close()
    replay, sent = replay_of(tmp_path, b"log/#"), list[bytes]()
    room = iter([True, True, False, True, False, *[True] * 20])

    def put(record: bytes) -> bool:
        if next(room):
            sent.append(record[-1:])
            return True
        return False

    assert [replay.send(put, 256) for _ in range(3)] == [(2, True), (1, True), (7, False)]
    assert b"".join(sent) == b"0123456789"
    replay.close()


def test_more_journals_than_reads_of_a_turn(tmp_path: Path) -> None:
    """Those at their end take nothing of the others' share; what is oldest is sent first."""
    replay = Replay(7, 0, b"log/#", 0, None, {}, {}, 0)
    many = 3 * READS_A_TURN
    for journal in range(many):
        (tmp_path / str(journal)).mkdir()
        writer = open_journal(tmp_path / str(journal))
        for number in range(journal % 3):
            write(writer, 100 * number + journal, b"log/a", b"%d %d" % (number, journal))
        writer.close()
    replay.add_journals([tmp_path / str(journal) for journal in range(many)])
    sent = list[bytes]()
    for _ in range(many):
        replay.send(lambda record: sent.append(record) is None, 256)
        if not replay.has_more:
            break
    expected = [b"%d %d" % (number, journal) for number in range(2) for journal in range(many) if number < journal % 3]
    assert [record[-len(one) :] for record, one in zip(sent, expected, strict=True)] == expected
    replay.close()
