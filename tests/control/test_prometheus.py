"""What Prometheus scrapes: read by its official parser, and the same figures as the clients saw."""

import http.client
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from shardbroker.control import Control
from shm.counters import HISTOGRAMS, NAMES
from tests.harness import Broker, Client, Publish, client_id_on, free_port, until

pytestmark = pytest.mark.own_broker
ROOT = Path(__file__).parents[2]
PANELS, PAGE, ALERTS = ROOT / "docs/grafana-dashboard.json", ROOT / "docs/metrics.md", ROOT / "deploy/prometheus/alerts.yaml"

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, int]]:
    port = free_port()
    settings = {"prometheus.bind": f"127.0.0.1:{port}", "log.level": "warning"}
    with Broker(3, settings, tmp_path_factory.mktemp("scraped")) as broker:
        yield broker, port


def get(port: int, path: str = "/metrics", method: str = "GET") -> tuple[int, str, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    finally:
        connection.close()


def samples(text: str) -> Samples:
    """Every sample; a name that comes twice with the same labels is an error."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            key = one.name, tuple(sorted(one.labels.items()))
            assert key not in found, key
            found[key] = one.value
    return found


def plain(name: str) -> str:
    return "shardbroker_" + name.replace(".", "_")


def value(of: Samples, name: str) -> float:
    """Of a counter; the parser may give its name the ending that newer formats want."""
    return of[(f"{name}_total", ()) if (f"{name}_total", ()) in of else (name, ())]


def test_the_official_parser_reads_every_counter_of_every_worker(scraped: tuple[Broker, int]) -> None:
    status, content_type, text = get(scraped[1])
    assert status == 200 and content_type.startswith("text/plain; version=0.0.4")
    found = {(name.removesuffix("_total"), labels) for name, labels in samples(text)}
    for name in NAMES:
        assert (plain(name), ()) in found
        for worker in "012":
            assert (plain(name).replace("shardbroker_", "shardbroker_worker_"), (("worker", worker),)) in found
    assert {plain(name).removesuffix("_us") + "_seconds_sum" for name in HISTOGRAMS} <= {name for name, _ in found}


def test_the_figures_are_those_that_the_clients_saw(scraped: tuple[Broker, int]) -> None:
    broker, port = scraped
    before = samples(get(port)[2])
    with (
        Client(broker.address, 5, client_id_on(0, 3, "sub")) as subscriber,
        Client(broker.address, 5, client_id_on(1, 3, "pub")) as publisher,
    ):
        subscriber.subscribe("figures", 1)
        for _ in range(20):
            publisher.publish("figures", b"x", qos=1)
            subscriber.expect(Publish)
        after = samples(get(port)[2])
        assert after["shardbroker_connections_count", ()] == before["shardbroker_connections_count", ()] + 2
        for name in ("messages_qos1_received", "messages_qos1_sent", "messages_forward"):
            assert value(after, f"shardbroker_{name}") - value(before, f"shardbroker_{name}") >= 20
        hops = ("shardbroker_ring_hop_seconds_count", ())
        assert after[hops] > before[hops]


def test_a_histogram_grows_from_bound_to_bound_and_ends_with_its_count(scraped: tuple[Broker, int]) -> None:
    found = samples(get(scraped[1])[2])
    for metric in ("shardbroker_pass_seconds", "shardbroker_ring_hop_seconds"):
        buckets = sorted(
            (float(dict(labels)["le"]), value) for (name, labels), value in found.items() if name == f"{metric}_bucket"
        )
        values = [value for _, value in buckets]
        assert values == sorted(values) and values[-1] == found[f"{metric}_count", ()]
        assert buckets[-1][0] == float("inf")


def test_ctl_gives_the_same_text(scraped: tuple[Broker, int]) -> None:
    with Control(scraped[0].data_dir) as control:
        assert {name for name, _ in samples(control.call("prometheus"))} == {name for name, _ in samples(get(scraped[1])[2])}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/x", 404), ("POST", "/metrics", 405), ("HEAD", "/metrics", 200)],
)
def test_anything_but_metrics_is_refused(scraped: tuple[Broker, int], method: str, path: str, status: int) -> None:
    assert get(scraped[1], path, method)[0] == status


def test_every_metric_of_the_dashboard_is_there(scraped: tuple[Broker, int]) -> None:
    dashboard = json.loads(PANELS.read_text())
    texts = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert metrics_of(texts) <= names(scraped)


def test_every_metric_of_the_alerts_is_there(scraped: tuple[Broker, int]) -> None:
    """Those of clusters, gateways and connectors, which this broker has none of, are documented."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found = metrics_of(rule["expr"] for rule in group["rules"])
    others = re.compile(r"shardbroker_(cluster|gateway|connector|action)_")
    assert {name for name in found if not others.match(name)} <= names(scraped)
    assert {name for name in found if others.match(name)} <= documented()


def metrics_of(expressions: Iterable[str]) -> set[str]:
    found = {name for text in expressions for name in re.findall(r"shardbroker_\w+", text)}
    assert found
    return found


def names(scraped: tuple[Broker, int]) -> set[str]:
    return {form for name, _ in samples(get(scraped[1])[2]) for form in (name, name.removesuffix("_total"))}


def documented() -> set[str]:
    """Names in the table of docs/metrics.md, where `..._x` takes the place of the end of the name before it."""
    found: set[str] = set()
    for line in PAGE.read_text().splitlines():
        words: list[str] = []
        for name in re.findall(r"`(shardbroker_\w+|\.\.\._\w+)", line.split(" | ")[0]):
            if name.startswith("..."):
                found |= {"_".join(words[:count]) + name.removeprefix("...") for count in range(2, len(words))}
            else:
                words = name.split("_")
                found.add(name)
    return found


def test_figures_of_rules(scraped: tuple[Broker, int]) -> None:
    broker, port = scraped
    with Control(broker.data_dir) as control:
        control.call("rules create", id="counted", sql='SELECT payload.t AS t FROM "counted/#" WHERE payload.t > 1')
        with Client(broker.address, 5, "counts") as client:
            for number in range(4):
                client.publish("counted/x", b'{"t": %d}' % number, 1)
        labels = (("id", "counted"),)
        until(lambda: control.call("rules show", id="counted")["metrics"].get("matched") == 4)
        found = samples(get(port)[2])
        counts = [found[f"shardbroker_rule_{name}_total", labels] for name in ("matched", "passed", "failed_no_result")]
        assert counts == [4, 2, 2]
        assert found["shardbroker_rule_enable", labels] == 1
        assert found["shardbroker_rule_seconds_total", labels] > 0
        assert {key[1] for key in found if key[0] == "shardbroker_rules_lag_seconds"} == {(("journal", str(n)),) for n in range(3)}
        metrics = control.call("rules show", id="counted")["metrics"]
        assert 0 < metrics["matched.rate"] <= metrics["matched.rate.max"] and metrics["matched.rate.last5m"] > 0
        control.call("rules delete", id="counted")
    assert not [key for key in samples(get(port)[2]) if key[0].startswith("shardbroker_rule_")]
