"""All programs, in the order of `exhook.servers`: who is asked, who is told, and what the answers mean."""

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
"""Header of a message."""


class Silent(Exception):
    """One that may not be passed over has not answered; the text says which."""


class MessageResult(Enum):
    """What is to become of a message."""

    AS_IT_IS = "as it is"
    DROPPED = "dropped"


class Programs:
    """`on_wanted`: gets what they want, once they were all called and whenever it changes. Raises BackendError."""

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
        """None while one of them was not called yet."""
        return [one.wanted for one in self.programs] if all(one.known for one in self.programs) else None

    def _changed(self) -> None:
        wanted = self.wanted
        if wanted is not None:
            self._on_wanted(wanted)

    async def _asked(self, point: str, topic: str | None) -> Any:
        """Those that are to be asked, in order, each once it was called."""
        for one in self.programs:
            await one.when_known()
            if one.wanted.covers(point, topic):
                yield one

    async def _answers(self, point: str, topic: str | None, client: Client, request: Callable[[], Any]) -> Any:
        """(answer, whether it ends the chain) of those that have a say. `request` makes the next request. Raises Silent."""
        async for one in self._asked(point, topic):
            answer = await one.ask(point, client.client_id, request())
            if answer is None:
                if one.settings.failed_action == "deny":
                    raise Silent(f"{one.settings.name} has not answered")
            elif answer.type != IGNORE:
                yield answer, answer.type == STOP

    async def _decision(self, point: str, client: Client, request: Callable[[bool], Any]) -> bool | None:
        """None: nobody says anything."""
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
        """Raises Silent."""
        return await self._decision("client.authenticate", client, lambda result: self._requests.authenticate(client, result))

    async def authorize(self, client: Client, questions: Sequence[AuthRequest]) -> tuple[list[bool | None], bool]:
        """(decisions, whether one of them only stands for an answer that has not come)."""
        silent = False

        async def decided(question: AuthRequest) -> bool | None:
            nonlocal silent
            try:
                return await self._decision(
                    "client.authorize", client, lambda result: self._requests.authorize(client, question, result)
                )
            except Silent:
                silent = True
                return False

        return await asyncio.gather(*map(decided, questions)), silent

    async def publish(self, client: Client, fields: Sequence[Any]) -> MessageResult | tuple[str, bytes, int]:
        """What becomes of a message: a MessageResult, or its new topic, payload and QoS. Raises Silent."""
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

    def tell(self, event: Event) -> None:
        """Passes an event on to those that want it."""
        for point, lost in event.lost.items():
            for one in self.programs:
                if point in one.wanted.points:
                    one.figures[point].dropped += lost
        topic, client_id = _topic_of(event), _client_of(event)
        request = None
        for one in self.programs:
            if one.wanted.covers(event.point, topic):
                request = request or self._requests.event(event)
                one.tell(event.point, client_id, request)

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
    """Whose order counts."""
    found: str = _message_of(event)[5] if event.point == "message.dropped" else event.arguments[0][0]
    return found
