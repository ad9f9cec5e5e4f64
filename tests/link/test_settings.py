"""Settings of a cluster: what is refused, the own address, the cookie, the uuid of a data directory."""

import json
from pathlib import Path

import pytest

from shardbroker.config import ConfigError, load
from shardbroker.config.cluster import Cluster, core_members, core_url, missing_etcd, own_address
from shardbroker.link.identity import CookieError, read_cookie
from shardbroker.preflight import look
from shardbroker.stores.node_file import NODE_FILE, node_uuid
from tests.harness.broker import free_port

ENABLED = ("node.id=1", "cluster.enable=true", "cluster.core.mode=none", "cluster.discovery=static", "cluster.cookie_file=/c",
           'cluster.static.seeds=["127.0.0.1:5370"]')  # fmt: skip


def cluster(*settings: str) -> Cluster:
    return load(None, None, [*ENABLED, *settings], {}).settings.cluster


def test_the_least_that_is_set() -> None:
    found = cluster()
    assert (found.link_bind, found.links, found.suspect, found.join_timeout) == ("127.0.0.1:5370", 1, 2.0, 30.0)
    assert cluster("cluster.bind=10.1.2.3:4370").link_bind == "10.1.2.3:5370"
    assert cluster("cluster.bind=[fd00::1]:4370").link_bind == "[fd00::1]:5370"
    assert cluster("cluster.static.seeds=a:1, b:2").static.seeds == ["a:1", "b:2"]


def test_without_a_cluster_nothing_has_to_be_set() -> None:
    assert not load(None, None, [], {}).settings.cluster.enable


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ('cluster.core.members=["n1@a", "n2@b"]', "a list of 1, 3 or 5 different names of nodes"),
        ('cluster.core.members=["n1@a", "n1=b:1", "n1=c:1"]', "a list of 1, 3 or 5 different names of nodes"),
        ('cluster.core.members=["n1"]', "not 'n1'"),
        ('cluster.core.members=["n1=a:65535"]', "not 'n1=a:65535'"),
        ('cluster.core.members=["n 1@a"]', "not 'n 1@a'"),
        ("cluster.core.bind=n1:12379", "IP:PORT with a port from 1 to 65534"),
        ("cluster.core.bind=10.0.0.1:65535", "IP:PORT with a port from 1 to 65534"),
        ("cluster.role=observer", "'auto', 'core', 'replicant'"),
        ("cluster.core.mode=external", "cluster.etcd.endpoints = a list of 1 to 16 different addresses http://HOST:PORT"),
        ("cluster.core.mode=external", "static with core.mode = none, etcd, manual, dns or k8s with external"),
        ("cluster.discovery=manual", "etcd, manual, dns or k8s with external, manual, dns or k8s with managed"),
        ("cluster.discovery=k8s", "static with core.mode = none, etcd, manual, dns or k8s with external"),
        ("cluster.k8s.apiserver=kubernetes", "cluster.k8s.apiserver"),
        ("cluster.etcd.endpoints=127.0.0.1:2379", "not '127.0.0.1:2379'"),
        ("cluster.etcd.endpoints=http://a:1/x", "not 'http://a:1/x'"),
        ("cluster.etcd.endpoints=http://a:1,http://a:1", "a list of 1 to 16 different addresses"),
        ("cluster.etcd.prefix=a//b", "cluster.etcd.prefix"),
        ("cluster.etcd.tls.keyfile=k.pem", "keyfile only with certfile"),
        ("cluster.lease=1s", "cluster.lease"),
        ("cluster.link.compression=zstd", "'none' in this version; zstd is not available yet"),
        ("cluster.static.seeds=[]", "cluster.static.seeds = a list of 1 to 250 different addresses HOST:PORT"),
        ('cluster.static.seeds=["a:1", "a:1"]', "a list of 1 to 250 different addresses HOST:PORT"),
        ('cluster.static.seeds=["a"]', "not 'a'"),
        ('cluster.static.seeds=["a:0"]', "not 'a:0'"),
        ("cluster.advertise=b:1", "one of cluster.static.seeds (127.0.0.1:5370), or empty"),
        ("cluster.cookie_file=", "a file with 16 bytes or more, mode 0600"),
        ("cluster.tls.enable=true", "enable = true only with cacertfile and certfile"),
        ("cluster.links=9", "an integer from 1 to 8"),
        ("cluster.suback=none", "'cluster', 'local'"),
        ("cluster.link.bind=0.0.0.0:0", "HOST:PORT with a port from 1 to 65535"),
        ("node.id=0", "only with node.id from 1 to 250, got 0"),
        ("node.id=251", "only with node.id from 1 to 250, got 251"),
        ("cluster.autoclean=0s", "cluster.autoclean"),
        ("cluster.replicas=1", "unknown key"),
    ],
)
def test_what_is_refused(setting: str, text: str) -> None:
    with pytest.raises(ConfigError) as found:
        cluster(setting)
    assert text in str(found.value)


