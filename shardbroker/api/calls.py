"""Calls of verbs by a route, in the name of the caller of the route."""

import asyncio
from typing import Annotated, Any

from fastapi import Depends, Request

from shardbroker.api.guard import Caller
from shardbroker.control import AsyncControl, ControlError

__all__ = ["LONG_S", "Call", "VerbCall"]

LONG_S = 3600.0
"""Longest wait for a verb that may take minutes, such as the import of a million retained messages."""


class VerbCall:
    """call(verb, **params) returns the result of a verb. Raises ControlError.

    at_node: the node that carries verbs out; empty: this one. of_all_nodes: lists have the rows of all nodes.
    """

    def __init__(
        self, control: AsyncControl, caller: Caller | None, node: str, at_node: str = "", of_all_nodes: bool = False
    ) -> None:
        self._control = control
        self._at_node = at_node
        self._of_all_nodes = of_all_nodes
        self.caller = caller
        self.node = node

    async def __call__(self, verb: str, /, **params: Any) -> Any:
        """Returns the result; parameters that are None are left out."""
        return await self._call(verb, params)

    async def at_length(self, verb: str, /, **params: Any) -> Any:
        """Returns the result of a verb that may take minutes."""
        return await self._call(verb, params, patience_s=LONG_S)

    async def _call(self, verb: str, params: dict[str, Any], **patience: Any) -> Any:
        given = {name: value for name, value in params.items() if value is not None}
        by = self.caller.by if self.caller else "rest"
        try:
            return await self._control.call(verb, requested_by=by, **patience, **self._where(), **given)
        except UnicodeError:
            raise ControlError("BAD_REQUEST", "text with an unpaired surrogate is not valid Unicode") from None

    def _where(self) -> dict[str, Any]:
        return {"at_node": self._at_node} if self._at_node else {"of_all_nodes": True} if self._of_all_nodes else {}

    def at(self, node: str) -> "VerbCall":
        """Returns calls that the node of this name carries out."""
        return VerbCall(self._control, self.caller, node, at_node=node)

    def at_or_here(self, node: str | None) -> "VerbCall":
        """Returns calls that the node of this name carries out; None: this node."""
        return self if node is None else self.at(node)

    def at_or_all(self, node: str | None) -> "VerbCall":
        """Returns calls for lists: with the rows of one node, or of all."""
        return self.at(node) if node else VerbCall(self._control, self.caller, self.node, of_all_nodes=True)

    async def on_each(self, verb: str, /, **params: Any) -> list[tuple[str, Any]]:
        """Returns the results of a verb, from each node of the cluster that answers. Raises ControlError: of this node."""
        try:
            others = [one["name"] for one in (await self("cluster status"))["nodes"] if one["state"] == "running"]
        except ControlError as error:
            if error.code != "NOT_AVAILABLE":
                raise
            others = []
        names = [self.node, *(name for name in others if name != self.node)]
        calls = [self(verb, **params), *(self.at(name)(verb, **params) for name in names[1:])]
        found = await asyncio.gather(*calls, return_exceptions=True)
        if isinstance(found[0], BaseException):
            raise found[0]
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, ControlError):
                raise one
        return [(name, one) for name, one in zip(names, found, strict=True) if not isinstance(one, BaseException)]


def _call(request: Request) -> VerbCall:
    return VerbCall(request.app.state.control, request.state.caller, request.app.state.node)


Call = Annotated[VerbCall, Depends(_call)]
