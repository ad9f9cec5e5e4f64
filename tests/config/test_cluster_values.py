"""Settings of all nodes as a layer of sources: their place in the order, and what does not fit, whatever is in the core."""

from pathlib import Path
from typing import Any

import cbor2
import pytest

from shardbroker.config import ConfigError, Loaded, load
from shardbroker.config.cluster_values import (
    COPY_FILE,
    COUNT_MAX,
    KEY_BYTES_MAX,
    NO_VALUES,
    TOTAL_BYTES_MAX,
    VALUE_BYTES_MAX,
    ClusterValues,
    Rows,
    decode_rows,
    encode_rows,
    encode_value,
    key_path,
    unfit,
    values_of,
)
from shardbroker.config.keys import dotted, known_keys
from shardbroker.config.sources import KEPT_FILE, parse_assignment
from shardbroker.preflight import usable

KEY, VARIABLE = "mqtt.max_inflight", "SHARDBROKER__MQTT__MAX_INFLIGHT"
CORE = {"cluster.enable": True, "cluster.core.members": ["shardbroker@127.0.0.1"], "cluster.cookie_file": "cookie"}


def values(*assignments: str) -> ClusterValues:
    """Returns values that were set in this order, KEY=TOML."""
    pairs = [one.partition("=") for one in assignments]
    rows = [(key.encode(), encode_value(text, "ctl:0@n1", 1000), 10 + at) for at, (key, _, text) in enumerate(pairs)]
    return values_of(Rows(9 + len(rows), 9, tuple(rows)))


def layered(*assignments: str, **sources: Any) -> Loaded:
    return load(assignments=sources.get("sets", ()), kept=sources.get("kept", {}), cluster=values(*assignments))


