"""Traces of rules: an event for each message or event that a traced rule sees, for its result, and for each of its actions.

The rule is evaluated as always: while a trace is active, its SQL and its actions are behind those of this module. A rule without a
trace has none of this. Events are those of management/tracing.py, and take at most half of the ring to the manager, and
EVENTS_A_SECOND; the others are counted, and the count is sent once there is room.
"""

import json
import os
import time
from typing import Any, TypeVar, cast

import cbor2

from shardbroker.flows.actions import Action, ActionError, name_of
from shardbroker.flows.lanes import Stopped
from shardbroker.flows.rule import LoadedRule
from shardbroker.flows.rule_table import RuleTable
from shardbroker.rules.compiler import CompiledRule
from shardbroker.rules.encoding import encoded
from shardbroker.rules.payload import Payload
from shardbroker.rules.values import EvaluationError, Value
from shardbroker.stores.files import Stamp, stamp_of
from shardbroker.stores.trace_state import OF_RULES, TRACED, read_traced
from shm.records import TRACE, encode_record
from shm.ring import Inbox
from shm.topology import Topology

__all__ = ["EVENTS_A_SECOND", "RuleTraces", "untraced"]

EVENTS_A_SECOND = 5000
"""Of one process: others wait while it writes them, some 20 µs each."""
TEXT_MAX = 1024
"""Characters of topics, reasons and the like in an event."""
HIDDEN = "******"
"""Replaces what was made of a payload, in a trace that hides payloads."""

T = TypeVar("T")


class _Trace:
    """An active trace of a rule, and the events of it that were left out."""

    def __init__(self, number: int, rule: str, limit: int) -> None:
        self.number, self.rule, self.limit, self.lost = number, rule, limit, 0


