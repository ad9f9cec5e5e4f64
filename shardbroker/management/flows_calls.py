"""Requests to the processes flows, and the figures that they write."""

import asyncio
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardbroker.control import ControlError
from shardbroker.flows.wire import MESSAGE_MAX, PROBLEMS_FILE, decode, encode_load, encode_reset, encode_traces, encode_try
from shm.topology import Topology

__all__ = ["FlowsCalls", "stopped_rules"]

ANSWER_S = 15.0
"""Longest wait for a process, which may have to start, and to compile 10,000 rules."""


def stopped_rules(runtime_dir: Path, processes: int) -> dict[str, str]:
    """Returns rule -> why it is stopped."""
    found: dict[str, str] = {}
    for number in range(processes):
        with suppress(FileNotFoundError, ValueError):
            found |= json.loads((runtime_dir / PROBLEMS_FILE.format(number)).read_bytes())
    return found


class FlowsCalls:
    """One request at a time, in a thread: the channel blocks."""

    def __init__(self, topology: Topology) -> None:
        self._ends = topology.sending_ends("flows") if topology.places_of("flows") else []
        self._runtime_dir = topology.runtime_dir
        self._number = time.time_ns()  # answers to an earlier manager have other numbers
        self._turn = asyncio.Lock()

    async def load(self, generation: int, change: dict[str, Any] | None = None) -> dict[str, str]:
        """Returns rule -> problem once all processes have loaded the definitions. Raises ControlError NOT_AVAILABLE.

        change: what has changed since the generation before, see flows/wire.py.
        """
        problems: dict[str, str] = {}
        for answer in await self._ask_all(lambda number: encode_load(number, generation, change)):
            problems |= answer["problems"]
        return problems

    async def reset(self, rule: str) -> None:
        """Sets the figures of a rule to 0. Raises ControlError NOT_AVAILABLE."""
        await self._ask_all(lambda number: encode_reset(number, rule))

    async def follow_traces(self) -> None:
        """Returns once all processes record the active traces of rules. Raises ControlError NOT_AVAILABLE."""
        await self._ask_all(encode_traces)

    async def try_rule(self, rule: str, context: dict[str, Any], carry_out: bool) -> dict[str, Any] | None:
        """Returns what a rule makes of columns (flows/trial.py); None: it is not loaded. Raises ControlError."""
        if len(encode_try(0, rule, context, carry_out)) > MESSAGE_MAX:
            raise ControlError("BAD_REQUEST", f"context: must be at most {MESSAGE_MAX} bytes")
        if not self._ends:
            return None
        (answer,) = await self._ask(self._ends[:1], lambda number: encode_try(number, rule, context, carry_out))
        tried: dict[str, Any] | None = answer["tried"]
        return tried

    def figures(self) -> dict[str, dict[str, Any]]:
        """Returns the figures of all rules, added up over processes: at most a second old."""
        total: dict[str, dict[str, Any]] = {}
        for number in range(len(self._ends)):
            for rule, figures in self._written(number).items():
                of_rule = total.setdefault(rule, {})
                for name, value in figures.items():
                    if name == "longest_us":
                        of_rule[name] = max(of_rule.get(name, 0), value)
                    elif isinstance(value, int | float):
                        of_rule[name] = of_rule.get(name, 0) + value
                    else:
                        of_rule[name] = of_rule.get(name) or value
        return total

    def lags(self) -> dict[str, float]:
        """Returns journal -> seconds by which its rules are behind."""
        return {
            journal: state["lag_seconds"]
            for number in range(len(self._ends))
            for journal, state in self._content(number).get("journals", {}).items()
        }

    def _written(self, number: int) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._content(number).get("rules", {})
        return found

    def _content(self, number: int) -> dict[str, Any]:
        try:
            content: dict[str, Any] = json.loads((self._runtime_dir / f"flows-{number}.json").read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return content

    async def _ask_all(self, request: Any) -> list[dict[str, Any]]:
        return await self._ask(self._ends, request)

    async def _ask(self, ends: list[int], request: Any) -> list[dict[str, Any]]:
        answers = []
        async with self._turn:
            for process, end in enumerate(ends):
                self._number += 1
                try:
                    answers.append(await asyncio.to_thread(_ask, end, request(self._number), self._number))
                except OSError as error:
                    reason = "timed out" if isinstance(error, TimeoutError) else error
                    raise ControlError("NOT_AVAILABLE", f"process flows-{process} did not respond: {reason}") from None
        return answers


def _ask(end: int, request: bytes, number: int) -> dict[str, Any]:
    """Returns the answer to this request; earlier ones are of requests that were given up. Raises OSError."""
    until_s = time.monotonic() + ANSWER_S
    with socket.socket(fileno=os.dup(end)) as channel:
        channel.settimeout(ANSWER_S)
        channel.send(request)
        while True:
            channel.settimeout(max(until_s - time.monotonic(), 0.001))
            answer = decode(channel.recv(MESSAGE_MAX))
            if answer["id"] == number:
                return answer
