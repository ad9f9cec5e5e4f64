"""Requests of the type http, as a real server gets them: encoding, keys, classification of answers, order."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from shardbroker.config.sinks.http import HttpAction, HttpConnector
from shardbroker.connectors.errors import ConnectorError
from shardbroker.flows.drivers.http import HttpSink, connect, make
from shardbroker.flows.sinks.driver import Failure, Refused
from shardbroker.flows.sinks.row import Row
from shardbroker.rules.values import UNDEFINED

Request = dict[str, Any]


def row(number: int = 1, client: str = "c", **values: Any) -> Row:
    return Row("0", number, client, {"n": number, **values}, f"ID{number}", "node-1")


def sink(url: str, parameters: dict[str, Any], **connector: Any) -> HttpSink:
    settings = HttpConnector.model_validate({"url": url, "timeout": 2, **connector})
    return make(HttpAction.model_validate({"parameters": parameters}), connect(settings, "connectors.http.x"), "http:x")


def served(
    parameters: dict[str, Any],
    rows: Sequence[Row],
    status: Callable[[Request], int] = lambda request: 200,
    base: str = "",
    **connector: Any,
) -> tuple[list[Request], Any]:
    """Writes rows to a server; returns the requests that it got, and the failures or the error."""
    requests: list[Request] = []

    async def take(request: web.Request) -> web.Response:
        body = (await request.read()).decode()
        got = {"method": request.method, "path": request.raw_path, "headers": request.headers, "body": body}
        requests.append(got)
        answer = status(got)
        if not answer:
            await asyncio.sleep(30)
        return web.Response(status=answer, text="x" * 100_000)

    async def run() -> Any:
        app = web.Application()
        app.router.add_route("*", r"/{rest:[\s\S]*}", take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        one = sink(f"http://127.0.0.1:{port}{base}", parameters, **connector)
        try:
            await one.open()
            return await one.write(rows)
        except (Refused, ConnectorError, OSError) as error:
            return error
        finally:
            await one._connector.close()
            await runner.cleanup()

    return requests, asyncio.run(run())


def one_of(parameters: dict[str, Any], values: dict[str, Any], **more: Any) -> Request:
    requests, failures = served(parameters, [row(**values)], **more)
    assert failures == []
    return requests[0]


def test_a_row_is_json_with_its_key() -> None:
    got = one_of({"path": "/rows"}, {"t": 1.5, "bytes": b"\xff"}, base="/api/", headers={"X-Token": "secret"})
    assert (got["method"], got["path"]) == ("POST", "/api/rows")
    assert json.loads(got["body"]) == {"n": 1, "t": 1.5, "bytes": {"$bytes": "/w=="}}
    headers = got["headers"]
    assert (headers["Idempotency-Key"], headers["Content-Type"], headers["X-Token"]) == ("ID1", "application/json", "secret")


def test_rows_of_one_message_have_keys_of_their_own() -> None:
    requests, _ = served({}, [Row("0", 5, "c", {}, "ID", "n", number=number) for number in range(2)])
    assert [one["headers"]["Idempotency-Key"] for one in requests] == ["ID", "ID-1"]
    (event,), _ = served({}, [Row("0", 5, "c", {}, "", "n\r\nX: 1")])
    assert event["headers"]["Idempotency-Key"] == "n%0D%0AX%3A%201/0/5"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("a b", "/d/a%20b/x"),
        ("../admin", "/d/..%2Fadmin/x"),
        ("a?b=c#d&e", "/d/a%3Fb%3Dc%23d%26e/x"),
        ("%2e%2e", "/d/%252e%252e/x"),
        ("\r\nX: 1", "/d/%0D%0AX%3A%201/x"),
        ("ü", "/d/%C3%BC/x"),
        (UNDEFINED, "/d/undefined/x"),
        (b"\xff", "/d/%FF/x"),
    ],
)
def test_a_value_stays_one_part_of_the_path(value: Any, path: str) -> None:
    assert one_of({"path": "/d/${v}/x"}, {"v": value})["path"] == path
    assert one_of({"path": "?q=${v}"}, {"v": value})["path"] == "/?q=" + path[3:-2]


@pytest.mark.parametrize("value", [".", "..", "\ud800"])
def test_a_value_that_leads_to_another_path_fails(value: str) -> None:
    requests, failures = served({"path": "/d/${v}"}, [row(v=value), row(2, v="right")])
    assert [one["path"] for one in requests] == ["/d/right"]
    assert [(one.at, one.again) for one in failures] == [(0, False)]


def test_a_value_makes_no_header() -> None:
    parameters = {"headers": {"X-Client": "client ${v}"}}
    assert one_of(parameters, {"v": "a"})["headers"]["X-Client"] == "client a"
    for value in ("a\r\nX-Admin: 1", "a\nb", "a\0b", "a\x7f"):
        requests, failures = served(parameters, [row(v=value)])
        assert not requests and failures == [Failure(0, "request not made: header X-Client has a control character")]


@pytest.mark.parametrize(
    ("body", "values", "expected"),
    [
        ('{"t": ${t}, "s": "${s}"}', {"t": 1.5, "s": 'a"b\\\n'}, {"t": 1.5, "s": 'a"b\\\n'}),
        ('{"t": ${t}}', {"t": 'x", "admin": true'}, {"t": 'x", "admin": true'}),
        ('{"t": "${t}"}', {"t": 'x", "admin": true, "y": "'}, {"t": 'x", "admin": true, "y": "'}),
        ('{"p": ${payload}}', {"payload": '{"a": [1]}'}, {"p": {"a": [1]}}),
        ('{"p": ${payload}}', {"payload": '{"a": 1}, "admin": 1'}, {"p": '{"a": 1}, "admin": 1'}),
        ('{"p": ${payload}}', {"payload": "true"}, {"p": "true"}),
        ('{"p": ${payload}, "q": "\\"${n}\\""}', {}, {"p": None, "q": '"1"'}),
        ("${.}", {"a": {"b": None}}, {"n": 1, "a": {"b": None}}),
    ],
)
def test_a_body_of_json_has_the_fields_of_the_template_alone(body: str, values: dict[str, Any], expected: Any) -> None:
    assert json.loads(one_of({"body": body}, values)["body"]) == expected


def test_other_bodies_are_encoded_for_their_type() -> None:
    form = {"headers": {"content-type": "application/x-www-form-urlencoded"}, "body": "v=${v}&n=${n}"}
    assert one_of(form, {"v": "a&admin=1 b"})["body"] == "v=a%26admin%3D1+b&n=1"
    text = {"headers": {"Content-Type": "text/plain"}, "body": "${v}"}
    got = one_of(text, {"v": 'a"b'})
    assert (got["body"], got["headers"]["Content-Type"]) == ('a"b', "text/plain")
    assert one_of({"method": "get", "path": "/${v}"}, {"v": 1})["body"] == ""


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422])
def test_a_row_that_is_refused_fails_alone(status: int) -> None:
    requests, failures = served({}, [row(n) for n in range(3)], lambda request: status if '"n":1' in request["body"] else 204)
    assert failures == [Failure(1, f"status {status}")]
    assert len(requests) == 3


@pytest.mark.parametrize("status", [0, 301, 408, 429, 500, 503])
def test_rows_behind_a_loss_are_written_again_in_order(status: int) -> None:
    rows = [row(n) for n in range(4)]
    requests, failures = served({}, rows, lambda request: status if '"n":1' in request["body"] else 200, timeout=0.5)
    assert [json.loads(one["body"])["n"] for one in requests] == [0, 1]
    assert [(one.at, one.again) for one in failures] == [(1, True), (2, True), (3, True)]
    assert failures[0].reason == (f"status {status}" if status else "no response in time")


def test_clients_do_not_wait_for_each_other() -> None:
    under_way = most = 0
    original: Callable[..., Awaitable[None]] = HttpSink._request

    async def counted(self: HttpSink, *given: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await original(self, *given)
        finally:
            under_way -= 1

    HttpSink._request = counted  # type: ignore[method-assign,assignment]
    try:
        requests, failures = served({}, [row(n, f"c{n % 10}") for n in range(50)], pool_size=4)
    finally:
        HttpSink._request = original  # type: ignore[method-assign,assignment]
    assert failures == [] and len(requests) == 50 and most == 4
    for client in range(10):
        numbers = [n for one in requests if (n := json.loads(one["body"])["n"]) % 10 == client]
        assert numbers == sorted(numbers)


def test_a_batch_is_one_request() -> None:
    requests, failures = served({"batch": True, "body": '{"n": ${n}}'}, [row(n) for n in range(100)])
    assert failures == [] and len(requests) == 1
    assert json.loads(requests[0]["body"]) == [{"n": n} for n in range(100)]
    again, _ = served({"batch": True, "body": '{"n": ${n}}'}, [row(n) for n in range(100)])
    assert again[0]["headers"]["Idempotency-Key"] == requests[0]["headers"]["Idempotency-Key"]
    _, refused = served({"batch": True}, [row()], lambda request: 400)
    assert isinstance(refused, Refused)
    _, lost = served({"batch": True}, [row()], lambda request: 503)
    assert isinstance(lost, ConnectorError) and not isinstance(lost, Refused)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"headers": {"Content-Length": "1"}}, "names of headers"),
        ({"headers": {"transfer-encoding": "chunked"}}, "names of headers"),
        ({"headers": {"X\r\nY": "1"}}, "names of headers"),
        ({"batch": True, "path": "/${n}"}, r"parameters\.batch"),
        ({"batch": True, "headers": {"X": "${n}"}}, r"parameters\.batch"),
        ({"batch": True, "headers": {"Content-Type": "text/plain"}}, r"parameters\.batch"),
        ({"batch": True, "method": "get"}, r"parameters\.batch"),
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        sink("http://127.0.0.1", parameters)
