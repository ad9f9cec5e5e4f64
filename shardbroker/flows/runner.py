"""Evaluates rules over the records of journals, and carries out their actions."""

import gc
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from shardbroker.flows.actions import ActionError, OutOfService
from shardbroker.flows.lanes import Stopped
from shardbroker.flows.messages import ANONYMOUS, Publisher, columns_of, columns_of_event
from shardbroker.flows.rule import SLOW_NS, LoadedRule
from shardbroker.flows.rule_table import RuleTable
from shardbroker.logs.phrases import Line, log_line
from shardbroker.rules.payload import Payload
from shardbroker.rules.values import EvaluationError

__all__ = ["Runner", "collect_seldom"]

SHOWN_MAX = 300
"""Characters of an error in the log: it may quote what a client has sent."""
COLLECT_AT = 100_000
"""Containers that are made before the collector looks for cycles. Messages make none, and are freed without it: at Python's 700, it
takes an eighth of the time of a rule, and a pass over all rules now and then holds up the messages."""


def collect_seldom() -> None:
    """Leaves the rules that are loaded out of the collector's work, and makes that rare."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AT)


class Runner:
    """log: writes a line of a level."""

    def __init__(self, table: RuleTable, node: str, log: Callable[[str, Line], None]) -> None:
        self._table, self._node, self._log = table, node, log

    def message(self, record: tuple[Any, ...], time_us: int, publishers: dict[bytes, Publisher], journal: str) -> None:
        """Evaluates the rules of a message. Raises Stopped."""
        rules = self._table.rules_of(record[3])
        if not rules:
            return
        columns = payload = None
        for rule in rules:
            if record[0] < rule.starts.get(journal, 0) or record[8] == rule.publisher or rule.disabled is not None:
                continue
            if columns is None:
                columns = columns_of(record, time_us // 1000, publishers.get(record[8], ANONYMOUS), self._node)
                payload = Payload(columns["payload"])
            self.evaluate(rule, columns, payload, int(journal))

    def event(self, record: tuple[Any, ...], journal: str) -> None:
        """Evaluates the rules of an event. Raises Stopped."""
        rules = self._table.rules_of_event(record[2])
        columns = payload = None
        for rule in rules:
            if record[0] < rule.starts.get(journal, 0) or rule.disabled is not None:
                continue
            if columns is None:
                columns = columns_of_event(record, self._node)
                payload = Payload(columns["payload"]) if "payload" in columns else None
                if self._table.hides(columns):
                    return
            if rule.has_caused(columns):
                continue
            self.evaluate(rule, columns, payload, int(journal))

    def evaluate(self, rule: LoadedRule, columns: dict[str, Any], payload: Payload | None, journal: int) -> None:
        """Evaluates one rule, and carries out its actions for each row. Raises Stopped."""
        columns["metadata"] = rule.metadata
        figures = rule.figures
        figures["matched"] += 1
        begin = perf_counter_ns()
        try:
            result = rule.compiled.evaluate(columns, payload)
        except EvaluationError as error:
            figures["failed"] += 1
            figures["failed.exception"] += 1
            self._complain(rule, error)
            return
        finally:
            spent = perf_counter_ns() - begin
            figures["time_us"] += spent // 1000
            if spent > figures["longest_us"] * 1000:
                figures["longest_us"] = spent // 1000
                if spent > SLOW_NS:
                    self._slow(rule, spent)
            elif spent > SLOW_NS:
                self._slow(rule, spent)
        if not result and result != {}:
            figures["failed"] += 1
            figures["failed.no_result"] += 1
            return
        figures["passed"] += 1
        if rule.actions:
            for row in result if type(result) is list else (result,):
                self._act(rule, row, columns, journal)

    def _act(self, rule: LoadedRule, row: Any, columns: dict[str, Any], journal: int) -> None:
        figures = rule.figures
        for action in rule.actions:
            figures["actions.total"] += 1
            try:
                figures["actions.success" if action.run(row, columns, journal) else "actions.discarded"] += 1
            except Stopped:
                raise
            except OutOfService as error:
                figures["actions.failed"] += 1
                figures["actions.failed.out_of_service"] += 1
                self._complain(rule, error)
            except Exception as error:  # of an action of another package too: a rule fails, its process does not
                figures["actions.failed"] += 1
                figures["actions.failed.unknown"] += 1
                self._complain(rule, error if isinstance(error, ActionError) else f"{type(error).__name__}: {error}")

    def _slow(self, rule: LoadedRule, spent_ns: int) -> None:
        disabled = rule.took(spent_ns)
        if disabled:
            self._table.forget_topics()
            self._log("error", log_line("rule disabled", rule=rule.id, reason=rule.disabled))
        elif rule.may_complain():
            self._log("warning", log_line("rule slow", rule=rule.id, took=f"{spent_ns / 1e6:.0f}ms"))

    def _complain(self, rule: LoadedRule, error: object) -> None:
        if rule.may_complain():
            self._log("warning", log_line("rule failed", rule=rule.id, reason=str(error)[:SHOWN_MAX]))