def test_the_order_of_sources(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[mqtt]\nmax_inflight = 2\n")
    known = values(f"{KEY}=3")
    steps: list[tuple[dict[str, Any], int, str]] = [
        ({"cluster": NO_VALUES}, 2, f"file {file}"),
        ({"cluster": known}, 3, "cluster"),
        ({"cluster": known, "kept": {("mqtt", "max_inflight"): 4}}, 4, f"file {Path('data') / KEPT_FILE}"),
        ({"cluster": known, "environment": {VARIABLE: "5"}}, 5, f"environment {VARIABLE}"),
        ({"cluster": known, "assignments": [f"{KEY}=6"]}, 6, "--set"),
        ({"cluster": known, "options": {KEY: 7}}, 7, "command line"),
        ({"cluster": known, "options": {KEY: 7}, "trial": {("mqtt", "max_inflight"): 8}}, 8, "cluster"),
    ]
    for more, expected, source in steps:
        loaded = load(file, **{"kept": {}, **more})
        assert (loaded.settings.mqtt.max_inflight, loaded.source(KEY)) == (expected, source)
        assert loaded.unusable == {}


def test_a_start_has_the_copy_of_the_last_time_in_a_cluster_with_a_core_alone(tmp_path: Path) -> None:
    copy = tmp_path / COPY_FILE
    copy.parent.mkdir()
    row = KEY.encode(), encode_value("3", "ctl:0@n1", 1000), 12
    copy.write_bytes(encode_rows(Rows(12, 12, (row,), 0, "/shardbroker/shardbroker/")))
    here = {"process.data_dir": str(tmp_path)}
    found = load(options=CORE | here)
    assert (found.settings.mqtt.max_inflight, found.cluster.revision) == (3, 12)
    assert load(options=here).settings.mqtt.max_inflight == 32, "no cluster"
    static = {"cluster.core.mode": "none", "cluster.discovery": "static", "cluster.static.seeds": ["10.0.0.1:1"], "node.id": 1}
    assert load(options=CORE | here | static).settings.mqtt.max_inflight == 32, "no core"
    kept = 'cluster = {enable = true, core.members = ["shardbroker@127.0.0.1"], cookie_file = "cookie"}\n'
    (tmp_path / KEPT_FILE).write_text(kept)
    assert load(options=here).settings.mqtt.max_inflight == 3, "runtime.toml makes it one"

    other = load(options=here | {"cluster.name": "other"})
    assert (other.settings.mqtt.max_inflight, other.unusable) == (32, {}), "of another cluster"
    copy.write_bytes(b"damaged")
    found = load(options=here)
    assert found.settings.mqtt.max_inflight == 32
    assert [*found.unusable] == [str(copy)]


def test_what_does_not_fit_is_left_out_alone() -> None:
    loaded = layered("mqtt.later_key=1", f"{KEY}=9", "mqtt.server_keepalive=-1", "nonsense.key=true", "log.level=\"warning\"")
    assert (loaded.settings.mqtt.max_inflight, loaded.settings.log.level) == (9, "warning")
    assert sorted(loaded.unusable) == ["mqtt.later_key", "mqtt.server_keepalive", "nonsense.key"]
    assert "mqtt.later_key = 1 (cluster): unknown key" in loaded.unusable["mqtt.later_key"]
    assert "allowed is" in loaded.unusable["mqtt.server_keepalive"]


def test_values_that_fit_together_or_not_at_all() -> None:
    """A table needs all of its keys; of two values that exclude each other the earlier one counts."""
    loaded = layered('streams.s.filters=["a/#"]', "streams.s.enable=false", "mqtt.unknown=1")
    assert set(loaded.unusable) >= {"mqtt.unknown"}
    both = layered("mqtt.mqueue_priorities={\"a\" = 3}", "mqtt.mqueue_priorities.b=4")
    assert both.settings.mqtt.mqueue_priorities == {"a": 3, "b": 4}
    assert layered("mqtt=5", f"{KEY}=4").settings.mqtt.max_inflight == 4
    assert [*layered(f"{KEY}=4", "mqtt=5").unusable] == ["mqtt"]


def test_what_runtime_toml_needs_of_all_nodes_does_not_keep_a_node_from_starting() -> None:
    kept = {("mqtt", "mqueue_priorities", "b"): 2}
    loaded = layered('mqtt.mqueue_priorities={"a" = 3}', "mqtt.unknown=1", kept=kept)
    assert loaded.settings.mqtt.mqueue_priorities == {"a": 3, "b": 2}
    assert [*loaded.unusable] == ["mqtt.unknown"]


def test_other_sources_that_are_wrong_are_an_error_as_before() -> None:
    with pytest.raises(ConfigError, match="--set"):
        layered("mqtt.unknown=1", sets=[f"{KEY}=-1"])
    with pytest.raises(ConfigError, match=r"runtime\.toml"):
        layered(f"{KEY}=4", kept={("mqtt", "max_inflight"): -1})


ODD = ("true", "-1", "1e400", "nan", '""', '"\\u0000"', "[]", "[[[]]]", "[{a=1}]", "{}", "{a={b={c=1}}}", "1979-05-27", "0", '"x"')


def test_no_value_of_any_key_keeps_a_node_from_starting() -> None:
    """One of the odd values for every fourth key, which differ from run to run only if the schema does."""
    for number, path in enumerate([*known_keys()][::4]):
        key = dotted(tuple("x1" if part == "<name>" else part for part in path))
        loaded = load(kept={}, cluster=values(f"{key}={ODD[number % len(ODD)]}", f"{KEY}=9"))
        assert loaded.settings.mqtt.max_inflight == 9 or key == KEY, key


@pytest.mark.parametrize(
    ("key", "row", "reason"),
    [
        (b"mqtt.max_inflight\n", encode_value("1", "", 0), "must be a key"),
        (b"", encode_value("1", "", 0), "must be a key"),
        (b"mqtt", encode_value("1", "", 0), ""),
        (b"a=1\nb", encode_value("1", "", 0), "must be a key"),
        (b"a b", encode_value("1", "", 0), "must be a key"),
        (b"'a'.b", encode_value("1", "", 0), "must be a key"),
        (b"\xff\xfe", encode_value("1", "", 0), "utf-8"),
        (b"m" * (KEY_BYTES_MAX + 1), encode_value("1", "", 0), "at most 255 bytes"),
        (b"mqtt.a", b"", "must be CBOR"),
        (b"mqtt.a", b"\xa1", "must be CBOR"),
        (b"mqtt.a", b"\x81" * 5000, "must be CBOR"),
        (b"mqtt.a", cbor2.dumps("5"), "must be a CBOR map"),
        (b"mqtt.a", cbor2.dumps({"value": 5, "by": "", "at": 0}), "must be a CBOR map"),
        (b"mqtt.a", cbor2.dumps({"value": "5", "by": 3, "at": 0}), "by: must be"),
        (b"mqtt.a", cbor2.dumps({"value": "5", "by": "a\x1b[2J", "at": 0}), "by: must be"),
        (b"mqtt.a", cbor2.dumps({"value": "5", "by": "", "at": -1}), "at: must be"),
        (b"mqtt.a", cbor2.dumps({"value": "5", "by": "", "at": True}), "at: must be"),
        (b"mqtt.a", encode_value("5\nmqtt.b = 6", "", 0), "must be TOML"),
        (b"mqtt.a", encode_value("[" * 9000, "", 0), "must be TOML"),
        (b"mqtt.a", encode_value("9" * 9000, "", 0), "must be TOML"),
        (b"mqtt.a", encode_value('"' + "x" * VALUE_BYTES_MAX + '"', "", 0), "at most 16384 bytes"),
        (b"process.workers", encode_value("1", "", 0), "a setting of one node"),
        (b"cluster.cookie_file", encode_value('"x"', "", 0), "a setting of one node"),
    ],
)
def test_rows_that_others_have_written(key: bytes, row: bytes, reason: str) -> None:
    good = KEY.encode(), encode_value("9", "ctl:0@n1", 5), 3
    known = values_of(decode_rows(encode_rows(Rows(7, 7, ((key, row, 4), good)))))
    assert [one.key for one in known.values if one.key == KEY] == [KEY]
    if not reason:
        assert not known.problems
        return
    ((shown, problem),) = known.problems.items()
    assert reason in problem and shown.isprintable() and len(shown) < 300
    assert known.names[shown] == key
    loaded = load(kept={}, cluster=known)
    assert loaded.settings.mqtt.max_inflight == 9 and loaded.unusable == {shown: problem}


def test_more_keys_and_bytes_than_a_cluster_may_have() -> None:
    rows = [(b"mqtt.k%d" % number, encode_value("1", "", 0), number) for number in range(COUNT_MAX + 3)]
    known = values_of(Rows(500, 0, tuple(rows), 7))
    assert len(known.values) == COUNT_MAX
    assert sorted(known.problems) == ["config/", *(f"mqtt.k{number}" for number in range(COUNT_MAX, COUNT_MAX + 3))]
    assert "7 keys" in known.problems["config/"]
    long = '"' + "x" * 16_000 + '"'
    rows = [(b"mqtt.k%d" % number, encode_value(long, "", 0), number) for number in range(20)]
    known = values_of(Rows(500, 0, tuple(rows)))
    assert len(known.values) == TOTAL_BYTES_MAX // 16_040
    assert all(str(TOTAL_BYTES_MAX) in reason for reason in known.problems.values())


@pytest.mark.parametrize("text", [b"", b"\x00", b"\x84\x01\x02\x03\x04", cbor2.dumps([1, 2, [[1, 2]], 0]), b"\x81" * 4000])
def test_a_damaged_file_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match="must be a list of settings"):
        decode_rows(text)


