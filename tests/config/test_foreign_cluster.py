"""The cluster of emqx.conf: members, cookie and links, and what keeps a node alone."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardbroker.config import Settings, load
from shardbroker.config.cluster import own_address
from shardbroker.config.foreign import Imported, to_toml
from shardbroker.config.foreign_emqx import read_emqx
from shardbroker.link.identity import read_cookie

PROGRAM = Path(sys.executable).with_name("shardbroker")
COOKIE = "a cookie of all the nodes"
NODE = f'node {{ name = "emqx2@10.0.0.2", cookie = "{COOKIE}", role = core }}\n'
STATIC = """
cluster {
  name = plant, discovery_strategy = static, autoheal = true, autoclean = 12h, proto_dist = inet_tcp
  static { seeds = ["emqx3@10.0.0.3", "emqx1@10.0.0.1", "emqx2@10.0.0.2"] }
}
"""


def read(text: str, tmp_path: Path) -> tuple[Imported, Settings]:
    """Returns an import, and the configuration that its output makes."""
    imported = read_emqx(text)
    file = tmp_path / "shardbroker.toml"
    file.write_text(to_toml(imported, "emqx.conf"))
    assert COOKIE not in file.read_text()
    return imported, load(file, {}, [], {}, {}).settings


def test_seeds_are_addresses_and_the_place_of_a_node_its_id(tmp_path: Path) -> None:
    imported, settings = read(NODE + STATIC, tmp_path)
    cluster = settings.cluster
    assert imported.remarks == [] and cluster.enable
    assert (cluster.name, cluster.core.mode, cluster.discovery, cluster.autoclean) == ("plant", "none", "static", 43_200)
    assert cluster.static.seeds == ["10.0.0.3:5373", "10.0.0.1:5371", "10.0.0.2:5372"], "EMQX's ports"
    assert (settings.node.id, settings.node.name, cluster.link_bind) == (2, "emqx2@10.0.0.2", "10.0.0.2:5372")
    assert own_address(cluster) == "10.0.0.2:5372"
    assert imported.cookie == COOKIE and COOKIE not in repr(imported)
    assert "cluster.autoheal = True: the sides of a split are always merged, without a restart" in imported.notes


def test_every_node_has_another_id_whatever_the_order_of_its_seeds(tmp_path: Path) -> None:
    names = ["emqx@b.example", "emqx@a.example", "emqx@[fd00::1]"]
    found = {}
    for turn, name in enumerate(names):
        seeds = ",".join(names[turn:] + names[:turn])
        text = f'node.name = "{name}"\ncluster {{ discovery_strategy = static, static.seeds = "{seeds}" }}'
        _, settings = read(text, tmp_path)
        found[settings.node.id] = settings.cluster.link_bind
    assert found == {1: "[fd00::1]:5370", 2: "a.example:5370", 3: "b.example:5370"}


def test_a_port_set_by_hand_is_that_of_all_nodes(tmp_path: Path) -> None:
    rpc = 'rpc { port_discovery = manual, tcp_server_port = 7000, listen_address = "0.0.0.0", client_num = 10 }\n'
    imported, settings = read(NODE + STATIC + rpc, tmp_path)
    assert imported.remarks == []
    assert settings.cluster.static.seeds[0] == "10.0.0.3:7000"
    assert (settings.cluster.link_bind, own_address(settings.cluster)) == ("0.0.0.0:7000", "10.0.0.2:7000")
    assert "rpc.client_num = 10" in imported.notes


def test_times_of_links(tmp_path: Path) -> None:
    rpc = (
        "rpc { connect_timeout = 3s, send_timeout = 4000, authentication_timeout = 6s, call_receive_timeout = 20s, "
        "socket_keepalive_idle = 15m, socket_keepalive_interval = 75s, socket_keepalive_count = 4, mode = async }\n"
    )
    imported, settings = read(NODE + STATIC + rpc, tmp_path)
    link = settings.cluster.link
    assert (link.connect_timeout, link.send_timeout, link.auth_timeout, settings.cluster.call_timeout) == (3, 4, 6, 20)
    assert (link.keepalive_idle, link.keepalive_interval, link.keepalive_count) == (900, 75, 4)
    assert imported.remarks == []
    imported = read_emqx("rpc { connect_timeout = 9d, socket_keepalive_idle = soon, socket_keepalive_count = 0 }")
    for key in "rpc.connect_timeout = 9d: ", "rpc.socket_keepalive_idle = soon: ", "rpc.socket_keepalive_count = 0: ":
        assert any(remark.startswith(key) for remark in imported.remarks), imported.remarks


CORES = '"emqx@10.0.0.1", "emqx@10.0.0.2", "emqx@10.0.0.3"'


@pytest.mark.parametrize("cluster", ["discovery_strategy = manual, core_nodes", "discovery_strategy = static, static.seeds"])
def test_core_nodes_run_etcd_for_replicants(cluster: str, tmp_path: Path) -> None:
    text = f'node {{ name = "emqx@10.0.0.9", role = replicant }}\ncluster {{ {cluster} = [{CORES}] }}'
    _, settings = read(text, tmp_path)
    ours = settings.cluster
    assert (ours.enable, ours.core.mode, ours.role, ours.discovery) == (True, "managed", "replicant", "manual")
    assert ours.core.members == ["emqx@10.0.0.1", "emqx@10.0.0.2", "emqx@10.0.0.3"] and settings.node.id == 0


def test_a_core_node_binds_etcd_to_its_address(tmp_path: Path) -> None:
    text = f'node.name = "emqx@10.0.0.2"\ncluster.core_nodes = [{CORES}]'
    assert read(text, tmp_path)[1].cluster.core.bind == "10.0.0.2:12379"
    imported, settings = read('node.name = "emqx@a.example"\ncluster.core_nodes = ["emqx@a.example"]', tmp_path)
    assert settings.cluster.core.bind == "127.0.0.1:12379"
    assert any("cluster.core.bind: has to be set to the IP address of a.example" in remark for remark in imported.remarks)


@pytest.mark.parametrize("strategy", ["dns", "k8s"])
def test_a_core_that_is_looked_up(strategy: str, tmp_path: Path) -> None:
    text = (
        'node {{ name = "emqx@10.0.0.2", db_role = {role} }}\n'
        'cluster {{ discovery_strategy = {strategy}, dns {{ name = "core.example", record_type = srv }}\n'
        'k8s {{ apiserver = "https://10.1.1.1:6443", service_name = broker, address_type = hostname\n'
        'suffix = "svc.cluster.local" }} }}'
    )
    imported, settings = read(text.format(role="replicant", strategy=strategy), tmp_path)
    ours = settings.cluster
    assert (ours.enable, ours.core.mode, ours.role, ours.discovery) == (True, "managed", "replicant", strategy)
    if strategy == "dns":
        assert (ours.dns.name, ours.dns.record_type) == ("core.example", "srv")
        assert any("its ports have to be those of etcd, 12379" in remark for remark in imported.remarks)
        assert not any("k8s" in remark for remark in imported.remarks), "EMQX does not use it either"
    else:
        assert (ours.k8s.namespace, ours.k8s.service_name, ours.k8s.address_type) == ("default", "broker", "hostname")
        assert (ours.k8s.apiserver, ours.k8s.suffix) == ("https://10.1.1.1:6443", "svc.cluster.local")
    imported, _ = read(text.format(role="core", strategy=strategy), tmp_path)
    assert any(remark.startswith("cluster.core.members: has to be set on the 1, 3 or 5 nodes") for remark in imported.remarks)


def test_an_etcd_elsewhere(tmp_path: Path) -> None:
    text = NODE + """
    cluster { name = plant, discovery_strategy = etcd
      etcd { server = "http://10.0.0.7:2379, https://10.0.0.8:2379,10.0.0.9:2379", prefix = emqxcl, node_ttl = 1m
             ssl_options { enable = %s, verify = verify_none
                           cacertfile = "/etc/ca.pem", certfile = "/etc/c.pem", keyfile = "/etc/k.pem" } } }
    """
    imported, settings = read(text % "true", tmp_path)
    ours = settings.cluster
    assert (ours.enable, ours.core.mode, ours.discovery, ours.etcd.prefix, ours.lease) == (True, "external", "etcd", "emqxcl", 60)
    assert ours.etcd.endpoints == ["https://10.0.0.7:2379", "https://10.0.0.8:2379", "https://10.0.0.9:2379"]
    assert (ours.etcd.tls.cacertfile, ours.etcd.tls.certfile, ours.etcd.tls.keyfile) == ("/etc/ca.pem", "/etc/c.pem", "/etc/k.pem")
    assert imported.remarks == ["cluster.etcd.ssl_options.verify = verify_none: the certificate of etcd is always verified"]
    plain = read(text % "false", tmp_path)[1].cluster.etcd
    assert plain.endpoints == ["http://10.0.0.7:2379", "https://10.0.0.8:2379", "http://10.0.0.9:2379"] and not plain.tls.certfile


def test_tls_of_any_connection_is_that_of_all(tmp_path: Path) -> None:
    files = 'cacertfile = "/etc/ca.pem", certfile = "/etc/c.pem", keyfile = "/etc/k.pem", ciphers = []'
    for rpc, proto in ("driver = ssl", "inet_tcp"), ("driver = tcp", "inet6_tls"):
        text = NODE + STATIC.replace("inet_tcp", proto) + f"rpc {{ {rpc}, {files} }}"
        imported, settings = read(text, tmp_path)
        tls = settings.cluster.tls
        assert settings.cluster.enable and (tls.enable, tls.cacertfile, tls.keyfile) == (True, "/etc/ca.pem", "/etc/k.pem")
        assert any("has to name the node (emqx2@10.0.0.2)" in remark for remark in imported.remarks)
    imported, settings = read(NODE + STATIC + f"rpc {{ {files} }}", tmp_path)
    assert not settings.cluster.tls.enable and imported.remarks == []


ALONE = {
    "joined by command": ("cluster.name = a", "cluster.discovery_strategy = manual: nodes that have joined by command are not in"),
    "multicast": ("cluster.discovery_strategy = mcast, cluster.mcast.ttl = 9", "cluster.discovery_strategy = mcast: must be"),
    "no seeds": ("cluster.discovery_strategy = static", "cluster.static.seeds: must be names of nodes as NAME@HOST, got none"),
    "no name": ('cluster.discovery_strategy = static, cluster.static.seeds = ["10.0.0.1"]', "got 10.0.0.1"),
    "others only": ('cluster.discovery_strategy = static, cluster.static.seeds = ["a@10.0.0.1"]', "must have this node too (emqx2"),
    "one address": (
        'cluster.discovery_strategy = static, cluster.static.seeds = ["emqx2@10.0.0.2", "b2@10.0.0.2"]', "with different addresses",
    ),
    "no such port": (
        'cluster.discovery_strategy = static, cluster.static.seeds = ["emqx2@10.0.0.2", "b99999@10.0.0.3"]', "got 105369",
    ),
    "two cores": ('cluster.core_nodes = ["emqx2@10.0.0.2", "emqx@10.0.0.3"]', "must be 1, 3 or 5 nodes on different machines"),
    "no etcd": ("cluster.discovery_strategy = etcd", "allowed is cluster.etcd.endpoints = a list"),
    "TLS without files": (STATIC.replace("inet_tcp", "inet_tls"), "TLS between nodes (cluster.proto_dist, rpc.driver): "),
    "TLS with a reference": (
        STATIC + 'rpc { driver = ssl, cacertfile = "${EMQX_ETC_DIR}/ca.pem", certfile = "/c.pem" }', "must be paths in the file",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("cluster", "reason"), ALONE.values(), ids=ALONE)
def test_a_node_that_lacks_something_stays_alone(cluster: str, reason: str, tmp_path: Path) -> None:
    imported, settings = read(NODE + cluster, tmp_path)
    assert not settings.cluster.enable and settings.node.name == "emqx2@10.0.0.2"
    assert any(reason in remark for remark in imported.remarks), imported.remarks
    assert "cluster.enable: not set, so this node is not in a cluster yet" in imported.remarks


def test_a_node_without_a_name_stays_alone(tmp_path: Path) -> None:
    imported, settings = read("cluster { discovery_strategy = dns, dns.name = a.example }", tmp_path)
    assert not settings.cluster.enable
    assert any("node.name: must be in the file as NAME@HOST, got nothing" in remark for remark in imported.remarks)


def test_a_single_node_is_one(tmp_path: Path) -> None:
    imported, settings = read(NODE + "cluster { name = a, discovery_strategy = singleton }", tmp_path)
    assert imported.remarks == [] and imported.cookie is None and not settings.cluster.enable


def test_healing_cannot_be_switched_off() -> None:
    assert "cluster.autoheal = False: the sides of a split are always merged here" in read_emqx("cluster.autoheal = false").remarks


def test_what_is_unknown_is_named() -> None:
    remarks = read_emqx("cluster { discovery_strategy = singleton, quic { certfile = x }, password = hidden }").remarks
    assert remarks == [
        "cluster.quic.certfile = x: there is nothing like it here", "cluster.password = ******: there is nothing like it here"
    ]  # fmt: skip
    assert read_emqx("cluster = 5\nrpc = []").remarks == ["cluster = 5: must be a table", "rpc = []: must be a table"]


@pytest.mark.parametrize("cookie", ["emqxsecretcookie", "too short", "x" * 4097])
def test_a_weak_cookie_is_not_taken(cookie: str) -> None:
    imported = read_emqx(f'node.cookie = "{cookie}"\ncluster.name = a')
    assert imported.cookie is None
    (remark,) = [one for one in imported.remarks if one.startswith("node.cookie = ******: ")]
    assert cookie not in remark


def test_files_of_emqx_4(tmp_path: Path) -> None:
    text = """
