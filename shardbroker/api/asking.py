"""How a route asks the broker: in the name of whoever asked the route."""

from typing import Annotated, Any

from fastapi import Depends, Request

from shardbroker.api.guard import Caller
from shardbroker.control import AsyncControl, ControlError

__all__ = ["Ask", "Asker"]


class Asker:
    """ask(verb, **params): the result. Raises ControlError."""

    def __init__(self, control: AsyncControl, caller: Caller | None, node: str) -> None:
        self._control = control
        self.caller = caller
        self.node = node

    async def __call__(self, verb: str, /, **params: Any) -> Any:
        """Parameters that are None are left out."""
        given = {name: value for name, value in params.items() if value is not None}
        try:
            return await self._control.ask(verb, asked_by=self.caller.by if self.caller else "rest", **given)
        except UnicodeError:
            raise ControlError("BAD_REQUEST", "a text with half of a surrogate pair is no Unicode") from None

    def check_node(self, name: str) -> None:
        """Raises ControlError NOT_FOUND for any node but this one."""
        if name != self.node:
            raise ControlError("NOT_FOUND", f"no node {name!r}: this is {self.node}")


def _asker(request: Request) -> Asker:
    return Asker(request.app.state.control, request.state.caller, request.app.state.node)


Ask = Annotated[Asker, Depends(_asker)]
