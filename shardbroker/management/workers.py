"""Calls from the manager to workers: a command into the worker's ring, the answer from the manager's own.

Each call ends in bounded time: with the answer, at once if the worker is down or its ring has no room, or after TIMEOUT_S.
"""

import asyncio
import itertools
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import cbor2

from shardbroker.control import ControlError
from shm.counters import Counters, ProcessState
from shm.records import COMMAND, encode_record, encode_spilled, open_record
from shm.ring import Inbox
from shm.spill import read_spilled
from shm.topology import Topology

__all__ = ["Workers"]

TIMEOUT_S = 5.0
"""A worker runs a command within some passes; one that takes longer hangs, or waits for its disk."""
OUTSTANDING_MAX = 32
"""Commands under way to one worker; further ones wait in the manager."""
INLINE_BYTES = 8192
"""Commands up to this size use the ring: the smallest ring accepts twice as much."""


class Workers:
    """Calls to all workers. `on_answer` must be called with each answer from the inbox."""

    def __init__(self, topology: Topology, counters: Counters) -> None:
        self._topology = topology
        self._counters = counters
        self.outboxes = [Inbox.attach(topology.inbox_name(worker)) for worker in range(topology.workers)]
        """The only ones of this process: a lane has one writer, and the object holds its position."""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._turns = [asyncio.Semaphore(OUTSTANDING_MAX) for _ in range(topology.workers)]
        self._pending: list[dict[str, Mapping[str, Any]]] = [{} for _ in range(topology.workers)]
        """By worker: commands of send_all() without room so far, verb -> args."""

    def __len__(self) -> int:
        return self._topology.workers

    def check(self, worker: int) -> None:
        """Checks that a worker exists. Raises ControlError NOT_FOUND."""
        if not 0 <= worker < len(self):
            raise ControlError("NOT_FOUND", f"worker {worker}: there are 0 to {len(self) - 1}")

    def is_up(self, worker: int) -> bool:
        """Returns whether the worker serves."""
        return bool(self._counters.state(worker) == ProcessState.READY)

    async def call(self, worker: int, verb: str, **args: Any) -> Any:
        """Returns the result of one command. Raises ControlError: WORKER_DOWN, WORKER_TIMEOUT, TRY_AGAIN, or the worker's error."""
        self.check(worker)
        async with self._turns[worker]:
            if not self.is_up(worker):
                state = ProcessState(self._counters.state(worker))
                raise ControlError("WORKER_DOWN", f"worker {worker} is {state.name.lower()}")
            self._send_pending(worker)
            number = self._send(worker, verb, args)
            self._waiting[number] = answer = asyncio.get_running_loop().create_future()
            try:
                return await asyncio.wait_for(answer, TIMEOUT_S)
            except TimeoutError:
                raise ControlError("WORKER_TIMEOUT", f"worker {worker} did not respond within {TIMEOUT_S:g} s") from None
            finally:
                del self._waiting[number]

    async def call_all(self, verb: str, **args: Any) -> list[Any]:
        """Returns the results of one command at every worker, in order; the first error is raised after all have ended."""
        calls = (self.call(worker, verb, **args) for worker in range(len(self)))
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    async def call_available(self, verb: str, **args: Any) -> list[Any]:
        """Returns results like call_all(), with None for workers that do not answer."""
        calls = (self.call(worker, verb, **args) for worker in range(len(self)))
        results = await asyncio.gather(*calls, return_exceptions=True)
        return [None if isinstance(result, ControlError) else result for result in results]

    def send_all(self, verb: str, **args: Any) -> None:
        """Sends a command without an answer to every worker, see caught_up(); a worker that is down gets it when it is back.

        The command must be complete by itself: of several with the same `verb` that wait for room, a worker gets the last.
        """
        for worker, pending in enumerate(self._pending):
            pending[verb] = args
            with suppress(ControlError):
                self._send_pending(worker)

    def send_one(self, verb: str, **args: Any) -> bool:
        """Sends a command without an answer to the first worker that serves and has room; returns whether there was one."""
        for worker in range(len(self)):
            if self.is_up(worker):
                with suppress(ControlError):
                    self._send(worker, verb, args)
                    return True
        return False

    def _send_pending(self, worker: int) -> None:
        """Sends the waiting commands. Raises ControlError TRY_AGAIN; no other command may overtake them."""
        pending = self._pending[worker]
        for verb in [*pending]:
            self._send(worker, verb, pending[verb])
            del pending[verb]

    async def caught_up(self) -> list[int]:
        """Waits until the commands of send_all() are carried out. Returns the workers that did not finish within TIMEOUT_S."""
        calls = (self.call(worker, "ping") for worker in range(len(self)))  # commands to a worker keep their order
        results = await asyncio.gather(*calls, return_exceptions=True)
        return [number for number, found in enumerate(results) if isinstance(found, ControlError) and found.code != "WORKER_DOWN"]

    def _send(self, worker: int, verb: str, args: Mapping[str, Any]) -> int:
        number = next(self._numbers)
        record = encode_record(COMMAND, cbor2.dumps({"id": number, "verb": verb, "args": args}))
        path = None
        if len(record) > INLINE_BYTES:
            name = f"command-{worker}-{os.getpid()}-{number}"
            path = self._topology.spill_dir / name
            path.write_bytes(record)
            record = encode_spilled(COMMAND, name.encode())
        outbox = self.outboxes[worker]
        if not outbox.lanes[self._topology.manager].put(record):
            if path is not None:
                path.unlink(missing_ok=True)
            raise ControlError("TRY_AGAIN", f"the ring to worker {worker} is full")
        if outbox.take_bell():
            os.eventfd_write(self._topology.doorbells[worker], 1)
        return number

    def on_answer(self, spilled: bytes, payload: bytes) -> None:
        """Takes an answer from the inbox: its payload, or the name of the file that holds the record."""
        if spilled:
            try:
                path, record = read_spilled(self._topology.spill_dir, spilled)
                _, _, payload = open_record(record)
            except FileNotFoundError:
                return  # read by an earlier manager
            path.unlink(missing_ok=True)
        for worker in range(len(self)):
            with suppress(ControlError):
                self._send_pending(worker)  # after an answer, the worker has room again
        answer = cbor2.loads(payload)
        waiting = self._waiting.get(answer["id"])
        if waiting is None or waiting.done():
            return  # the caller has given up
        if "error" in answer:
            waiting.set_exception(ControlError(*answer["error"]))
        else:
            waiting.set_result(answer["result"])