def test_keys_are_read_as_they_are_written() -> None:
    for key in ("mqtt.max_inflight", 'mqtt.mqueue_priorities."Plant/v1.0"', "listeners.a-b.bind"):
        assert dotted(key_path(key)) == key


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("process.workers", "2", "of one node"),
        ("node.name", "n9", "of one node"),
        ("cluster.lease", "5s", "of one node"),
        ("listeners.default.max_connections", "5", "of one node"),
        ("api.bind", "0.0.0.0:1", "of one node"),
        ("prometheus.bind", "0.0.0.0:1", "of one node"),
        ("plugins.dir", "/tmp", "of one node"),
        ("api", '{ bind = "0.0.0.0:1" }', "api.bind is a setting of one node"),
        ("gateways.stomp.listeners.default.max_connections", "3", "of one node"),
        ("gateways.exproto.server.bind", "0.0.0.0:1", "of one node"),
        ("auth.http", '{ token = "x" }', ""),
        ("connectors.http.x", '{ url = "http://a" }', ""),
        ("exhook.servers", '[{ name = "a", secret = "x" }]', "secret"),
        ("mqtt.max_inflight", "5", ""),
        ("mqtt.mqueue_priorities", '{ "my/token" = 3, bind = 4 }', ""),
        ("mqtt.mqueue_priorities.bind", "3", ""),
        ("rules.r", '{ sql = "SELECT 1 FROM a" }', ""),
    ],
)
def test_which_keys_may_be_of_all_nodes(key: str, text: str, reason: str) -> None:
    found = unfit(*parse_assignment(key, text))
    assert reason in found and bool(found) == bool(reason)


def test_secrets_are_of_one_node() -> None:
    for path in known_keys():
        if path[-1] in ("password", "secret_key"):
            named = tuple("x" if part == "<name>" else part for part in path)
            assert unfit(named, "hidden") != "", named


def test_a_start_leaves_out_what_would_prevent_it(tmp_path: Path) -> None:
    known = values(f"{KEY}=9", f'acl.file.path="{tmp_path / "missing.toml"}"', 'acl.sources=["file"]')
    loaded = load(kept={}, cluster=known)
    assert not loaded.unusable
    found, lines = usable(loaded)
    assert found.settings.mqtt.max_inflight == 9
    assert found.unusable, lines
    assert any("not applied" in line for line in lines)
