"""Rules over records, without a broker: figures, errors, actions, slow rules."""

import gc
import json
import weakref
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardbroker.flows import actions as actions_module
from shardbroker.flows import rule as rule_module
from shardbroker.flows import runner as runner_module
from shardbroker.flows.actions import Action, ActionError
from shardbroker.flows.console import LINES_A_SECOND, Console
from shardbroker.flows.cursors import Cursor, Cursors
from shardbroker.flows.deferral import Deferral
from shardbroker.flows.rule_table import RuleTable
from shardbroker.flows.runner import Runner
from shardbroker.flows.sinks.intake import Intakes
from shardbroker.flows.wire import MESSAGE_MAX, decode, encode_load
from shardbroker.logs.phrases import Line
from tests.flows.broker import rule


class Recording:
    """An action that fails for rows with `fail`."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def run(self, row: dict[str, Any], columns: dict[str, Any], journal: int) -> bool:
        self.rows.append(row)
        if row.get("fail"):
            raise ActionError("as wanted")
        return True


class Bench:
    """A table and a runner over rules of this test."""

    def __init__(self, directory: Path, *rules: dict[str, Any]) -> None:
        self.action, self.lines = Recording(), list[str]()
        factories = {"record": self._action}
        self.table = RuleTable(factories)
        self.path = directory / "flows.json"
        self.load(*rules)
        self.runner = Runner(self.table, "node", lambda level, line: self.lines.append(line), Intakes("node"))

    def _action(self, rule: str, args: dict[str, Any]) -> Action:
        return self.action

    def load(self, *rules: dict[str, Any]) -> None:
        self.path.write_text(json.dumps({"generation": 1, "rules": rules}))
        self.table.load(self.path)

    def see(self, topic: bytes, payload: bytes, publisher: bytes = b"me", sequence: int = 7) -> None:
        record = sequence, 1, bytes(16), topic, payload, 0x41, 0, b"", publisher
        batch = SimpleNamespace(records=[record], time_us=1_700_000_000_000_000, segment=0)
        self.runner.read(batch, SimpleNamespace(name="0", publishers={}))

    def figures(self, id: str) -> dict[str, int]:
        return {name: value for name, value in self.table.rules[id].figures.items() if value and not name.endswith("_us")}


RECORD = {"function": "record"}


def test_figures(tmp_path: Path) -> None:
    sql = 'FOREACH payload.l AS e DO e.fail AS fail, clientid FROM "a/#" WHERE payload.go = true'
    bench = Bench(tmp_path, rule("r", sql, RECORD))
    bench.see(b"b", b"{}")
    bench.see(b"a/x", b'{"go": false}')
    bench.see(b"a/x", b'{"go": true, "l": []}')
    bench.see(b"a/x", b"no json")
    bench.see(b"a", b'{"go": true, "l": [{"fail": false}, {"fail": true}]}')
    assert bench.figures("r") == {
        "matched": 4, "passed": 1, "failed": 3, "failed.exception": 1, "failed.no_result": 2,
        "actions.total": 2, "actions.success": 1, "actions.failed": 1, "actions.failed.unknown": 1,
    }  # fmt: skip
    assert bench.action.rows == [{"fail": False, "clientid": "me"}, {"fail": True, "clientid": "me"}]
    assert len([line for line in bench.lines if line.startswith("rule failed")]) == 1


def test_own_messages_and_those_before_the_start_are_passed_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path, rule("r", 'SELECT * FROM "#"'))
    bench.see(b"a", b"", b"$rule:r")
    bench.table.rules["r"].starts = {"0": 8}
    bench.see(b"a", b"")
    bench.see(b"a", b"", sequence=8)
    assert bench.figures("r") == {"matched": 1, "passed": 1}


def test_what_is_left_to_a_reader_behind_is_neither_evaluated_nor_counted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, rule("r", 'SELECT * FROM "#"', RECORD), rule("s", 'SELECT * FROM "#"', RECORD))
    bench.table.rules["r"].deferred = {"0": Deferral(8, end=10), "1": Deferral(0)}
    for sequence in range(7, 12):
        bench.see(b"a", b"", sequence=sequence)
    assert bench.figures("r")["matched"] == 2 and bench.figures("s")["matched"] == 5
    assert len(bench.action.rows) == 7


def test_a_rule_with_an_error_leaves_the_others(tmp_path: Path) -> None:
    sql = 'SELECT * FROM "a"'
    bench = Bench(tmp_path, rule("bad", "SELECT FROM"), rule("none", sql, {"function": "x"}), rule("r", sql, "http:gone"))
    assert set(bench.table.problems) == {"bad", "none"}
    bench.see(b"a", b"{}")
    assert bench.figures("r")["actions.failed.out_of_service"] == 1


def test_a_changed_rule_has_new_figures_and_an_unchanged_one_its_own(tmp_path: Path) -> None:
    first, second = rule("r", 'SELECT * FROM "a"'), rule("s", 'SELECT * FROM "a"')
    bench = Bench(tmp_path, first, second)
    bench.see(b"a", b"{}")
    bench.load(first, {**second, "sql": 'SELECT qos FROM "a"'})
    assert bench.figures("r") == {"matched": 1, "passed": 1}
    assert bench.figures("s") == {}


def test_slow_rules_are_disabled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "SLOW_NS", -1)
    monkeypatch.setattr(rule_module, "SLOW_MAX", 3)
    bench = Bench(tmp_path, rule("r", 'SELECT * FROM "a"'))
    for _ in range(5):
        bench.see(b"a", b"{}")
    assert bench.figures("r")["matched"] == 3
    assert bench.table.rules["r"].disabled
    assert [line.partition(" rule=")[0] for line in bench.lines] == ["rule slow", "rule disabled"]


def test_console_has_a_rate() -> None:
    lines: list[Line] = []
    console = Console("r", lines.append)
    assert [console.run({"a": 1}, {"topic": "t"}, 0) for _ in range(3 * LINES_A_SECOND)].count(False) >= LINES_A_SECOND
    assert lines[0] == 'rule output rule=r topic=t row="{\\"a\\":1}"'


def test_cursors_are_kept_and_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    cursors = Cursors(tmp_path)
    cursors.commit({("rules", "0"): Cursor(5, 1, 64, 9), ("rule.a:b", "1"): Cursor(7)})
    cursors.commit({}, [("rule.a:b", "1")])
    cursors.close()
    cursors = Cursors(tmp_path)
    assert cursors.all() == {("rules", "0"): Cursor(5, 1, 64, 9)}
    cursors.close()
    (tmp_path / "cursors.mdb").write_bytes(b"x" * 8192)
    cursors = Cursors(tmp_path)
    assert cursors.all() == {} and cursors.set_aside is not None
    cursors.close()


def test_an_action_of_another_package_that_cannot_be_made_is_the_problem_of_its_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "no_such_package:make", "shardbroker.actions")
    monkeypatch.setattr(actions_module, "entry_points", lambda group, name: [broken] if name == "broken" else [])
    bench = Bench(tmp_path, rule("r", 'SELECT * FROM "a"', {"function": "broken"}), rule("other", 'SELECT * FROM "a"', RECORD))
    assert bench.table.problems == {"r": "actions.function broken: ModuleNotFoundError: No module named 'no_such_package'"}
    bench.see(b"a", b"{}")
    assert len(bench.action.rows) == 1


def test_a_removed_rule_is_freed_without_the_collector(tmp_path: Path) -> None:
    """The process leaves loaded rules out of the collector's work, so a cycle in one would never be freed."""
    sql = 'FOREACH payload.l AS e DO e.x AS x, upper(clientid) AS c INCASE e.x > 1 FROM "a/#" WHERE regex_match(topic, "a.*")'
    bench = Bench(tmp_path, rule("r", sql, RECORD))
    bench.see(b"a/x", b'{"l": [{"x": 2}]}')
    function = weakref.ref(bench.table.rules["r"].compiled._function)
    gc.disable()
    try:
        bench.load()
        assert function() is None
    finally:
        gc.enable()


def test_a_change_that_is_too_long_for_a_message_is_read_from_the_file() -> None:
    change = {"base": 6, "changed": [{"id": "r", "sql": "x"}], "removed": ["s"], "stamp": (1, 2, 3)}
    plain = {"id": 1, "verb": "load", "generation": 7}
    assert decode(encode_load(1, 7, change)) == {**plain, **change, "stamp": [1, 2, 3]}
    for wrong in ("x" * MESSAGE_MAX, "\ud800"):
        assert decode(encode_load(1, 7, {**change, "changed": [{"id": "r", "sql": wrong}]})) == plain
