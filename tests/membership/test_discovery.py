"""Discovery by DNS, against dnsmasq."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from dns import asyncresolver

from shardbroker.config.cluster import Cluster
from shardbroker.membership.discovery import ENDPOINTS_MAX, DiscoveryError, looked_up
from shardbroker.membership.strategies import discovered
from tests.harness.broker import free_port
from tests.servers.dns import dns

RECORDS = (
    "--host-record=core.test,10.0.0.1", "--host-record=core.test,10.0.0.2", "--host-record=six.test,fd00::1",
    "--srv-host=_etcd._tcp.test,n2.test,7002,20", "--srv-host=_etcd._tcp.test,n1.test,7001,10", "--txt-record=text.test,x",
    "--srv-host=_none._tcp.test", *(f"--host-record=many.test,10.0.1.{number}" for number in range(1, 61)),
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def port() -> Iterator[int]:
    number = free_port()
    with dns("127.0.0.1", number, RECORDS):
        yield number


@contextmanager
def asking(port: int) -> Iterator[None]:
    """Has look-ups go to a server."""
    made = asyncresolver.Resolver(configure=False)
    made.nameservers, made.port = ["127.0.0.1"], port
    before = asyncresolver.default_resolver
    asyncresolver.default_resolver = made
    try:
        yield
    finally:
        asyncresolver.default_resolver = before


@pytest.mark.parametrize(
    ("name", "kind", "found"),
    [
        ("core.test", "a", [("10.0.0.1", 9), ("10.0.0.2", 9)]),
        ("six.test", "a", [("fd00::1", 9)]),
        ("_etcd._tcp.test", "srv", [("n1.test", 7001), ("n2.test", 7002)]),
    ],
)
def test_records(port: int, name: str, kind: str, found: list[tuple[str, int]]) -> None:
    with asking(port):
        answer = asyncio.run(looked_up(name, kind, 9))
    assert (answer if kind == "srv" else sorted(answer)) == found


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("absent.test", "a", "cluster.dns.name: absent.test: .*does not exist"),
        ("text.test", "a", "has no A record with an address"),
        ("core.test", "srv", "does not contain an answer"),
        ("_none._tcp.test", "srv", "has no SRV record with an address"),
        ("a..b", "a", "cluster.dns.name: a..b: "),
    ],
)
def test_answers_that_cannot_be_used(port: int, name: str, kind: str, text: str) -> None:
    with asking(port), pytest.raises(DiscoveryError, match=text):
        asyncio.run(looked_up(name, kind, 9))


def test_a_long_answer(port: int) -> None:
    with asking(port):
        assert len(asyncio.run(looked_up("many.test", "a", 9))) == ENDPOINTS_MAX


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardbroker.membership.discovery.LOOKUP_S", 0.3)
    with asking(free_port()), pytest.raises(DiscoveryError, match=r"cluster\.dns\.name: core\.test: "):
        asyncio.run(looked_up("core.test", "a", 9))


def test_endpoints(port: int) -> None:
    own = {"enable": True, "cookie_file": "c", "discovery": "dns", "dns": {"name": "six.test"}}
    tls = {"enable": True, "cacertfile": "ca", "certfile": "c"}
    for settings, endpoint in (
        ({}, "http://[fd00::1]:12379"), ({"tls": tls}, "https://[fd00::1]:12379"),
        ({"core": {"mode": "external"}}, "http://[fd00::1]:2379"),
        ({"core": {"mode": "external"}, "etcd": {"tls": {"cacertfile": "ca"}}}, "https://[fd00::1]:2379"),
        ({"dns": {"name": "_etcd._tcp.test", "record_type": "srv"}}, "http://n1.test:7001"),
    ):
        with asking(port):
            assert asyncio.run(discovered(Cluster.model_validate({**own, **settings})))[0] == endpoint