class RuleTraces:
    """slot: of this process."""

    def __init__(self, topology: Topology, slot: int, table: RuleTable) -> None:
        self._runtime_dir, self._table = topology.runtime_dir, table
        self._inbox = Inbox.attach(topology.inbox_name(topology.manager))
        self._lane = self._inbox.lanes[slot]
        self._bell = topology.doorbells[topology.manager]
        self._active: dict[str, _Trace] = {}
        self._traced: dict[str, LoadedRule] = {}
        """Rules whose SQL and actions are behind those of this module."""
        self._seen: Stamp | None = None
        self._second, self._left = 0, EVENTS_A_SECOND

    def look(self) -> None:
        """Takes over the active traces if they have changed, and sends what was left out."""
        for trace in self._active.values():
            self._send_lost(trace)
        stamp = stamp_of(self._runtime_dir / TRACED)
        if stamp == self._seen:
            return
        self._seen = stamp
        found = [one for one in read_traced(self._runtime_dir) or [] if one["type"] == OF_RULES]
        known = {trace.number: trace for trace in self._active.values()}
        self._active = {
            one["value"]: known.get(one["number"]) or _Trace(one["number"], one["value"], one["payload_limit"]) for one in found
        }
        self.follow()

    def follow(self) -> None:
        """Puts the traced rules of the table behind this module, and takes the others out."""
        for id, rule in list(self._traced.items()):
            if id not in self._active or self._table.rules.get(id) is not rule:
                rule.compiled, rule.actions = untraced(rule.compiled), [untraced(action) for action in rule.actions]
                del self._traced[id]
        for id, trace in self._active.items():
            found = self._table.rules.get(id)
            if found is None:
                continue
            rule, self._traced[id] = found, found
            rule.compiled = cast(CompiledRule, _Sql(untraced(rule.compiled), trace, self))
            rule.actions = [_Action(untraced(action), trace, self) for action in rule.actions]

    def send(self, trace: _Trace, what: str, columns: dict[str, Any], details: dict[str, Any]) -> None:
        """Sends an event, or counts it as left out."""
        now_us = time.time_ns() // 1000
        if now_us // 1_000_000 != self._second:
            self._second, self._left = now_us // 1_000_000, EVENTS_A_SECOND
        client_id, username, peer = (columns.get(name) for name in ("clientid", "username", "peername"))
        about = {"rule": trace.rule, **details}
        event = [[trace.number], now_us, what, _octets(client_id), _octets(username), _short(peer), about]
        if self._left <= 0 or not self._put(event):
            trace.lost += 1
            return
        self._left -= 1

    def _put(self, event: list[Any]) -> bool:
        try:
            record = encode_record(TRACE, cbor2.dumps(event))
        except (ValueError, cbor2.CBOREncodeError):  # texts with unpaired surrogates
            return False
        most = self._lane.capacity_of_records()  # a quarter of the ring
        if len(record) > most or self._lane.fill() + len(record) > 2 * most or not self._lane.put(record):
            return False
        if self._inbox.take_bell():
            os.eventfd_write(self._bell, 1)
        return True

    def _send_lost(self, trace: _Trace) -> None:
        lost = trace.lost
        if lost and self._put([[trace.number], time.time_ns() // 1000, "lost", b"", None, "", {"count": lost}]):
            trace.lost -= lost


class _Sql:
    """In place of the SQL of a traced rule."""

    def __init__(self, inner: CompiledRule, trace: _Trace, traces: RuleTraces) -> None:
        self.inner, self._trace, self._traces = inner, trace, traces

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def evaluate(self, columns: dict[str, Any], payload: Payload | None = None) -> Any:
        """Evaluates the rule, and sends what it has seen and what it has selected. Raises EvaluationError."""
        self._traces.send(self._trace, "matched", columns, _seen(columns, self._trace.limit))
        try:
            result = self.inner.evaluate(columns, payload)
        except EvaluationError as error:
            self._traces.send(self._trace, "failed", columns, {"reason": _short(str(error))})
            raise
        if not result and result != {}:
            self._traces.send(self._trace, "no_result", columns, {})
        else:
            self._traces.send(self._trace, "result", columns, {"result": _shown(result, self._trace.limit)})
        return result


class _Action:
    """In place of an action of a traced rule."""

    def __init__(self, inner: Action, trace: _Trace, traces: RuleTraces) -> None:
        self.inner, self._trace, self._traces = inner, trace, traces

    def run(self, row: dict[str, Value], columns: dict[str, Value], journal: int) -> bool:
        """Carries the action out, and sends its rendered arguments and its outcome. Raises what it raises."""
        details: dict[str, Any] = {"action": name_of(self.inner)}
        show = getattr(self.inner, "show", None)  # of the broker's own actions
        try:
            if show is not None:
                details["rendered"] = _shown(show(row, columns), self._trace.limit)
        except Exception:  # run() raises it again, and it is the outcome
            pass
        try:
            done = self.inner.run(row, columns, journal)
        except Stopped:
            raise
        except Exception as error:  # the runner counts it
            reason = str(error) if isinstance(error, ActionError) else f"{type(error).__name__}: {error}"
            self._traces.send(self._trace, "action", columns, {**details, "outcome": "failed", "reason": _short(reason)})
            raise
        self._traces.send(self._trace, "action", columns, {**details, "outcome": "success" if done else "discarded"})
        return done


def untraced(one: T) -> T:
    """Returns what a traced rule has instead of this."""
    return cast(T, one.inner) if isinstance(one, _Sql | _Action) else one


def _seen(columns: dict[str, Any], limit: int) -> dict[str, Any]:
    """Returns what is shown of a message or event."""
    details = {"source": columns.get("event"), "topic": columns.get("topic"), "qos": columns.get("qos")}
    details = {name: _short(value) if isinstance(value, str | bytes) else value for name, value in details.items()}
    details = {name: value for name, value in details.items() if isinstance(value, str | int) and value != ""}
    if "payload" in columns:
        payload = _octets(columns["payload"], None)
        details |= {"size": len(payload), "payload": payload[:limit] if limit else None}
    return details


def _shown(value: Any, limit: int) -> str:
    """Returns a result as JSON, as far as the trace shows payloads."""
    if not limit:
        return HIDDEN
    try:
        text = json.dumps(encoded(value), ensure_ascii=False, default=repr)
    except (ValueError, TypeError, RecursionError) as error:
        text = f"{type(error).__name__}: {error}"
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _octets(value: object, most: int | None = TEXT_MAX) -> bytes:
    octets = value if isinstance(value, bytes) else value.encode(errors="replace") if isinstance(value, str) else b""
    return octets[:most]


def _short(value: object) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""
    return text[:TEXT_MAX]
