"""Discovery by Kubernetes, against a stub of its API server: there is no Kubernetes here."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from shardbroker.config.cluster import Cluster
from shardbroker.membership.discovery import DiscoveryError
from shardbroker.membership.strategies import discovered

SLICES = {
    "kind": "EndpointSliceList",
    "items": [
        {"addressType": "IPv4", "endpoints": [
            {"addresses": ["10.1.0.4"], "hostname": "broker-0", "conditions": {"ready": True}},
            {"addresses": ["10.1.0.5"], "hostname": "broker-1", "conditions": {"ready": False}},
        ], "ports": [{"port": 1883}]},
        {"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::4"], "hostname": "broker-0"}]},
        {"addressType": "IPv4", "endpoints": None},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "namespace").write_text("iot\n")
    (tmp_path / "token").write_text("a-token\n")
    monkeypatch.setattr("shardbroker.membership.kubernetes.ACCOUNT", tmp_path)
    return tmp_path


def answered(handler: Callable[[web.Request], Awaitable[web.StreamResponse]], **settings: str) -> list[str]:
    """Returns the endpoints by an API server that answers with a handler."""

    async def work() -> list[str]:
        server = web.Server(handler)
        runner = web.ServerRunner(server)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        k8s = {"apiserver": f"http://127.0.0.1:{port}", "service_name": "brokers", **settings}
        try:
            return await discovered(Cluster.model_validate({"enable": True, "cookie_file": "c", "discovery": "k8s", "k8s": k8s}))
        finally:
            await runner.cleanup()

    return asyncio.run(work())


async def slices(request: web.Request) -> web.StreamResponse:
    namespace = request.path.split("/")[5]
    assert request.path == f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    assert request.query["labelSelector"] == "kubernetes.io/service-name=brokers"
    if request.headers["Authorization"] != "Bearer a-token" or namespace not in ("iot", "other"):
        return web.json_response({"kind": "Status", "message": "endpointslices is forbidden", "code": 403}, status=403)
    return web.json_response(SLICES)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, ["http://10.1.0.4:12379", "http://10.1.0.5:12379", "http://[fd00::4]:12379"]),
        ({"address_type": "hostname", "namespace": "other"},
         [f"http://broker-{number}.brokers.other.svc.cluster.local:12379" for number in (0, 1)]),
        ({"address_type": "dns", "suffix": "pod.local"},
         [f"http://{name}.iot.pod.local:12379" for name in ("10-1-0-4", "10-1-0-5", "fd00--4")]),
    ],
)  # fmt: skip
def test_addresses(settings: dict[str, str], found: list[str]) -> None:
    assert answered(slices, **settings) == found


def of_text(text: bytes, status: int = 200) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=text, status=status, headers={"Location": "http://10.0.0.1/"})

    return handler


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (of_text(b"{}"), "the answer is no list of EndpointSlices"),
        (of_text(b"<html>", 502), "HTTP 502: the answer is no list of EndpointSlices"),
        (of_text(b"{}", 302), "HTTP 302"),
        (of_text(json.dumps({"items": [{"endpoints": [3]}]}).encode()), "no list of EndpointSlices"),
        (of_text(b'{"items": []}'), "has no pod with an address"),
        (of_text(b'{"items": ["' + b"x" * (5 << 20) + b'"]}'), "no list of EndpointSlices"),
    ],
)
def test_answers_that_cannot_be_used(handler: Any, text: str) -> None:
    with pytest.raises(DiscoveryError, match=text):
        answered(handler)


def test_what_is_refused_and_a_pod_without_an_account(account: Path) -> None:
    with pytest.raises(DiscoveryError, match="HTTP 403: endpointslices is forbidden") as found:
        answered(slices, namespace="foreign")
    assert "a-token" not in str(found.value)
    (account / "token").unlink()
    with pytest.raises(DiscoveryError, match="the service account of the pod cannot be read"):
        answered(slices)
