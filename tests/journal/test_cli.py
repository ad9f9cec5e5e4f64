"""`shardbroker journal`: what people see, and what they are told when something is wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardbroker.cli.main import main
from shardbroker.journal import open_journal
from shardbroker.journal.layout import segment_paths
from shardbroker.journal.schema import Kind, encode

MINUTE_US = 60_000_000
START_US = 1_769_860_800_000_000  # 2026-01-31T12:00Z


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data directory of a broker with two workers."""
    for worker in range(2):
        writer = open_journal(tmp_path / "journal" / str(worker), worker=worker, workers=2)
        client, details = b"client-%d" % worker, {1: b"10.0.0.1:4000", 3: 60}
        passes = (
            [
                encode(Kind.SESSION_CREATED, session=7, client_id=client, version=5, expiry_ms=None, details=details),
                encode(Kind.SUBSCRIBED, session=7, filter=b"room/+/t", options=1, identifier=0),
            ],
            [
                encode(
                    Kind.MESSAGE, id=bytes(15) + b"\x01", topic=b"room/\xc3\xa9/t", payload=b"21.5", flags=0x11, expires_ms=0,
                    properties=b"\x01\x00", publisher=b"sensor",
                ),
                encode(Kind.DELIVERED, session=7, packet_id=1, id=bytes(15) + b"\x01", flags=1),
            ],
            [
                encode(Kind.ACKNOWLEDGED, session=7, packet_id=1, packet=4, reason=0),
                encode(Kind.SESSION_ENDED, session=7, reason=1),
            ],
        )  # fmt: skip
        for number, records in enumerate(passes):
            for record in records:
                writer.append(record)
            writer.seal(START_US + number * MINUTE_US)
        writer.close()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["journal", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def cat(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[dict[str, Any]]:
    code, out, err = run(capsys, "cat", *arguments)
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_cat_prints_every_record(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = cat(capsys, "--data-dir", data)
    assert len(lines) == 12
    assert lines[0] == {
        "journal": "0", "sequence": 0, "time": "2026-01-31T12:00:00.000000Z", "kind": "session_created", "client_id": "client-0",
        "session": 7, "version": 5, "details": {"peer": "10.0.0.1:4000", "keepalive_s": 60},
    }  # fmt: skip
    assert lines[2] == {
        "journal": "0", "sequence": 2, "time": "2026-01-31T12:01:00.000000Z", "kind": "message", "id": "0" * 31 + "1",
        "topic": "room/é/t", "payload": "21.5", "qos": 1, "captured": True, "expires_ms": 0, "properties_hex": "0100",
        "publisher": "sensor",
    }  # fmt: skip
    assert (lines[4]["packet"], lines[5]["reason"], lines[4]["client_id"]) == ("puback", "expired", "client-0")


@pytest.mark.parametrize(
    ("filters", "sequences"),
    [
        (["--topic", "room/#"], [2]),
        (["--topic", "other/#"], []),
        (["--client", "client-0"], [0, 1, 3, 4, 5]),
        (["--client", "sensor"], [2]),
        (["--kind", "message", "--kind", "subscribed"], [1, 2]),
        (["--since", "2026-01-31T12:01"], [2, 3, 4, 5]),
        (["--since", "2026-01-31T13:01+01:00", "--until", "2026-01-31T12:02"], [2, 3]),
        (["--start", "3", "--limit", "2"], [3, 4]),
        (["--limit", "0"], []),
    ],
)
def test_filters(data: Path, capsys: pytest.CaptureFixture[str], filters: list[str], sequences: list[int]) -> None:
    assert [line["sequence"] for line in cat(capsys, data / "journal" / "0", *filters)] == sequences


def test_an_age(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(cat(capsys, data / "journal", "--until", "1s", "--since", "36500d")) == 12
    assert cat(capsys, data / "journal", "--since", "1s") == []


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = open_journal(tmp_path)
    writer.append(encode(Kind.WILL_SET, session=1, topic=b"t", payload=b"\xff\x00", flags=4, properties=b"", delay_s=0))
    writer.append(b"\x83\x18\x63\x01\x02")  # a kind of a later version
    writer.close()
    will, later = cat(capsys, tmp_path)
    assert (will["payload_hex"], will["retain"]) == ("ff00", True)
    assert (later["kind"], later["values"]) == (99, ["1", "2"])


def test_ls(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "ls", "--data-dir", data)
    assert code == 0
    assert len(out.splitlines()) == 3
    assert "worker 1 of 2" in out and "2026-01-31T12:00:00" in out


def test_damage_is_named_and_repaired(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "verify", "--data-dir", data)
    assert code == 0 and out.count("good: 1 segments, 3 blocks, 6 records") == 2
    (path,) = segment_paths(data / "journal" / "1")
    contents = bytearray(path.read_bytes())
    contents[130] ^= 1
    path.write_bytes(contents)
    code, out, _ = run(capsys, "verify", "--data-dir", data)
    assert code == 1 and f"{path}: bytes 64 to" in out and "records 0 to 1 are lost" in out and "DAMAGED" in out
    code, out, err = run(capsys, "cat", "--data-dir", data)
    assert code == 1 and len(out.splitlines()) == 10 and "records 0 to 1 are lost" in err
    code, out, _ = run(capsys, "repair", "--data-dir", data)
    assert code == 0 and "nothing to repair" in out and f"set aside as {path.name}.damaged" in out
    code, out, _ = run(capsys, "verify", "--data-dir", data)
    assert code == 0 and "4 records, 2 lost and written off" in out


def test_a_torn_tail_is_said_and_no_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path,) = segment_paths(data / "journal" / "0")
    path.write_bytes(path.read_bytes()[:-1])
    code, out, _ = run(capsys, "verify", "--data-dir", data)
    assert code == 0 and "a block that was not finished" in out


def test_repair_while_the_broker_runs(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = open_journal(data / "journal" / "0")
    code, _, err = run(capsys, "repair", "--data-dir", data)
    assert code == 1 and "is in use" in err
    writer.close()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["ls", "/nowhere"], 1, "/nowhere: no such directory"),
        (["ls", "{data}"], 1, "no journal found"),
        (["cat", "{data}/journal/0", "--kind", "publish"], 2, "--kind: must be one of message, "),
        (["cat", "{data}/journal/0", "--topic", "a/#/b"], 2, "--topic a/#/b: not a topic filter"),
        (["cat", "{data}/journal/0", "--since", "yesterday"], 2, "--since: must be a time"),
        (["ls", "--data-dir", "/nowhere"], 1, "/nowhere/journal: no such directory"),
    ],
)
def test_what_is_wrong_is_said(data: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str) -> None:
    given = [argument.format(data=data) for argument in arguments]
    found, _, err = run(capsys, *given)
    assert found == code
    assert words in err
