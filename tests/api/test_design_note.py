"""The code of docs/design/0008-rest-from-verbs.md: a row and a handler make a command, a route and its documentation."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import httpx
import pytest
from fastapi import APIRouter, FastAPI
from pydantic import ValidationError

from shardbroker.api.derived import add_routes
from shardbroker.cli.ctl import add_verbs
from shardbroker.control import VERBS, ControlError, rest, verbs
from shardbroker.management import context
from shardbroker.management.handlers import messages

NOTE = Path(__file__).parents[2] / "docs/design/0008-rest-from-verbs.md"
ROW, HANDLER = re.findall(r"^```python\n(.*?)^```", NOTE.read_text(), re.MULTILINE | re.DOTALL)
VERB = "retained count"


class RetainedStore:
    """Two pages of topics, in place of the store in shared memory."""

    def scan(self, topic_filter: bytes, place: int | None, *_limits: int) -> tuple[list[bytes], int | None]:
        topics = [b"plant/1", b"plant/2", b"house"] if topic_filter == b"#" else [b"plant/1", b"plant/2"]
        return (topics[:1], 1) if place is None else (topics[1:], None)


class Control:
    """Carries out verbs without a broker, with the checks of the manager."""

    async def call(self, verb: str, /, requested_by: str = "", **given: Any) -> Any:
        try:
            params = VERBS[verb].params.model_validate(given)
        except ValidationError as error:
            raise ControlError("BAD_REQUEST", str(error)) from None
        return await context.HANDLERS[verb](SimpleNamespace(retained=RetainedStore()), params)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    monkeypatch.setattr(verbs, "VERBS", VERBS)
    monkeypatch.setitem(VERBS, VERB, None)  # taken out again after the test
    monkeypatch.setitem(context.HANDLERS, VERB, None)
    del VERBS[VERB]
    row = {**vars(verbs), "Rest": rest.Rest}
    exec(compile(ROW, str(NOTE), "exec"), row)
    exec(compile(HANDLER, str(NOTE), "exec"), {**vars(messages), "Any": Any, "RetainedCount": row["RetainedCount"]})
    app, router = FastAPI(), APIRouter()
    add_routes(router, VERBS[VERB])
    app.include_router(router, prefix="/api/v5")
    app.state.control, app.state.node = Control(), "shardbroker@here"

    @app.middleware("http")
    async def guard(request: Any, following: Any) -> Any:
        request.state.caller = None
        return await following(request)

    return app


def get(app: FastAPI, path: str) -> httpx.Response:
    async def scenario() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here/api/v5") as client:
            return await client.get(path)

    return asyncio.run(scenario())


def test_the_row_and_the_handler_are_all(app: FastAPI) -> None:
    assert get(app, "/mqtt/retainer/count").json() == {"count": 3}
    assert get(app, "/mqtt/retainer/count?topic=plant/%23").json() == {"count": 2}
    assert get(app, "/mqtt/retainer/count?topic=").status_code == 422  # 400 in the whole application, like all others
    assert get(app, "/mqtt/retainer/count?tpoic=a").status_code == 422
    operation = app.openapi()["paths"]["/api/v5/mqtt/retainer/count"]["get"]
    assert operation["description"] == VERBS[VERB].summary and operation["tags"] == ["Messages"]
    assert operation["operationId"] == "retained_count_api_v5_mqtt_retainer_count_get"
    (topic,) = operation["parameters"]
    assert (topic["name"], topic["in"], topic["schema"]["minLength"], topic["schema"]["default"]) == ("topic", "query", 1, "#")
    root = click.Group("ctl")
    add_verbs(root, [VERBS[VERB]])
    assert root.commands["retained"].commands["count"].params[0].name == "topic"  # type: ignore[attr-defined]
