"""All programs, in the order of `exhook.servers`: distribution of requests and events, and the meaning of answers."""

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from shardbroker.access.contract import AuthRequest, Client
from shardbroker.config import Settings
from shardbroker.hooks.exhook import Event, Wanted
from shardbroker.integrations.exhook.contract import message
from shardbroker.integrations.exhook.program import Program
from shardbroker.integrations.exhook.requests import Requests
from shardbroker.integrations.failures import Report

__all__ = ["MessageResult", "Programs", "Silent"]

IGNORE, STOP = message("ValuedResponse").IGNORE, message("ValuedResponse").STOP_AND_RETURN
ALLOW_PUBLISH = "allow_publish"
"""Name of a message header."""


class Silent(Exception):
    """A program that may not be skipped has not answered; the text names it."""


class MessageResult(Enum):
    """The decision about a message."""

    AS_IT_IS = "as it is"
    DROPPED = "dropped"


class Programs:
    """The programs of one state of the settings. Raises BackendError.

    `on_wanted` takes their requirements, once all of them were called and after each change.
    """

    def __init__(self, settings: Settings, node: str, report: Report, on_wanted: Callable[[list[Wanted]], None]) -> None:
        self._requests = Requests(node, {name: _port(one.bind) for name, one in settings.listeners.items()})
        self._on_wanted = on_wanted
        limit = settings.mqtt.max_packet_size
        self.settings = settings.exhook
        self.programs = [Program(one, self._requests, limit, report, self._changed) for one in settings.exhook.enabled]

    def start(self) -> None:
        for one in self.programs:
            one.start()
        self._changed()

    async def close(self) -> None:
        await asyncio.gather(*(one.close() for one in self.programs))

    @property
    def wanted(self) -> list[Wanted] | None:
        """Returns the requirements of all programs; None until each was called."""
        return [one.wanted for one in self.programs] if all(one.known for one in self.programs) else None

    def _changed(self) -> None:
        wanted = self.wanted
        if wanted is not None:
            self._on_wanted(wanted)

    async def _covering(self, point: str, topic: str | None) -> Any:
        """Yields the programs to call, in order, each after its first call has ended."""
        for one in self.programs:
            await one.when_known()
            if one.wanted.covers(point, topic):
                yield one

    async def _answers(self, point: str, topic: str | None, client: Client, request: Callable[[], Any]) -> Any:
        """Yields (answer, whether it ends the chain) of the programs that decide.

        `request` makes the next request. Raises Silent.
        """
        async for one in self._covering(point, topic):
            answer = await one.call(point, client.client_id, request())
            if answer is None:
                if one.settings.failed_action == "deny":
                    raise Silent(f"exhook server {one.settings.name} did not respond")
            elif answer.type != IGNORE:
                yield answer, answer.type == STOP

    async def _decision(self, point: str, client: Client, request: Callable[[bool], Any]) -> bool | None:
        """Returns the decision of the chain; None if no program decides."""
        decision: bool | None = None

        def with_result() -> Any:
            return request(bool(decision))

        async for answer, stops in self._answers(point, None, client, with_result):
            if answer.WhichOneof("value") == "bool_result":
                decision = answer.bool_result
                if stops:
                    break
        return decision

    async def authenticate(self, client: Client) -> bool | None:
        """Returns whether a client may connect; None if no program decides. Raises Silent."""
        return await self._decision("client.authenticate", client, lambda result: self._requests.authenticate(client, result))

    async def authorize(self, client: Client, requests: Sequence[AuthRequest]) -> tuple[list[bool | None], bool]:
        """Returns (decisions, whether one of them replaces a missing answer)."""
        silent = False

        async def decided(request: AuthRequest) -> bool | None:
            nonlocal silent
            try:
                return await self._decision(
                    "client.authorize", client, lambda result: self._requests.authorize(client, request, result)
                )
            except Silent:
                silent = True
                return False

        return await asyncio.gather(*map(decided, requests)), silent

    async def publish(self, client: Client, fields: Sequence[Any]) -> MessageResult | tuple[str, bytes, int]:
        """Returns the decision about a message: a MessageResult, or its new topic, payload and QoS. Raises Silent."""
        *now, at_ms = fields
        topic = now[0]
        async for answer, stops in self._answers(
            "message.publish", topic, client, lambda: self._requests.publish(client, now, at_ms)
        ):
            if answer.WhichOneof("value") == "message":
                if answer.message.headers.get(ALLOW_PUBLISH) == "false":
                    return MessageResult.DROPPED
                now[:3] = answer.message.topic, answer.message.payload, answer.message.qos
                if stops:
                    break
        return MessageResult.AS_IT_IS if now[:3] == list(fields[:3]) else (now[0], now[1], now[2])

    def notify(self, event: Event) -> None:
        """Forwards an event to the programs that require it."""
        for point, lost in event.lost.items():
            for one in self.programs:
                if point in one.wanted.points:
                    one.figures[point].dropped += lost
        topic, client_id = _topic_of(event), _client_of(event)
        request = None
        for one in self.programs:
            if one.wanted.covers(event.point, topic):
                request = request or self._requests.event(event)
                one.notify(event.point, client_id, request)

    def state(self) -> list[dict[str, Any]]:
        return [one.state_line() for one in self.programs]


def _port(bind: str) -> int:
    port = bind.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _message_of(event: Event) -> Any:
    return event.arguments[0 if event.point == "message.dropped" else 1]


def _topic_of(event: Event) -> str | None:
    return _message_of(event)[0] if event.point.startswith("message.") else None


def _client_of(event: Event) -> str:
    """Returns the client id by which the events are ordered."""
    found: str = _message_of(event)[5] if event.point == "message.dropped" else event.arguments[0][0]
    return found
