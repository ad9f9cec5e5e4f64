"""The figures of rules for the manager: a file that is replaced once a second, in steps between which messages are evaluated.

    begin() -> step(), step(), ... -> the file

A rule without a message for five minutes costs the look whether that is still so: its text is that of the file before.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shardbroker.flows.rule import LoadedRule
from shardbroker.flows.rule_table import RuleTable
from shardbroker.stores.files import replace_file

__all__ = ["Figures"]

STEP_S = 0.002
"""Of a step, for which messages wait; the last one writes the file as well, 3 MB with 10,000 rules."""
LOOK_EVERY = 64
"""Rules between two looks at the clock."""


class Figures:
    """Those of one process. others: returns the parts besides `rules`. complain: takes what failed and its error."""

    def __init__(
        self,
        path: Path,
        problems_path: Path,
        table: RuleTable,
        others: Callable[[int], dict[str, Any]],
        complain: Callable[[str, Exception], None],
    ) -> None:
        self._path, self._problems_path, self._table = path, problems_path, table
        self._others, self._complain = others, complain
        self._problems: dict[str, str] = {}
        self._seconds = 0
        self._left: Iterator[LoadedRule] | None = None
        self._texts: list[bytes] = []
        self._stopped: dict[str, str] = {}

    @property
    def is_under_way(self) -> bool:
        """Returns whether steps are left."""
        return self._left is not None

    def begin(self) -> None:
        """Called once a second. Steps that are left of the call before count for this one."""
        self._seconds += 1
        if self._left is None:
            self._left = iter([*self._table.rules.values()])
            self._texts, self._stopped = [], {}

    def step(self) -> None:
        """Continues for a moment; the last step replaces the file."""
        until_s = time.monotonic() + STEP_S
        texts, stopped, seconds = self._texts, self._stopped, self._seconds
        for number, rule in enumerate(self._left or (), 1):
            rate = rule.rate
            if not rule.written or rate.now or rate.last5m or rule.figures["matched"] != rate.count:
                self._note(rule, seconds)
            texts.append(rule.written)
            if rule.disabled:
                stopped[rule.id] = rule.disabled
            if number % LOOK_EVERY == 0 and time.monotonic() > until_s:
                return
        self._left = None
        self._write()

    def write(self) -> None:
        """Replaces the file at once."""
        self.begin()
        while self.is_under_way:
            self.step()

    def _note(self, rule: LoadedRule, seconds: int) -> None:
        """Makes the text of a rule, which may have been passed over for a while."""
        rule.rate.catch_up(seconds - 1)
        rule.rate.tick(rule.figures["matched"])
        figures = {**rule.figures, **rule.rate.figures(), "disabled": rule.disabled}
        rule.written = json.dumps(rule.id).encode() + b": " + json.dumps(figures).encode()

    def _write(self) -> None:
        problems = self._table.problems
        texts = self._texts + [
            json.dumps(id).encode() + b": " + json.dumps({"disabled": text}).encode() for id, text in problems.items()
        ]
        now_us = time.time_ns() // 1000
        head = {"at_ms": now_us // 1000, "generation": self._table.generation, **self._others(now_us)}
        try:
            self._write_problems({**self._stopped, **problems})
            replace_file(self._path, b'%b, "rules": {%b}}' % (json.dumps(head).encode()[:-1], b", ".join(texts)), sync=False)
        except OSError as error:
            self._complain("figures", error)

    def _write_problems(self, problems: dict[str, str]) -> None:
        """Replaces the file of rules that are stopped, if there are others than before: the manager looks at it each second."""
        if problems != self._problems:
            replace_file(self._problems_path, json.dumps(problems).encode(), sync=False)
            self._problems = problems
