"""`explain` names the bytes that a query then reads."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pyspark_shardbroker.errors import OptionError
from pyspark_shardbroker.explain import MB, explain, main
from pyspark_shardbroker.journals import find_journals, pieces
from pyspark_shardbroker.options import Options
from pyspark_shardbroker.reading import read_piece
from pyspark_shardbroker.segments import SEEK_BYTES, Segment
from tests.spark.samples import PASS_US, START_US, write_journal

PASSES = 3_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("explain") / "data"
    write_journal(directory / "journal" / "0", PASSES, segment_bytes=2 * MB)
    return directory


def moment(passes: int) -> str:
    return (datetime.fromtimestamp(0, UTC) + timedelta(microseconds=START_US + passes * PASS_US)).isoformat()


def bytes_read(monkeypatch: pytest.MonkeyPatch, data: Path, **options: str) -> int:
    total, real = 0, Segment.read
    parsed = Options.parse({"path": str(data), **options})
    found = [piece for journal in find_journals(str(data)) for piece in pieces(journal, parsed.wanted, parsed.partition_bytes)]

    def counted(self: Segment, offset: int, size: int) -> bytes:
        nonlocal total
        part = real(self, offset, size)
        total += len(part)
        return part

    with monkeypatch.context() as patched:
        patched.setattr(Segment, "read", counted)
        for piece in found:
            for _ in read_piece(piece, ["sequence"], parsed.wanted, True):
                pass
    return total


def test_the_bytes_are_those_that_are_read(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    whole = sum(path.stat().st_size for path in (data / "journal/0").iterdir())
    for options in ({}, {"since": moment(PASSES * 9 // 10)}, {"since": moment(PASSES // 2), "until": moment(PASSES // 2 + 9)}):
        text = explain(str(data), **options)
        found = re.search(r"^reads (\S+) of (\S+) MB in (\d+) tasks$", text, re.MULTILINE)
        assert found is not None, text
        assert float(found[2]) == pytest.approx(whole / MB, abs=0.1)
        assert float(found[1]) * MB == pytest.approx(bytes_read(monkeypatch, data, **options), abs=MB / 10 + 2 * SEEK_BYTES)
    assert float(found[1]) < whole / MB / 5


def test_what_does_not_save_reading_is_named_apart(data: Path) -> None:
    text = explain(str(data), types="message", topics="site/1/#", columns="time,topic")
    assert "keeps of that: types message, topics site/1/# within" in text
    assert "builds 2 of " in text
    assert text.splitlines()[:-2] == explain(str(data)).splitlines()[:-2]


def test_the_command_says_what_is_wrong(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(data), "--until", moment(0)]) == 0
    assert "in 0 of " in capsys.readouterr().out
    assert main([str(data), "--since", "yesterday"]) == 2
    assert "since 'yesterday'" in capsys.readouterr().err
    assert main([str(tmp_path / "none")]) == 1
    assert "no such directory" in capsys.readouterr().err
    for options in ({"columns": "no"}, {"table": "damage"}, {"topic": "a"}):
        with pytest.raises(OptionError):
            explain(str(data), **options)
