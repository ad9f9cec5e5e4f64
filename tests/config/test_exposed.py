"""What is open to other machines is told at the start, once each; what is not, is not."""

import sys
from collections.abc import Iterator

import pytest

from shardbroker.config import Settings
from shardbroker.config.exposed import exposures, is_public
from shardbroker.control import Control
from tests.harness import Broker, until

pytestmark = pytest.mark.own_broker
ANONYMOUS = "clients of other machines connect without authentication"
IN_CLEAR = "passwords of dashboard and REST API travel in clear text"
METRICS = "metrics can be read from other machines"
ETCD = "members and the password of etcd travel in clear text"
PROGRAMS = "programs of other machines can act as any device"
TLS = {"enable": True, "certfile": "x", "keyfile": "x"}
PUBLIC = "from shardbroker.config import exposed; exposed.is_public = lambda bind: bind != 'disabled'"
"""Every address counts as a public one, so that the broker under test need not listen on one."""


@pytest.mark.parametrize(
    ("bind", "public"),
    [
        ("127.0.0.1:1", False), ("127.9.9.9:1", False), ("[::1]:1", False), ("[::ffff:127.0.0.1]:1", False), ("localhost:1", False),
        ("unix:/run/x", False), ("disabled", False),
        ("0.0.0.0:1", True), ("[::]:1", True), ("192.168.1.2:1", True), ("[fe80::1%eth0]:1", True), ("broker.example:1", True),
    ],
)  # fmt: skip
def test_public_addresses(bind: str, public: bool) -> None:
    assert is_public(bind) == public


def core(*endpoints: str) -> dict[str, object]:
    cluster = {"enable": True, "cookie_file": "/c", "bind": "127.0.0.1:4370", "core": {"mode": "external"}}
    return {"cluster": {**cluster, "etcd": {"endpoints": [*endpoints]}}}


def test_an_etcd_of_nodes_without_tls() -> None:
    def told(bind: str, name: str, **tls: object) -> list[str]:
        core = {"members": ["n1@10.0.0.1"], "bind": bind}
        cluster = {"enable": True, "cookie_file": "/c", "core": core, "tls": tls}
        return [*exposures(Settings.model_validate({"node": {"name": name}, "cluster": cluster}), ())]

    (text,) = told("10.0.0.1:12379", "n1@10.0.0.1")
    assert text.startswith("other machines can change the members of the cluster cluster.core.bind=10.0.0.1:12379; set cluster.tls")
    assert not told("127.0.0.1:12379", "n1@10.0.0.1") and not told("10.0.0.1:12379", "n2@10.0.0.2")
    assert not told("10.0.0.1:12379", "n1@10.0.0.1", enable=True, cacertfile="ca", certfile="c")


def program(bind: str, tls: dict[str, object] | None = None) -> dict[str, object]:
    return {"gateways": {"exproto": {"enable": True, "server": {"bind": bind, "ssl_options": tls or {}}}}}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, []),
        ({"api": {"bind": "127.0.0.1:1"}, "prometheus": {"bind": "[::1]:1"}}, []),
        ({"listeners": {"a": {"bind": "0.0.0.0:1883"}}}, [ANONYMOUS]),
        ({"listeners": {"a": {"bind": "0.0.0.0:1883"}}, "auth": {"chain": ["builtin"]}}, []),
        ({"listeners": {"a": {"bind": "0.0.0.0:1883", "auth_chain": ["builtin"]}}}, []),
        ({"listeners": {"a": {"bind": "0.0.0.0:1883", "auth_chain": []}}, "auth": {"chain": ["builtin"]}}, [ANONYMOUS]),
        ({"listeners": {"a": {"bind": "0.0.0.0:1883", "enable_authn": False}}, "auth": {"chain": ["builtin"]}}, [ANONYMOUS]),
        ({"listeners": {"a": {"bind": "0.0.0.0:1883"}, "b": {"bind": "[::]:1884"}}}, [ANONYMOUS]),
        ({"api": {"bind": "0.0.0.0:18083"}}, [IN_CLEAR]),
        ({"api": {"bind": "0.0.0.0:18083", "certfile": "x"}}, []),
        ({"prometheus": {"bind": "[::]:18084"}}, [METRICS]),
        (core("http://127.0.0.1:2379", "https://etcd.example:2379"), []),
        (core("https://etcd.example:2379", "http://etcd.example:2379"), [ETCD]),
        (program("127.0.0.1:9100"), []),
        (program("0.0.0.0:9100"), [PROGRAMS]),
        (program("0.0.0.0:9100", TLS), [PROGRAMS]),
        (program("0.0.0.0:9100", TLS | {"cacertfile": "x"}), []),
    ],
)
def test_what_is_told(settings: dict[str, object], told: list[str]) -> None:
    read = Settings.model_validate(settings)
    lines = [*exposures(read, read.listeners.items())]
    assert [line.split(" ", 1)[0] for line in lines] == [text.split(" ", 1)[0] for text in told]
    assert all(line.startswith(text) for line, text in zip(lines, told, strict=True))


def test_client_certificates_are_authentication() -> None:
    tls = {"certfile": "x", "cacertfile": "x", "verify": "verify_peer", "fail_if_no_peer_cert": True}
    for given, count in ((tls, 0), (tls | {"fail_if_no_peer_cert": False}, 1)):
        read = Settings.model_validate({"listeners": {"a": {"bind": "0.0.0.0:8883", "type": "ssl", "tls": given}}})
        assert len([*exposures(read, read.listeners.items())]) == count


@pytest.fixture
def broker() -> Iterator[Broker]:
    one = Broker(1)
    one.program = (
        sys.executable,
        "-c",
        f"import sys; {PUBLIC}; from shardbroker.cli.main import main; sys.exit(main(sys.argv[1:]))",
    )
    one.settings["prometheus.bind"] = "127.0.0.1:0"
    with one:
        yield one


def warnings(broker: Broker) -> list[str]:
    phrase = " WARNING supervisor: configuration not secure detail="
    return [line.partition(phrase)[2].strip('"\n') for line in broker.output if phrase in line]


def test_the_start_tells_each_once_and_a_change_what_it_opens(broker: Broker) -> None:
    found = warnings(broker)
    assert len(found) == 2 and found[0].startswith(ANONYMOUS) and found[1].startswith(METRICS)
    with Control(broker.data_dir) as control:
        control.call("config set", key="auth.chain", value='["builtin"]')
        control.call("listeners add", name="another", settings=["bind=127.0.0.1:0"])
        assert control.call("listeners list")["data"]
        assert len(warnings(broker)) == 2
        control.call("config set", key="auth.chain", value="[]")
        until(lambda: len(warnings(broker)) == 3)
    assert warnings(broker)[2].startswith(ANONYMOUS) and "another=" in warnings(broker)[2]


def test_a_broker_on_loopback_tells_nothing() -> None:
    with Broker(1) as broker:
        assert not [line for line in broker.output if "WARNING" in line]
