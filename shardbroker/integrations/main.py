"""Entry point of the process integrations: takes the workers' requests and sends results."""

import asyncio
import os
import signal
import socket
import sys
import time
from collections import OrderedDict, deque
from dataclasses import replace
from typing import Any

import uvloop

from shardbroker.access.contract import Answer, BackendError, Outcome
from shardbroker.access.failing import note_failing
from shardbroker.access.scram import METHODS
from shardbroker.access.stores import StoreError
from shardbroker.access.wire import (
    MESSAGE_MAX,
    Kind,
    Request,
    Status,
    WireError,
    decode_request,
    encode_result,
    request_of,
)  # fmt: skip
from shardbroker.config import Settings
from shardbroker.integrations.auth.backends import Backends
from shardbroker.integrations.auth.scram import ScramExchange
from shardbroker.integrations.auth.services import Stores
from shardbroker.integrations.auth.subscriptions import SubscriptionsFailed
from shardbroker.integrations.exhook.service import HookService
from shardbroker.integrations.failures import describe
from shardbroker.logs.log import Log
from shardbroker.logs.phrases import log_line, of_process
from shardbroker.mqtt.spec import ReasonCode
from shm.counters import Counters, ProcessState
from shm.in_force import InForce
from shm.topology import Topology

__all__ = ["run"]

READS_A_TURN = 64
"""Requests taken from one worker before the others get their turn."""
TASKS_MAX = 20_000
"""Requests under way; further ones fail at once. Each takes some KB."""
RESULTS_MAX = 20_000
"""Results that wait for one worker; a further one drops the oldest, which times out in the worker."""
CONVERSATIONS_MAX = 10_000
"""Enhanced authentications under way; a further one drops the oldest."""
RELOAD_S = 0.25
"""Interval of the check for changed users and rules, seconds."""
REPORT_INTERVAL_S = 10.0
"""Minimum interval between two log lines about the same failure of the same back end, seconds."""


