"""A plan that makes no sense is refused with the name, the value and what is allowed."""

from typing import Any
from zlib import crc32

import pytest

from perf.cli import TEXTS, main
from perf.compare import STANDARD, plan_of
from perf.options import Parser, add_connection
from perf.plan import Plan, PlanError
from perf.wire import receive_maximum
from shm.partitions import PARTITIONS


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"scenario": "p3p"}, "scenario"),
        ({"qos": 3}, "qos"),
        ({"payload": 23}, "payload"),
        ({"window": 0}, "window"),
        ({"version": 6}, "version"),
        ({"seconds": 0}, "seconds"),
        ({"publishers": 2}, "p2p"),
        ({"scenario": "fanout"}, "fanout"),
        ({"scenario": "wildcard", "subscribers": 7}, "wildcard"),
        ({"placement": "near", "workers": 2}, "placement"),
        ({"placement": "same"}, "workers"),
        ({"change_slice": 100}, "change_slice"),
        ({"scenario": "churn", "others": 8, "change_slice": 100, "processes": 2}, "change_slice"),
        ({"placement": "same", "workers": 2, "scenario": "retained", "publishers": 1}, "placement"),
    ],
)
def test_refused(values: dict[str, Any], name: str) -> None:
    with pytest.raises(PlanError, match=name):
        Plan(**values)


@pytest.mark.parametrize("text", STANDARD)
def test_standard_scenarios_are_plans(text: str) -> None:
    assert plan_of(text).scenario == text.partition(":")[0]


def test_scenario_with_settings() -> None:
    plan = plan_of("p2p:qos=2,rate=1.5,messages=7")
    assert (plan.qos, plan.rate, plan.messages, plan.quota) == (2, 1.5, 7, 2)
    with pytest.raises(PlanError, match=r"nonsense=1: allowed are .*window"):
        plan_of("p2p:nonsense=1")
    with pytest.raises(PlanError, match="qos=x: allowed is a whole number"):
        plan_of("p2p:qos=x")


def matches(topic_filter: str, topic: str) -> bool:
    levels, names = topic_filter.split("/"), topic.split("/")
    if levels[-1] == "#":
        levels, names = levels[:-1], names[: len(levels) - 1]
    return len(levels) == len(names) and all(level in ("+", name) for level, name in zip(levels, names, strict=True))


@pytest.mark.parametrize("text", ["p2p:publishers=4,subscribers=4", "fanout:subscribers=6", "wildcard:publishers=3,subscribers=6"])
def test_each_message_reaches_just_its_receivers(text: str) -> None:
    plan = plan_of(text)
    for publisher in range(plan.publishers):
        for topic in plan.topics_of(publisher):
            reached = [s for s in range(plan.subscribers) if matches(plan.filters_of(s)[0], topic)]
            assert len(reached) == plan.receivers
            assert {plan.source_of(subscriber) for subscriber in reached} == {publisher}


def test_receive_maximum_among_other_properties() -> None:
    properties = b"\x11\0\0\0\1\x1f\0\2ok\x26\0\1k\0\1v\x25\1\x21\0\x14\x2a\1"
    assert receive_maximum(properties) == 20
    assert receive_maximum(properties.replace(b"\x21\0\x14", b"")) == 65535


@pytest.mark.parametrize(
    ("placement", "workers", "of_subscribers"), [("same", 2, {0}), ("different", 2, {1}), ("different", 4, {1, 2, 3})]
)
def test_clients_go_to_the_workers_where_they_are_wanted(placement: str, workers: int, of_subscribers: set[int]) -> None:
    plan = Plan(publishers=30, subscribers=30, placement=placement, workers=workers)
    ids = {kind: [plan.id_of(kind, number) for number in range(30)] for kind in "ps"}
    assert len({*ids["p"], *ids["s"]}) == 60
    owners = {kind: {crc32(name.encode()) % PARTITIONS % workers for name in names} for kind, names in ids.items()}
    assert owners == {"p": {0}, "s": of_subscribers}


@pytest.mark.parametrize("verb", [[], *([verb] for verb in (*TEXTS, "compare", "report"))])
def test_every_verb_tells_what_it_takes(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([*verb, "--help"])
    assert "--help" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-h", "10.0.0.1", "-p", "5"], ("10.0.0.1", 5, False, False)),
        (["-h", "mqtt://10.0.0.1"], ("10.0.0.1", 1883, False, False)),
        (["-h", "mqtts://[::1]"], ("::1", 8883, True, False)),
        (["-h", "ws://broker.example:80/"], ("broker.example", 80, False, True)),
        (["--host=wss://broker.example"], ("broker.example", 8084, True, True)),
    ],
)
def test_a_url_as_host_sets_port_and_transport(options: list[str], expected: tuple[object, ...]) -> None:
    parser = Parser()
    add_connection(parser, Plan())
    parsed = parser.parse_args(options)
    assert (parsed.host, parsed.port, parsed.tls, parsed.ws) == expected


@pytest.mark.parametrize("url", ["http://broker.example", "unix:///run/mqtt", "mqtt://broker.example:no"])
def test_a_url_of_another_scheme_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["pub", "-h", url])
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert "must be HOST, or tcp://HOST:PORT (mqtt:// is the same), ssl:// (mqtts://)" in text and f"got {url}" in text