listener.tcp.external = 0.0.0.0:1883
allow_anonymous = true
node.name = emqx2@10.0.0.2
node.cookie = a cookie of all the nodes
cluster.name = plant
cluster.proto_dist = inet_tcp
cluster.discovery = static
cluster.autoheal = on
cluster.autoclean = 5m
cluster.static.seeds = emqx1@10.0.0.1,emqx2@10.0.0.2
rpc.mode = async
rpc.port_discovery = stateless
rpc.connect_timeout = 5000
rpc.socket_keepalive_idle = 900
"""
    imported, settings = read(text, tmp_path)
    ours = settings.cluster
    assert imported.remarks == [] and imported.cookie == COOKIE
    assert (ours.enable, ours.static.seeds, settings.node.id) == (True, ["10.0.0.1:5371", "10.0.0.2:5372"], 2)
    assert (ours.autoclean, ours.link.connect_timeout, ours.link.keepalive_idle) == (300, 5, 900)
    imported = read_emqx("listener.tcp.external = 1883\ncluster.discovery = dns\ncluster.dns.type = srv\ncluster.dns.app = emqx\n")
    assert any(remark.startswith("cluster.dns.record_type = srv") for remark in imported.remarks)
    assert "cluster.dns.app = emqx" in imported.notes


def command(*words: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROGRAM), "config", *map(str, words)], capture_output=True, text=True, check=False)


def test_the_command_writes_the_cookie_to_a_file_of_its_own(tmp_path: Path) -> None:
    file, cookie, ours = tmp_path / "emqx.conf", tmp_path / "cookie", tmp_path / "shardbroker.toml"
    local = STATIC.replace("10.0.0.", "127.0.0.")
    file.write_text(f'authentication = []\n{NODE.replace("10.0.0.", "127.0.0.")}{local}')
    done = command("import", "--cookie", cookie, file)
    assert done.returncode == 0, done.stderr
    assert read_cookie(cookie) == COOKIE.encode() and cookie.stat().st_mode & 0o777 == 0o600
    assert COOKIE not in done.stdout + done.stderr and f'cookie_file = "{cookie}"' in done.stdout
    ours.write_text(f'{done.stdout}\n[process]\ndata_dir = "{tmp_path / "data"}"\n')
    checked = command("check", "--config", ours)
    assert checked.returncode == 0, checked.stderr
    done = command("import", file)
    assert done.returncode == 1 and 'cookie_file = "/etc/shardbroker/cookie"' in done.stdout
    assert "not imported: node.cookie = ******: a secret: repeat this with --cookie FILE" in done.stderr
    assert COOKIE not in done.stdout + done.stderr
    assert "--cookie /no/such/dir/c: No such file" in command("import", "--cookie", "/no/such/dir/c", file).stderr
    file.write_text(local + 'node.name = "emqx2@127.0.0.2"')
    done = command("import", "--cookie", tmp_path / "other", file)
    assert f"not imported: node.cookie: has to be in {tmp_path / 'other'}, mode 0600" in done.stderr
    assert not (tmp_path / "other").exists()
