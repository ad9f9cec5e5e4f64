"""Requests to the processes flows, and the figures that they write."""

import asyncio
import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import cbor2

from shardbroker.control import ControlError
from shardbroker.flows.wire import (
    MESSAGE_MAX,
    PROBLEMS_FILE,
    SOURCE_VERBS,
    decode,
    encode_load,
    encode_reset,
    encode_traces,
    encode_try,
)
from shm.topology import Topology

__all__ = ["FlowsCalls", "stopped_rules"]

ANSWER_S = 15.0
"""Longest wait for a process, which may have to start, and to compile 10,000 rules."""


PROBE_S = 25.0
"""Longest wait for a probe, less than that of `ctl` for a response; drivers have time limits of their own."""
SEND_PAUSE_S = 0.02
"""Between two attempts to send to a process whose channel is full."""
STATUSES = ("connected", "stopped", "connecting", "disconnected")
"""From good to bad: of several processes, the worst one is shown."""

Request = Callable[[int], bytes]
"""number -> a request with it."""


def stopped_rules(runtime_dir: Path, processes: int) -> dict[str, str]:
    """Returns rule -> why it is stopped."""
    found: dict[str, str] = {}
    for number in range(processes):
        with suppress(FileNotFoundError, ValueError):
            found |= json.loads((runtime_dir / PROBLEMS_FILE.format(number)).read_bytes())
    return found


class FlowsCalls:
    """One request at a time, but for probes, which are answered when the server has."""

    def __init__(self, topology: Topology) -> None:
        ends = topology.sending_ends("flows") if topology.places_of("flows") else []
        self._channels = [socket.socket(fileno=os.dup(end)) for end in ends]
        self._runtime_dir = topology.runtime_dir
        self._number = time.time_ns()  # answers to an earlier manager have other numbers
        self._turn = asyncio.Lock()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listens = False

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
        if not self._channels:
            return None
        (answer,) = await self._ask(self._channels[:1], lambda number: encode_try(number, rule, context, carry_out))
        tried: dict[str, Any] | None = answer["tried"]
        return tried

    def figures(self) -> dict[str, dict[str, Any]]:
        """Returns the figures of all rules, added up over processes: at most a second old."""
        total: dict[str, dict[str, Any]] = {}
        for number in range(len(self._channels)):
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
            for number in range(len(self._channels))
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

    async def probe(
        self, type: str, settings: dict[str, Any], action: dict[str, Any] | None = None, source: dict[str, Any] | None = None
    ) -> str:
        """Returns why a connector cannot be used, by an action or a source if one is given; empty if it can. Raises
        ControlError."""
        request = partial(_encode, verb="probe", type=type, settings=settings, action=action, source=source)
        return str((await self._answer(0, self._channels[0], request, PROBE_S)).get("error", ""))

    async def create_tables(self, type: str, settings: dict[str, Any]) -> str:
        """Creates the tables of a preset; returns why that has failed, or an empty text. Raises ControlError."""
        request = partial(_encode, verb="create_tables", type=type, settings=settings)
        return str((await self._answer(0, self._channels[0], request, PROBE_S)).get("error", ""))

    async def order(self, verb: str, id: str, **more: Any) -> None:
        """Carries out an order for an action or a source: a verb of SINK_VERBS or SOURCE_VERBS of flows/wire.py. Raises
        ControlError."""
        asked = {"verb": verb, "source" if verb in SOURCE_VERBS else "sink": id, **more}
        for answer in await self._ask_all(lambda number: _encode(number, **asked)):
            if problem := answer.get("problems", {}).get(id):
                raise ControlError("BAD_REQUEST", str(problem))

    def sinks(self, kind: str) -> dict[str, dict[str, Any]]:
        """Returns id -> figures and status of connectors, actions or sources, over all processes: at most a second old."""
        total: dict[str, dict[str, Any]] = {}
        for number in range(len(self._channels)):
            for id, found in self._content(number).get(kind, {}).items():
                total[id] = _added(total[id], found) if id in total else found
        return total

    async def _ask_all(self, request: Request) -> list[dict[str, Any]]:
        return await self._ask(self._channels, request)

    async def _ask(self, channels: list[socket.socket], request: Request) -> list[dict[str, Any]]:
        async with self._turn:
            return [await self._answer(process, channel, request, ANSWER_S) for process, channel in enumerate(channels)]

    async def _answer(self, process: int, channel: socket.socket, request: Request, longest_s: float) -> dict[str, Any]:
        """Returns the answer to one request. Raises ControlError NOT_AVAILABLE."""
        self._listen()
        self._number += 1
        number, answered = self._number, asyncio.get_running_loop().create_future()
        self._asked[number] = answered
        try:
            async with asyncio.timeout(longest_s):
                await _send(channel, request(number))
                answer: dict[str, Any] = await answered
        except OSError as error:
            reason = "timed out" if isinstance(error, TimeoutError) else error
            raise ControlError("NOT_AVAILABLE", f"process flows-{process} did not respond: {reason}") from None
        finally:
            del self._asked[number]
        return answer

    def _listen(self) -> None:
        if not self._listens:
            self._listens = True
            for channel in self._channels:
                asyncio.get_running_loop().add_reader(channel, self._take, channel)

    def _take(self, channel: socket.socket) -> None:
        """Takes the next answer; those to requests that were given up are dropped."""
        try:
            message = channel.recv(MESSAGE_MAX, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        if not message:  # the supervisor has closed the other end
            asyncio.get_running_loop().remove_reader(channel)
            return
        with suppress(ValueError):
            answer = decode(message)
            asked = self._asked.get(answer["id"])
            if asked is not None and not asked.done():
                asked.set_result(answer)


async def _send(channel: socket.socket, message: bytes) -> None:
    """Returns once the channel has the message. Raises OSError."""
    while True:
        try:
            channel.send(message, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):  # earlier requests wait: the process is starting, or stopped
            await asyncio.sleep(SEND_PAUSE_S)
        else:
            return


def _encode(number: int, **asked: Any) -> bytes:
    """Returns a request about connectors and actions. Raises ControlError for one that is too long."""
    try:
        message = cbor2.dumps({"id": number, **asked})
    except (ValueError, cbor2.CBOREncodeError) as error:  # texts with unpaired surrogates
        raise ControlError("BAD_REQUEST", f"settings: {error}") from None
    if len(message) > MESSAGE_MAX:
        raise ControlError("BAD_REQUEST", f"settings: must be at most {MESSAGE_MAX} bytes")
    return message


def _added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of two processes together: counts are added, the worse status and the greater lag remain."""
    found = {**one, **other}
    for name in one.keys() & other.keys():
        mine, others = one[name], other[name]
        if name == "status":
            found[name] = max(mine, others, key=lambda status: STATUSES.index(status) if status in STATUSES else 0)
        elif name == "cursor":
            found[name] = mine | others
        elif name == "lag_seconds":
            found[name] = max(mine, others)
        elif isinstance(mine, int | float) and isinstance(others, int | float):
            found[name] = mine + others
        else:
            found[name] = mine or others
    return found
