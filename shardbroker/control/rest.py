"""Routes of the REST API in a verb's row: plain data, from which `shardbroker.api.derived` makes the route."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

__all__ = ["TAGS", "Answer", "Rest", "Tag"]

Tag = Literal[
    "Accounts", "Node", "Clients", "Messages", "Delayed messages", "Diagnose", "Access", "Plugins", "ExHook", "Gateways", "Rules",
    "Connectors", "Actions", "Sources", "Persistence", "Configuration", "Export and import",
]  # fmt: skip
TAGS: tuple[str, ...] = get_args(Tag)
"""Sections of docs/rest.md, in its order."""
Answer = Literal["result", "data", "rows", "page", "nothing"]
"""The body of a response: the verb's result; its rows below `data`; its rows alone; a page of rows with `meta`; no body (204)."""


@dataclass(frozen=True)
class Rest:
    """A route of the REST API that carries out a verb.

    A parameter of the verb is in the path if the path names it, else in the query of a GET or DELETE, or in the JSON body of a POST
    or PUT. `{node}` in a path is no parameter: it is the node that carries out the verb. Types and bounds are those of the verb.
    """

    route: str
    """Method and path below /api/v5, such as `POST /workers/{worker}/restart`. `{NAME:name}` admits an escaped slash,
    `{NAME:topic}` is the rest of the path."""
    tag: Tag
    operation: str = ""
    """Name of the operation in the OpenAPI document; by default the verb with underscores."""
    answer: Answer = "result"
    times: tuple[str, ...] = ()
    """Fields of a row that are Unix ms in the verb's result, and RFC 3339 in the response."""
    adds_node: bool = False
    """The response has the name of the node as `node`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Parameters with another name than the verb has for them: name in the route -> name in the verb."""
    fields: tuple[str, ...] | None = None
    """Parameters of the verb that the route takes; by default all."""
    required: tuple[str, ...] = ()
    """Optional parameters of the verb that the route requires."""
    summary: str = ""
    """What the route does, if that differs from the verb's summary."""

    @property
    def method(self) -> str:
        """Returns the HTTP method."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """Returns the path below /api/v5."""
        return self.route.partition(" ")[2]
