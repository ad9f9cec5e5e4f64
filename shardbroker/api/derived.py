"""Routes derived from the rows of verbs, one FastAPI route for each `Rest` of a `Verb`: docs/design/0008-rest-from-verbs.md."""

import re
from collections.abc import Awaitable, Callable, Iterator
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, get_args, get_origin

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from shardbroker.api import paths  # noqa: F401 - registers the convertors that paths in rows use
from shardbroker.api.calls import Call, VerbCall
from shardbroker.api.paging import Place, listed
from shardbroker.api.shapes import Body as BodyModel
from shardbroker.api.shapes import timed
from shardbroker.control import VERBS, Verb
from shardbroker.control.rest import Answer, Rest
from shardbroker.control.verbs import Page

__all__ = ["add_routes", "derived_router"]

NODE = "node"
"""Part of a path that names the node which carries out the verb."""
TYPES: dict[Answer, Any] = {
    "result": dict[str, Any], "data": dict[str, Any], "rows": list[dict[str, Any]], "page": dict[str, Any], "nothing": None,
}  # fmt: skip
"""Type of the response, for the OpenAPI document."""
_IN_PATH = re.compile(r"{(\w+)(?::\w+)?}")


def derived_router() -> APIRouter:
    """Returns a router with the routes of all verbs that have any."""
    router = APIRouter()
    for verb in VERBS.values():
        add_routes(router, verb)
    return router


def add_routes(router: APIRouter, verb: Verb) -> None:
    """Adds the routes of one verb."""
    for rest in verb.rest:
        router.add_api_route(
            rest.path,
            _endpoint(verb, rest),
            methods=[rest.method],
            status_code=204 if rest.answer == "nothing" else 200,
            tags=[rest.tag],
            name=_operation(verb, rest),
            description=rest.summary or verb.summary,
        )


def _operation(verb: Verb, rest: Rest) -> str:
    return rest.operation or re.sub(r"\W", "_", verb.name)


def _endpoint(verb: Verb, rest: Rest) -> Callable[..., Awaitable[Any]]:
    """Returns a function whose signature names path, query and body as FastAPI reads them."""

    async def endpoint(call: VerbCall, **given: Any) -> Any:
        if NODE in given:
            call = call.at(given.pop(NODE))
        place = given.get("query")
        for model in (given.pop("query", None), given.pop("body", None)):
            given |= model.model_dump() if model is not None else {}
        params = {rest.names.get(name, name): value for name, value in given.items()}
        return await _answer(call, verb.name, rest, place, params)

    endpoint.__signature__ = Signature([*_signature(verb, rest)], return_annotation=TYPES[rest.answer])  # type: ignore[attr-defined]
    return endpoint


async def _answer(call: VerbCall, verb: str, rest: Rest, place: Place | None, params: dict[str, Any]) -> Any:
    """Carries out a verb and returns its result in the shape of the route. Raises ControlError."""

    def shape(row: dict[str, Any]) -> dict[str, Any]:
        return timed(row, *rest.times)

    if rest.answer == "page":
        assert place is not None
        return await listed(call, verb, place, shape, **{name: params[name] for name in params if name not in Place.model_fields})
    found = await call(verb, **params)
    if rest.answer == "nothing":
        return None
    if rest.answer == "result":
        return {"node": call.node, **shape(found)} if rest.adds_node else shape(found)
    rows = [shape(row) for row in found["data"]]
    return {"data": rows} if rest.answer == "data" else rows


def _signature(verb: Verb, rest: Rest) -> Iterator[Parameter]:
    assert {*rest.names.values(), *(rest.fields or ()), *rest.required} <= verb.params.model_fields.keys(), rest.route
    yield _parameter("call", Call)
    in_route = {name: other for other, name in rest.names.items()}
    fields = {
        in_route.get(name, name): field
        for name, field in verb.params.model_fields.items()
        if (rest.fields is None or name in rest.fields) and not (rest.answer == "page" and name in Page.model_fields)
    }
    required = {in_route.get(name, name) for name in rest.required}
    for name in _IN_PATH.findall(rest.path):
        if name == NODE:
            yield _parameter(name, str)
        else:
            field = fields.pop(name)
            yield _parameter(name, Annotated[_as_text(field), Path(description=field.description)])
    title = _operation(verb, rest).replace("_", " ").title().replace(" ", "")
    in_query = rest.method in ("GET", "DELETE")
    if fields or rest.answer == "page":
        base: type[BaseModel] = Place if rest.answer == "page" else BodyModel
        model: Any = create_model(title, __base__=base, **_fields(fields, required, in_query))  # type: ignore[call-overload]
        if in_query:
            yield _parameter("query", Annotated[model, Query()])
        elif rest.method == "POST" and not any(one.is_required() for one in model.model_fields.values()):
            yield _parameter("body", Annotated[model | None, Body()], None)  # a request without a body is as good as {}
        else:
            yield _parameter("body", Annotated[model, Body()])


def _parameter(name: str, annotation: Any, default: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _fields(fields: dict[str, FieldInfo], required: set[str], in_query: bool) -> dict[str, tuple[Any, Any]]:
    """Returns the fields of a model for a query or a body, without what is meant for the command line."""
    found = {}
    for name, field in fields.items():
        annotation = _as_text(field) if in_query else field.rebuild_annotation()
        default = field.default
        if name in required:
            annotation, default = _without_none(annotation), ...
        found[name] = (annotation, Field(default, description=field.description))
    return found


def _as_text(field: FieldInfo) -> Any:
    """Returns the type of a parameter that arrives as text: a choice of consecutive numbers as bounds."""
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    if choices and all(isinstance(choice, int) for choice in choices):
        assert set(choices) == {*range(min(choices), max(choices) + 1)}, f"{choices}: not consecutive"
        return Annotated[int, Field(ge=min(choices), le=max(choices))]
    return field.rebuild_annotation()


def _without_none(annotation: Any) -> Any:
    """Returns the type in `type | None`."""
    (kind,) = (one for one in get_args(annotation) if one is not type(None))
    return kind
