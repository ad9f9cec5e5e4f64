"""`shardbroker ctl rules test`, without a broker."""

import json
from pathlib import Path

import pytest

from shardbroker.cli.ctl import main


def test_a_rule_over_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    sql = 'SELECT payload.t as t, topic FROM "t/#" WHERE payload.t > 3'
    assert main(["rules", "test", sql, "--topic", "t/1", "--payload", '{"t": 4}', "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"t": 4, "topic": "t/1"}
    assert main(["rules", "test", sql, "--topic", "t/1", "--payload", '{"t": 3}']) == 1
    assert capsys.readouterr().err == "nomatch: WHERE is false\n"
    assert main(["rules", "test", sql, "--topic", "u/1"]) == 1
    assert main(["rules", "test", "SELECT"]) == 1
    assert "parse: line 1, column 7" in capsys.readouterr().err


def test_a_rule_over_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--event", "connected", "--context", '{"clientid": "c7"}', "--json"]
    for topic in ("$events/client_connected", "$events/client/connected"):
        assert main(["rules", "test", f'SELECT clientid, event, proto_ver FROM "{topic}"', *arguments]) == 0
        assert json.loads(capsys.readouterr().out) == {"clientid": "c7", "event": "client.connected", "proto_ver": 5}
    assert main(["rules", "test", "SELECT 1", "--event", "none"]) == 2


def test_cases_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = tmp_path / "cases.jsonl"
    context = {"topic": "t", "payload": {"$bytes": "/w=="}, "a": "\ud800"}
    rules = ["SELECT payload, a, b FROM t", "SELECT 1 FROM u", "SELECT payload.x FROM t", "SELECT"]
    cases.write_text("".join(json.dumps({"id": str(n), "sql": sql, "context": context}) + "\n" for n, sql in enumerate(rules)))
    assert main(["rules", "test", "--offline", "--file", str(cases)]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert answers[0] == {"id": "0", "ok": {"payload": {"$bytes": "/w=="}, "a": "\ud800", "b": {"$undefined": True}}}
    assert [one.get("error") for one in answers] == [None, "nomatch", "eval", "parse"]


@pytest.mark.parametrize("line", ["[]", "{", "{}", '{"sql": 1, "context": {}}', "[" * 100_000])
def test_lines_that_are_no_case(line: str, tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text(line)
    assert main(["rules", "test", "--file", str(cases)]) == 2
