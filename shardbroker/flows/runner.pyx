"""Evaluates rules over the records of journals, and carries out their actions."""

import gc
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from shardbroker.flows.columns cimport columns_of
from shardbroker.flows.sinks.intake cimport Intakes
from shardbroker.flows.sinks.to_sink cimport ToSink

from shardbroker.flows.actions import ActionError, OutOfService
from shardbroker.flows.lanes import Stopped
from shardbroker.flows.messages import ANONYMOUS, columns_of_event
from shardbroker.flows.rule import SLOW_NS
from shardbroker.journal.schema import Kind
from shardbroker.logs.phrases import log_line
from shardbroker.rules.compiler import CompiledRule
from shardbroker.rules.payload import Payload
from shardbroker.rules.values import EvaluationError

__all__ = ["Runner", "collect_seldom", "rows_of"]

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


cpdef list rows_of(result):
    """Returns the rows of what a rule has selected."""
    if not result and result != {}:
        return []
    return <list>result if type(result) is list else [result]


cdef int _message = Kind.MESSAGE, _event = Kind.EVENT


cdef class Runner:
    """table: the rules. node: its name. log: writes a line of a level. intakes: of the actions on other systems."""

    cdef object _table, _log
    cdef str _node
    cdef Intakes _intakes

    def __init__(self, table, str node not None, log, Intakes intakes not None):
        self._table, self._node, self._log, self._intakes = table, node, log, intakes

    def read(self, batch, feed) -> None:
        """Evaluates the rules over a batch of a feed. Raises Stopped."""
        cdef tuple record
        cdef Intakes intakes = self._intakes
        cdef dict publishers = feed.publishers
        cdef str journal = feed.name
        cdef long worker = int(journal)
        cdef long long at_ms = batch.time_us // 1000
        cdef int kind
        intakes.journal = journal
        for record in batch.records:
            kind = record[1]
            intakes.position = record[0]
            if kind == _message:
                self._message(record, at_ms, publishers, journal, worker)
            elif kind == _event:
                self._event(record, journal, worker)
            else:
                feed.note_publisher(batch.segment, record[2], record[3])
        intakes.position = -1

    cdef int _message(self, tuple record, long long at_ms, dict publishers, str journal, long worker) except -1:
        """Evaluates the rules of a message. Raises Stopped."""
        cdef tuple rules = <tuple>self._table.known.get(record[3])
        cdef dict columns = None
        if rules is None:
            rules = self._table.rules_of(record[3])
        for rule in rules:
            if record[0] < rule.starts.get(journal, 0) or record[8] == rule.publisher or rule.disabled is not None:
                continue
            is_deferred = rule.deferred and rule.is_deferred(journal, record[0])
            if is_deferred and type(rule.compiled) is CompiledRule:
                continue
            if columns is None:
                columns = columns_of(record, at_ms, publishers.get(record[8], ANONYMOUS), self._node)
                payload = Payload(columns["payload"])
            if is_deferred:
                self._trace(rule, columns, payload, worker)
            else:
                self._evaluate(rule, columns, payload, worker)
        return 0

    cdef int _event(self, tuple record, str journal, long worker) except -1:
        """Evaluates the rules of an event. Raises Stopped."""
        cdef dict columns = None
        payload = None
        for rule in self._table.rules_of_event(record[2]):
            if record[0] < rule.starts.get(journal, 0) or rule.disabled is not None:
                continue
            is_deferred = rule.deferred and rule.is_deferred(journal, record[0])
            if is_deferred and type(rule.compiled) is CompiledRule:
                continue
            if columns is None:
                columns = columns_of_event(record, self._node)
                payload = Payload(columns["payload"]) if "payload" in columns else None
                if self._table.hides(columns):
                    return 0
            if rule.has_caused(columns):
                continue
            if is_deferred:
                self._trace(rule, columns, payload, worker)
            else:
                self._evaluate(rule, columns, payload, worker)
        return 0

    cdef int _evaluate(self, rule, dict columns, payload, long worker) except -1:
        """Evaluates one rule, and carries out its actions for each row. Raises Stopped."""
        result = self._result(rule, rule.compiled, columns, payload)
        if result is not None and rule.actions:
            if type(result) is not list:
                self._act(rule, result, columns, worker)
            else:
                for row in <list>result:
                    self._act(rule, row, columns, worker)
        return 0

    cdef int _trace(self, rule, dict columns, payload, long worker) except -1:
        """Has a rule traced whose figures are those of a reader behind."""
        columns["metadata"] = rule.metadata
        try:
            for row in rows_of(rule.compiled.evaluate(columns, payload)):
                for action in <list>rule.actions:
                    action.run(row, columns, worker)
        except (EvaluationError, ActionError):
            pass  # it is in the trace
        return 0

    def evaluated_late(self, rule, compiled, dict columns, payload) -> list:
        """Returns the rows of a rule, and counts them as those of its only action, which admits them itself."""
        rows = rows_of(self._result(rule, compiled, columns, payload))
        rule.figures["actions.total"] += len(rows)
        rule.figures["actions.success"] += len(rows)
        return rows

    cdef object _result(self, rule, compiled, dict columns, payload):
        """Returns what a rule selects, or None, and counts it."""
        cdef dict figures = rule.figures
        cdef long long spent, begin = _now_ns()
        columns["metadata"] = rule.metadata
        figures["matched"] += 1
        try:
            result = compiled.evaluate(columns, payload)
        except EvaluationError as error:
            figures["failed"] += 1
            figures["failed.exception"] += 1
            self._complain(rule, error)
            return None
        finally:
            spent = _now_ns() - begin
            figures["time_us"] += spent // 1000
            if spent // 1000 > figures["longest_us"]:
                figures["longest_us"] = spent // 1000
            if spent > <long long>SLOW_NS:
                self._slow(rule, spent)
        if not result and result != {}:
            figures["failed"] += 1
            figures["failed.no_result"] += 1
            return None
        figures["passed"] += 1
        return result

    cdef int _act(self, rule, row, dict columns, long worker) except -1:
        cdef dict figures = rule.figures
        cdef bint is_done
        for action in <list>rule.actions:
            figures["actions.total"] += 1
            try:
                is_done = (<ToSink>action).run(row, columns, worker) if type(action) is ToSink else action.run(row, columns, worker)
                figures["actions.success" if is_done else "actions.discarded"] += 1
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
        return 0

    def _slow(self, rule, long long spent_ns) -> None:
        disabled = rule.took(spent_ns)
        if disabled:
            self._table.forget_topics()
            self._log("error", log_line("rule disabled", rule=rule.id, reason=rule.disabled))
        elif rule.may_complain():
            self._log("warning", log_line("rule slow", rule=rule.id, took=f"{spent_ns / 1e6:.0f}ms"))

    def _complain(self, rule, error) -> None:
        if rule.may_complain():
            self._log("warning", log_line("rule failed", rule=rule.id, reason=str(error)[:SHOWN_MAX]))


cdef inline long long _now_ns() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return now.tv_sec * <long long>1_000_000_000 + now.tv_nsec
