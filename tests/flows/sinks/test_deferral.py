"""A rule whose only action is behind the live stream counts each message once, whoever evaluates it (flows/deferral.py)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import numbered, publish_all
from tests.flows.sinks.service import Service
from tests.harness import until

pytestmark = pytest.mark.own_broker
WORKERS = 2
ROUNDS, ROUND = 10, 1000
BUFFER = 50
"""Rows in memory: the action leaves the live stream in each round."""
OPTIONS = {"buffer_records": BUFFER, "batch_size": 10, "worker_pool_size": 1, "health_check_interval": "1s"}


@contextmanager
def broker_with(place: Path, service: Service, **rules: dict[str, Any]) -> Iterator[SinksBroker]:
    sections: dict[str, dict[str, Any]] = {"connectors.http.service": {"url": service.url}}
    for name in ("one", "two"):
        sections[f"actions.http.{name}"] = {
            "connector": "service", "parameters": {"path": f"/{name}", "batch": True}, "resource_opts": OPTIONS
        }  # fmt: skip
    sections |= {f"rules.{name}": rule for name, rule in rules.items()}
    with SinksBroker(WORKERS, place / "data", sections, {"flows.processes": 1}) as broker:
        yield broker


def only(**more: object) -> dict[str, Any]:
    return {"sql": 'SELECT payload.n AS n FROM "in/#" WHERE payload.n mod 4 <> 1', "actions": ["http:one"], **more}


def publish_round(broker: SinksBroker, number: int) -> None:
    payloads = numbered("c", range(number * ROUND, (number + 1) * ROUND))
    for worker in range(WORKERS):
        publish_all(broker.address, worker, WORKERS, payloads)


def check(broker: SinksBroker, rule: str = "only", rounds: int = ROUNDS) -> None:
    """All rows have arrived, none waits, and then the figures are exact."""
    sent = WORKERS * ROUND * rounds
    until(lambda: broker.action("http:one").get("success", 0) >= sent * 3 // 4, lambda: str(broker.action("http:one")), 60)
    until(lambda: broker.action("http:one")["lag_records"] == 0 and broker.action("http:one")["queuing"] == 0, timeout_s=60)
    until(lambda: broker.rule_figures(rule) == [sent, sent * 3 // 4, sent // 4], lambda: str(broker.rule_figures(rule)), 60)
    until(lambda: broker.rule_figures(rule, ["actions.total", "actions.success"]) == [sent * 3 // 4] * 2, timeout_s=60)


def found_once(service: Service, rounds: int = ROUNDS) -> None:
    numbers = [row["n"] for row in service.rows()]
    assert set(numbers) == {n for n in range(ROUND * rounds) if n % 4 != 1}


def test_each_message_is_counted_once(place: Path) -> None:
    """The action leaves the live stream and joins it, several times, in two journals."""
    with Service(place) as service, broker_with(place, service, only=only()) as broker:
        for number in range(ROUNDS):
            publish_round(broker, number)
        check(broker)
        found_once(service)


def test_also_if_the_server_is_gone_for_a_while(place: Path) -> None:
    """The rule goes on meanwhile: what it has matched does not wait for its server."""
    with Service(place) as service, broker_with(place, service, only=only()) as broker:
        for number in range(ROUNDS):
            if number % 3 == 1:
                service.kill()
            publish_round(broker, number)
            if number % 3 == 2:
                service.start()
        service.start()
        check(broker)
        found_once(service)


def test_a_traced_rule_is_traced_as_it_is_evaluated(place: Path) -> None:
    with Service(place) as service, broker_with(place, service, only=only()) as broker:
        for number in range(ROUNDS):
            if number in (2, 6):
                with Control(broker.data_dir) as control:
                    control.call("trace start", name=f"t{number}", type="ruleid", value="only", formatter="json")
            if number == 4:
                with Control(broker.data_dir) as control:
                    control.call("trace stop", name="t2")
            publish_round(broker, number)
        check(broker)
        with Control(broker.data_dir) as control:
            text = control.call("trace read", name="t6")["data"].decode()
        assert '"matched"' in text or '"lost"' in text, "5,000 events a second are written, others are counted"


def test_rules_with_other_actions_and_a_changed_one(place: Path) -> None:
    """A rule that sends to two actions counts in the live stream; one that gets another action meanwhile begins anew."""
    both = only(actions=["http:one", "http:two"])
    with Service(place) as service, broker_with(place, service, only=only(), both=both) as broker:
        for number in range(ROUNDS):
            publish_round(broker, number)
        sent = WORKERS * ROUND * ROUNDS
        until(lambda: broker.rule_figures("both") == [sent, sent * 3 // 4, sent // 4], lambda: str(broker.rule_figures("both")), 60)
        until(lambda: broker.rule_figures("only") == [sent, sent * 3 // 4, sent // 4], lambda: str(broker.rule_figures("only")), 60)
        broker.change(**{"rules.only": only(actions=["http:one", "http:two"])})
        until(lambda: broker.rule_figures("only") == [0, 0, 0])
        publish_round(broker, 0)
        until(lambda: broker.rule_figures("only")[0] == WORKERS * ROUND)
        until(lambda: broker.rule_figures("both")[0] == sent + WORKERS * ROUND)
