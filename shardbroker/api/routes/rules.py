"""Rules.

By hand: fields and paging of EMQX 5, a body with actions as JSON, and metrics with those of each node.
"""

import json
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from shardbroker.api.calls import Call
from shardbroker.api.paging import Place, listed
from shardbroker.api.routes.configuration import section_of, set_section
from shardbroker.api.shapes import Body, timed
from shardbroker.control import ControlError

__all__ = ["router"]

router = APIRouter(tags=["Rules"])
FIGURES = (
    "matched", "matched.rate", "matched.rate.max", "matched.rate.last5m", "passed", "failed", "failed.exception",
    "failed.no_result", "actions.total", "actions.success", "actions.failed", "actions.failed.out_of_service",
    "actions.failed.unknown", "actions.discarded",
)  # fmt: skip
"""Names as in EMQX."""


class RuleBody(Body):
    sql: str = Field(min_length=1, description="The rule.")
    name: str = Field("", description="Name for people.")
    enable: bool = Field(True, description="Whether the rule is evaluated.")
    description: str = Field("", description="What the rule is for.")
    actions: list[Any] = Field([], description="Actions: objects with `function` and `args`, or `type:name`.")
    metadata: dict[str, Any] = Field({}, description="What programs keep about the rule; at most 16,384 bytes.")

    def params(self) -> dict[str, Any]:
        """Returns the parameters of the verbs."""
        return {**self.model_dump(), "actions": json.dumps(self.actions), "metadata": json.dumps(self.metadata)}


class NewRule(RuleBody):
    id: str = Field("", description="Id; made if it is missing.")

    def params(self) -> dict[str, Any]:
        return {**super().params(), "id": self.id or f"rule_{secrets.token_hex(4)}"}


class RuleEngineBody(Body):
    ignore_sys_message: bool | None = Field(None, description="Whether rules do not see messages of topics below `$SYS/`.")
    jq_function_default_timeout: str | int | None = Field(None, description="Longest time of a program of `jq`, such as 1s, or ms.")
    jq_implementation_module: Literal["jq_port"] | None = Field(None, description="Read only: `jq` runs in a process of its own.")


class RuleTest(Body):
    sql: str = Field(min_length=1, description="The rule.")
    context: dict[str, Any] = Field({}, description="Columns; `event_type` names the event, such as `client_connected`.")


class RuleTrialBody(Body):
    context: dict[str, Any] = Field({}, description="Columns; others have example values.")
    stop_action_after_template_rendering: bool = Field(True, description="Whether actions are only shown.")


class RulePlace(Place):
    enable: bool | None = Field(None, description="Rules that are enabled, or disabled.")
    like_id: str | None = Field(None, description="Ids that contain this text.")
    topic: str | None = Field(None, alias="from", description="Rules with exactly this topic filter behind FROM.")


@router.get("/rules")
async def list_rules(call: Call, place: Annotated[RulePlace, Query()]) -> dict[str, Any]:
    """Rules."""
    return await listed(call, "rules list", place, _shaped, enable=place.enable, like_id=place.like_id, topic=place.topic)


@router.post("/rules", status_code=201)
async def create_rule(call: Call, body: NewRule) -> dict[str, Any]:
    """Makes a rule; it sees each message published after the response."""
    return _shaped(await call("rules create", **body.params()))


@router.get("/rules/{id}")
async def show_rule(call: Call, id: str) -> dict[str, Any]:
    """One rule."""
    return _shaped(await call("rules show", id=id))


@router.put("/rules/{id}")
async def update_rule(call: Call, id: str, body: RuleBody) -> dict[str, Any]:
    """Replaces a rule, which continues at its position."""
    return _shaped(await call("rules update", id=id, **body.params()))


@router.get("/rules/{id}/metrics")
async def show_metrics(call: Call, id: str) -> dict[str, Any]:
    """Figures of a rule."""
    found = (await call("rules show", id=id))["metrics"]
    metrics = {name: found.get(name, 0) for name in FIGURES}
    return {"id": id, "metrics": metrics, "node_metrics": [{"node": call.node, "metrics": metrics}]}


@router.post("/rules/{id}/test")
async def try_rule_in_force(call: Call, id: str, body: RuleTrialBody) -> dict[str, Any]:
    """Evaluates a rule in force; 412 if it does not match. Actions are shown, or carried out if
    `stop_action_after_template_rendering` is false."""
    carry_out = not body.stop_action_after_template_rendering
    found: dict[str, Any] = await call("rules try", id=id, context=json.dumps(_context(body.context)), carry_out=carry_out)
    return found


@router.get("/rule_engine")
async def show_engine(call: Call) -> dict[str, Any]:
    """What holds for all rules."""
    return {**await section_of(call, "rule_engine"), "jq_implementation_module": "jq_port"}


@router.put("/rule_engine")
async def change_engine(call: Call, body: RuleEngineBody) -> dict[str, Any]:
    """Changes what holds for all rules; omitted settings are kept, and `jq_implementation_module` can only be what it is."""
    given = body.model_dump(exclude_none=True, exclude={"jq_implementation_module"})
    timeout = given.get("jq_function_default_timeout")
    if isinstance(timeout, int):
        given["jq_function_default_timeout"] = f"{timeout}ms"
    if given:
        await set_section(call, "rule_engine", given)
    return await show_engine(call)


@router.get("/rule_events")
async def show_events() -> list[dict[str, Any]]:
    """Events that rules see, with their columns and an example of each."""
    from shardbroker.rules.events import EVENTS, example

    return [
        {
            "event": event.topics[0],
            "title": {"en": event.title},
            "description": {"en": event.title},
            "columns": [one.name for one in event.columns],
            "test_columns": example(event),
            "sql_example": f'SELECT * FROM "{event.topics[0]}"',
        }
        for event in EVENTS
    ]


@router.post("/rule_test")
async def test_rule(body: RuleTest) -> Any:
    """Evaluates a rule over one message or event; 412 if it does not match. Columns left out have example values."""
    from shardbroker.rules.sandbox import try_rule

    tested = await try_rule(body.sql, _context(body.context))
    if tested.error == "nomatch":
        raise ControlError("NOT_MATCH", f"SQL does not match: {tested.detail}")
    if tested.error:
        raise ControlError("BAD_REQUEST", f"sql: {tested.detail}")
    return tested.result


def _context(given: dict[str, Any]) -> dict[str, Any]:
    """Returns columns; EMQX names the event in `event_type`."""
    columns = {name: value for name, value in given.items() if name != "event_type"}
    if event := given.get("event_type"):
        columns.setdefault("event", str(event).replace("_", ".", 1))
    return columns


def _shaped(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in (*FIGURES, "metrics")}
    return timed(shown, "created_at", "last_modified_at")
