"""Calls of verbs by a route, in the name of the caller of the route."""

from typing import Annotated, Any

from fastapi import Depends, Request

from shardbroker.api.guard import Caller
from shardbroker.control import AsyncControl, ControlError

__all__ = ["Call", "VerbCall"]


class VerbCall:
    """call(verb, **params) returns the result of a verb. Raises ControlError."""

    def __init__(self, control: AsyncControl, caller: Caller | None, node: str) -> None:
        self._control = control
        self.caller = caller
        self.node = node

    async def __call__(self, verb: str, /, **params: Any) -> Any:
        """Returns the result; parameters that are None are left out."""
        given = {name: value for name, value in params.items() if value is not None}
        try:
            return await self._control.call(verb, requested_by=self.caller.by if self.caller else "rest", **given)
        except UnicodeError:
            raise ControlError("BAD_REQUEST", "text with an unpaired surrogate is not valid Unicode") from None

    def check_node(self, name: str) -> None:
        """Raises ControlError NOT_FOUND for any other node than this one."""
        if name != self.node:
            raise ControlError("NOT_FOUND", f"no node {name!r}: this is {self.node}")


def _call(request: Request) -> VerbCall:
    return VerbCall(request.app.state.control, request.state.caller, request.app.state.node)


Call = Annotated[VerbCall, Depends(_call)]