def test_members_of_a_core_that_nodes_run() -> None:
    members = 'cluster.core.members=["n1@10.0.0.1", "n2=h2:99", "n3@fd00::3"]'
    found = cluster("cluster.core.mode=managed", "cluster.discovery=manual", members, "cluster.core.bind=10.0.0.1:7000")
    assert core_members(found) == [("n1@10.0.0.1", "10.0.0.1", 7000), ("n2", "h2", 99), ("n3@fd00::3", "fd00::3", 7000)]
    assert core_url(found, "fd00::3", 7000) == "http://[fd00::3]:7000"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (("core.mode=managed", "discovery=manual"), "cluster.core.members = a list of 1, 3 or 5 different names of nodes"),
        (("core.mode=managed", "discovery=dns"), "cluster.dns.name = a name in DNS with cluster.discovery = dns"),
        (("core.mode=managed", "discovery=k8s"), "cluster.k8s.service_name = the name of a service with cluster.discovery = k8s"),
        (("core.mode=external", "discovery=dns", "dns.name=a", "etcd.endpoints=http://a:1"), "no cluster.etcd.endpoints with"),
        (("core.mode=managed", "discovery=dns", "dns.name=a", "etcd.endpoints=http://a:1"), "only with cluster.core.mode"),
    ],
)
def test_how_a_core_is_found(settings: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError) as found:
        cluster(*(f"cluster.{one}" for one in settings))
    assert text in str(found.value)


@pytest.mark.parametrize(
    ("role", "name", "text"),
    [
        ("core", "n2@10.0.0.2", "cluster.role: must be auto or replicant, since cluster.core.members has no n2@10.0.0.2, got core"),
        ("replicant", "n1@10.0.0.1", "cluster.role: must be auto or core, since cluster.core.members has n1@10.0.0.1, got repl"),
        ("auto", "n2@10.0.0.2", ""),
    ],
)
def test_roles(role: str, name: str, text: str) -> None:
    members = 'cluster.core.members=["n1@10.0.0.1"]'
    found = cluster("cluster.core.mode=managed", "cluster.discovery=manual", members, f"cluster.role={role}")
    assert (missing_etcd(found, name) or "").startswith(text)


def test_the_own_address() -> None:
    assert own_address(cluster()) == "127.0.0.1:5370"
    assert own_address(cluster("cluster.link.bind=0.0.0.0:5370")) == "127.0.0.1:5370"
    seeds = 'cluster.static.seeds=["n1.example:5370", "192.0.2.9:5370"]'
    assert own_address(cluster(seeds, "cluster.advertise=n1.example:5370")) == "n1.example:5370"
    with pytest.raises(ValueError, match="none of them has port 5370 and an IP address of this machine"):
        own_address(cluster(seeds))
    with pytest.raises(ValueError, match="2 of them have port 5370"):
        own_address(cluster('cluster.static.seeds=["127.0.0.1:5370", "[::1]:5370"]', "cluster.link.bind=[::]:5370"))


def cookie(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_the_cookie_is_read_without_its_line_end(tmp_path: Path) -> None:
    assert read_cookie(cookie(tmp_path / "cookie", b"0123456789abcdef\r\n")) == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("content", "mode", "text"),
    [
        (b"0123456789abcde\n", 0o600, "must have 16 to 4096 bytes, got 15"),
        (b"x" * 5000, 0o600, "must have 16 to 4096 bytes"),
        (b"0123456789abcdef", 0o640, "must have mode 0600, got 0640"),
        (b"0123456789abcdef", 0o604, "must have mode 0600, got 0604"),
        (None, 0o600, "must be a file that can be read"),
    ],
)
def test_cookies_that_are_refused(tmp_path: Path, content: bytes | None, mode: int, text: str) -> None:
    path = tmp_path / "cookie"
    if content is not None:
        cookie(path, content, mode)
    with pytest.raises(CookieError, match=text) as found:
        read_cookie(path)
    assert "0123" not in str(found.value)
    settings = load(None, None, [*ENABLED, f"cluster.cookie_file={path}"], {}).settings
    assert [one.text for one in look(settings) if one.key == "cluster.cookie_file" and one.fatal]


def test_preflight_names_what_cannot_work(tmp_path: Path) -> None:
    path = cookie(tmp_path / "cookie", b"0123456789abcdef")
    port = free_port()
    good = [*ENABLED, f"cluster.cookie_file={path}", f"listeners.default.bind=127.0.0.1:{port}"]
    assert look(load(None, None, good, {}).settings) == []
    bad = [
        "cluster.link.bind=192.0.2.1:5370", "cluster.tls.enable=true", "cluster.tls.cacertfile=/none", "cluster.tls.certfile=/none",
        "cluster.static.seeds=" + json.dumps(["127.0.0.1:5371"]),
    ]  # fmt: skip
    found = {one.key for one in look(load(None, None, [*good, *bad], {}).settings)}
    assert found == {"cluster.link.bind", "cluster.tls.certfile", "cluster.advertise"}
    taken = [*good, f"cluster.static.seeds=127.0.0.1:{port}", f"cluster.link.bind=127.0.0.1:{port}"]
    assert [one.key for one in look(load(None, None, taken, {}).settings)] == ["cluster.link.bind"]


def test_the_uuid_of_a_data_directory_stays(tmp_path: Path) -> None:
    first = node_uuid(tmp_path)
    assert len(first) == 16 and node_uuid(tmp_path) == first
    (tmp_path / NODE_FILE).write_text("no uuid")
    with pytest.raises(ValueError, match="must have 32 hex digits"):
        node_uuid(tmp_path)