def run(topology: Topology) -> None:
    """Serves until SIGTERM."""
    try:
        service = _Service(topology)
    except (BackendError, StoreError) as error:
        note_failing(topology.runtime_dir, [str(error)])
        sys.exit(f"integrations: {error}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(service.serve())
        except BackendError as error:
            sys.exit(f"integrations: {error}")


class _Service:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._counters = Counters.attach(topology.counters_name)
        self._slot = topology.slot_of("integrations")
        self._counters.set_state(self._slot, ProcessState.STARTING)
        self._generation = self._counters.access_generation
        self._in_force = InForce(topology, self._counters, self._slot)
        settings = self._in_force.settings
        self._log = Log(settings.log.level)
        self._stores = Stores(topology.data_dir)
        self._backends = Backends(settings, self._stores, self._report)
        note_failing(topology.runtime_dir, [])
        self._conversations: OrderedDict[tuple[int, int], ScramExchange] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported: dict[tuple[str, str], float] = {}
        self._links: list[_Link] = []
        self._hooks = HookService(topology, self._report, self._broadcast)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # the supervisor decides when to stop this process
        self._links = [_Link(self, worker, end) for worker, end in enumerate(self._topology.receiving_ends("access"))]
        self._hooks.start(self._in_force.settings)
        watching = [asyncio.create_task(self._watch_changes()), asyncio.create_task(self._hooks.keep_state())]
        self._counters.set_state(self._slot, ProcessState.READY)
        await stop.wait()
        for task in [*watching, *self._tasks]:
            task.cancel()
        await self._hooks.close()
        await self._backends.close()
        self._stores.close()
        self._log.close()
        self._counters.set_state(self._slot, ProcessState.DOWN)

    # --- requests -------------------------------------------------------------------------------------------------------------

    def take(self, link: "_Link", message: bytes) -> None:
        """Handles one message of a worker."""
        try:
            request = decode_request(message)
        except WireError as error:
            self._report("wire", f"request cannot be decoded: {error}")
            return
        if request.kind is Kind.FORGET:
            self._conversations.pop((link.worker, request.details[0]), None)
            return
        if request.kind is Kind.HOOKS:
            wanted = self._hooks.wanted()
            if wanted is not None:
                link.send(wanted)
            return
        if request.deadline <= time.monotonic():
            return  # the request is older than this process and has timed out
        if len(self._tasks) >= TASKS_MAX:
            link.send(encode_result(request.id, Status.FAILED, f"more than {TASKS_MAX} authentication requests are pending"))
            return
        task = asyncio.create_task(self._answer(link, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, link: "_Link", request: Request) -> None:
        try:
            async with asyncio.timeout(request.deadline - time.monotonic()):
                result = await self._result(link, request)
        except TimeoutError:
            result = encode_result(request.id, Status.FAILED, "no response within the timeout")
        except Exception as error:
            self._report(request.kind.name.lower(), describe(error))
            result = encode_result(request.id, Status.FAILED, "authentication backend failed")
        link.send(result)

    async def _result(self, link: "_Link", request: Request) -> bytes:
        if request.kind is Kind.ACL:
            requests = [request_of(fields) for fields in request.details]
            return encode_result(request.id, Status.DECIDED, await self._backends.authorize(request.client, requests))
        if request.kind in (Kind.HOOK_LOGIN, Kind.HOOK_ACL, Kind.HOOK_PUBLISH):
            return await self._hooks.result(request)
        if request.kind is Kind.SUBSCRIPTIONS:
            return await self._subscriptions(request)
        if request.kind is Kind.AUTH:
            return await self._go_on(link, request, request.details[0], request.details[1] or b"")
        chain, method, data = request.details
        if method is not None:
            exchange = ScramExchange(self._stores.users(), METHODS[method], self._backends.settings.auth.scram.iteration_count)
            self._conversations[link.worker, request.id] = exchange
            while len(self._conversations) > CONVERSATIONS_MAX:
                self._conversations.popitem(last=False)
            return await self._go_on(link, request, request.id, data or b"")
        answer, reason = await self._backends.authenticate(chain, request.client)
        return await self._login_result(request, answer, reason, None)

    async def _subscriptions(self, request: Request) -> bytes:
        try:
            return encode_result(request.id, Status.OK, await self._backends.subscriptions(request.client))
        except SubscriptionsFailed as error:
            return encode_result(request.id, Status.DENY, ReasonCode.SERVER_UNAVAILABLE, str(error))

    async def _login_result(self, request: Request, answer: Answer, reason: str, username: str | None) -> bytes:
        if answer.outcome is not Outcome.OK:
            return encode_result(request.id, Status.DENY, answer.reason_code or ReasonCode.BAD_USER_NAME_OR_PASSWORD, reason)
        client = request.client if username is None else replace(request.client, username=username)
        try:
            subscriptions = await self._backends.subscriptions(client)
        except SubscriptionsFailed as error:
            return encode_result(request.id, Status.DENY, ReasonCode.SERVER_UNAVAILABLE, str(error))
        return encode_result(
            request.id, Status.OK, answer.is_superuser, answer.acl, answer.expires_at, answer.data, username, subscriptions
        )

    async def _go_on(self, link: "_Link", request: Request, conversation: int, data: bytes) -> bytes:
        exchange = self._conversations.get((link.worker, conversation))
        if exchange is None:
            return encode_result(request.id, Status.FAILED, "SCRAM exchange was lost")
        step = await exchange.step(data)
        if isinstance(step, bytes):
            return encode_result(request.id, Status.CONTINUE, step)
        del self._conversations[link.worker, conversation]
        return await self._login_result(request, step, "denied by scram", exchange.username)

    # --- changed settings -----------------------------------------------------------------------------------------------------

    async def _watch_changes(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            generation = self._counters.access_generation
            if self._in_force.is_due:
                try:
                    self._in_force.load()
                except OSError as error:
                    self._report("settings", f"not applied: {error}")
            elif generation == self._generation:
                continue
            self._generation = generation
            await self._apply()
            self._log.flush()

    async def _apply(self) -> None:
        """Applies all keys that reach integrations, and reads users and rules again. After a failure, which is tried again with the
        next change, the manager reports this process as behind."""
        settings, old = self._in_force.settings, self._backends
        self._log.level = settings.log.level
        applied = await self._use_programs(settings)
        if _of_backends(settings) != _of_backends(old.settings):
            applied = self._replace(settings) and applied
        else:
            problems = old.reload()
            for problem in problems:
                self._log.add("error", of_process("integrations", log_line("backend not reloaded", reason=problem)))
            note_failing(self._topology.runtime_dir, problems)
        if applied:
            self._in_force.applied()

    async def _use_programs(self, settings: Settings) -> bool:
        """Returns whether the settings of exhook are in force."""
        try:
            if await self._hooks.use(settings):
                self._log.add("info", of_process("integrations", log_line("exhook servers changed")))
        except BackendError as error:
            self._log.add("error", of_process("integrations", log_line("exhook servers not changed", reason=error)))
            return False
        return True

    def _broadcast(self, result: bytes) -> None:
        for link in self._links:
            link.send(result)

    def _replace(self, settings: Settings) -> bool:
        """Applies new settings; returns whether they are in force. Requests under way are completed with the old back ends."""
        old = self._backends
        try:
            self._backends = Backends(settings, self._stores, self._report)
        except (BackendError, StoreError) as error:
            text = f"new settings rejected, previous ones stay in force: {error}"
            self._log.add("error", of_process("integrations", log_line("access settings not changed", reason=error)))
            note_failing(self._topology.runtime_dir, [text])
            return False
        note_failing(self._topology.runtime_dir, [])
        self._log.add("info", of_process("integrations", log_line("access settings changed")))
        task = asyncio.create_task(self._close_later(old))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _close_later(self, old: Backends) -> None:
        try:
            await asyncio.sleep(max(one.timeout for one in _of_backends(old.settings)))
        finally:
            await old.close()

    def _report(self, name: str, text: str) -> None:
        """Logs a failure of a back end, unless the same was logged recently."""
        now = time.monotonic()
        if now - self._reported.get((name, text), -REPORT_INTERVAL_S) < REPORT_INTERVAL_S:
            return
        if len(self._reported) > TASKS_MAX:
            self._reported.clear()
        self._reported[name, text] = now
        self._log.add("error", of_process("integrations", log_line("backend failed", backend=name, reason=text)))
        self._log.flush()


class _Link:
    """The channel to and from one worker."""

    def __init__(self, service: _Service, worker: int, descriptor: int) -> None:
        self.worker = worker
        self._service = service
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._socket.setblocking(False)
        self._waiting: deque[bytes] = deque(maxlen=RESULTS_MAX)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        for _ in range(READS_A_TURN):
            try:
                message = self._socket.recv(MESSAGE_MAX)
            except (BlockingIOError, InterruptedError):
                return
            self._service.take(self, message)

    def send(self, result: bytes) -> None:
        """Sends a result without blocking: one that the worker does not take at once is queued."""
        if not self._waiting and self._sent(result):
            return
        if not self._waiting:
            self._loop.add_writer(self._socket, self._send_waiting)
        self._waiting.append(result)

    def _send_waiting(self) -> None:
        while self._waiting and self._sent(self._waiting[0]):
            self._waiting.popleft()
        if not self._waiting:
            self._loop.remove_writer(self._socket)

    def _sent(self, result: bytes) -> bool:
        try:
            self._socket.send(result)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True  # too large, or the worker is gone: the request times out
        return True


def _of_backends(settings: Settings) -> tuple[Any, ...]:
    """Returns the sections that `Backends` is made from."""
    return settings.auth, settings.acl, settings.auto_subscribe
