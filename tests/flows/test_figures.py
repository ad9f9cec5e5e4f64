"""The file of figures of a process flows: written in steps, and only what has changed is made again."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from shardbroker.flows import figures as module
from shardbroker.flows.figures import Figures
from shardbroker.flows.rule import LoadedRule
from shardbroker.flows.rule_table import RuleTable

RULES = 1000


class _Table:
    def __init__(self) -> None:
        self.rules = {f"rule_{number}": LoadedRule(f"rule_{number}", {}, cast(Any, None), []) for number in range(RULES)}
        self.problems: dict[str, str] = {}
        self.generation = 7


@pytest.fixture
def table() -> _Table:
    return _Table()


@pytest.fixture
def figures(table: _Table, tmp_path: Path) -> Figures:
    def complain(what: str, error: Exception) -> None:
        raise error

    def others(now_us: int) -> dict[str, Any]:
        return {"journals": {"0": {"position": 1}}}

    return Figures(tmp_path / "figures", tmp_path / "problems", cast(RuleTable, table), others, complain)


def written(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "figures").read_bytes())
    return found


def test_what_is_written(table: _Table, figures: Figures, tmp_path: Path) -> None:
    table.problems['rule_\u00fc"'] = "why"
    table.rules["rule_1"].figures["matched"] = 3
    figures.write()
    found = written(tmp_path)
    assert (found["generation"], found["journals"]) == (7, {"0": {"position": 1}})
    assert found["rules"]["rule_1"]["matched"] == found["rules"]["rule_1"]["matched.rate"] == 3
    assert found["rules"]['rule_\u00fc"'] == {"disabled": "why"} and len(found["rules"]) == RULES + 1
    assert json.loads((tmp_path / "problems").read_bytes()) == {'rule_\u00fc"': "why"}


def test_without_rules(table: _Table, figures: Figures, tmp_path: Path) -> None:
    table.rules.clear()
    figures.write()
    assert written(tmp_path)["rules"] == {}


def test_a_rule_that_had_no_message_is_not_made_again(table: _Table, figures: Figures, tmp_path: Path) -> None:
    figures.write()
    texts = {id: rule.written for id, rule in table.rules.items()}
    table.rules["rule_5"].figures["matched"] += 10
    for second in range(400):
        figures.write()
        changed = [id for id, rule in table.rules.items() if rule.written is not texts[id]]
        assert changed == ["rule_5"], second
        if second == 0:
            assert written(tmp_path)["rules"]["rule_5"]["matched.rate"] == pytest.approx(5)  # 10 within two seconds
    last = table.rules["rule_5"].written
    figures.write()
    assert table.rules["rule_5"].written is last  # five minutes later it rests again
    assert written(tmp_path)["rules"]["rule_5"]["matched.rate.last5m"] == 0


def test_what_happens_without_a_message_is_written_as_well(table: _Table, figures: Figures, tmp_path: Path) -> None:
    table.rules["rule_2"].figures["matched"] = 3
    figures.write()
    table.rules["rule_2"].reset()
    table.rules["rule_3"].took(10**9)
    for _ in range(100):
        table.rules["rule_3"].took(10**9)
    figures.write()
    found = written(tmp_path)["rules"]
    assert found["rule_2"]["matched"] == 0
    assert "evaluations of more than" in found["rule_3"]["disabled"]
    assert set(json.loads((tmp_path / "problems").read_bytes())) == {"rule_3"}


def test_steps(table: _Table, figures: Figures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are evaluated between them; a rule that is removed meanwhile does no harm."""
    monkeypatch.setattr(module, "STEP_S", 0.0)
    figures.begin()
    steps = 0
    while figures.is_under_way:
        assert not (tmp_path / "figures").exists()
        figures.step()
        table.rules.pop(f"rule_{steps}", None)
        figures.begin()  # a second passes, and the steps go on
        steps += 1
        if steps == RULES // module.LOOK_EVERY:
            break
    assert figures.is_under_way
    figures.step()
    assert len(written(tmp_path)["rules"]) == RULES
