"""TLS between nodes: both sides show a certificate with the name of their node."""

from pathlib import Path
from typing import Any

import pytest

from shardbroker.cluster.faults import PeerFault
from shardbroker.cluster.view import LinkState
from shardbroker.link.sockets import check_certificate
from tests.edge.certificates import Authority
from tests.harness.waiting import until
from tests.link.test_signals import Half, two


def tls(authority: Authority, file: str, common_name: str, hosts: tuple[str, ...] = ()) -> dict[str, Any]:
    certificate = authority.issue(file, common_name, hosts)
    return {"cluster.tls.enable": "true", "cluster.tls.cacertfile": authority.cafile, "cluster.tls.certfile": certificate}


@pytest.fixture(name="authority")
def an_authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("seen", ["n2@127.0.0.1", "n3@127.0.0.1"])
def test_a_certificate_has_the_name_of_its_node(
    tmp_path: Path, authority: Authority, seen: str, capfd: pytest.CaptureFixture[str]
) -> None:
    each = [tls(authority, "one", "n1@127.0.0.1"), tls(authority, "two", seen)]
    if seen == "n2@127.0.0.1":
        with two(tmp_path, each=each) as (one, other):
            assert one.view.link_of(2) == other.view.link_of(1) == LinkState.UP
        return
    with two(tmp_path, each=each, linked=False) as (one, other):
        until(lambda: refused(one) and refused(other))
        assert not one.view.knows(2) and not other.view.knows(1)
    assert "certificate of node n2@127.0.0.1" in capfd.readouterr().err


def refused(half: Half) -> int:
    return int(half.counters.totals()["link.refused"])


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, authority: Authority) -> None:
    (tmp_path / "other").mkdir()
    other_authority = Authority(tmp_path / "other", "another authority")
    each = [tls(authority, "one", "n1@127.0.0.1"), tls(other_authority, "two", "n2@127.0.0.1")]
    with two(tmp_path, each=each, linked=False) as (one, other):
        until(lambda: refused(one) or refused(other))
        assert not one.view.knows(2) and not other.view.knows(1)


def test_a_node_without_tls_does_not_reach_one_with_it(tmp_path: Path, authority: Authority) -> None:
    with two(tmp_path, each=[tls(authority, "one", "n1@127.0.0.1"), {}], linked=False) as (one, other):
        until(lambda: refused(one) or refused(other))
        assert not one.view.knows(2) and not other.view.knows(1)


def test_names_of_a_certificate() -> None:
    shown = {"subject": ((("commonName", "a@b"),),), "subjectAltName": (("DNS", "c.d"), ("IP Address", "10.0.0.1"))}
    for name in "a@b", "c.d", "10.0.0.1":
        check_certificate(shown, name)
    for certificate in shown, {}, None:
        with pytest.raises(PeerFault, match="certificate of node a: its common name or an alternative name must be a"):
            check_certificate(certificate, "a")


