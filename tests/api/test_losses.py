"""Messages that are lost: one figure of them wherever it is shown, by reason, and an alarm."""

from collections.abc import Iterator
from typing import Any

import pytest

from shardbroker.control import Control
from shardbroker.control.figures import Window
from tests.api.rest import ApiBroker, Rest
from tests.harness import Broker, Client, Publish, client_id_on, until

pytestmark = pytest.mark.own_broker
LOST = 300
STAY = {"session_expiry_interval": 60}


@pytest.fixture(scope="module")
def served() -> Iterator[ApiBroker]:
    with ApiBroker(
        2, {"mqtt.max_mqueue_len": 1, "acl.sources": '["builtin"]', "acl.no_match": "allow", "sys.msg_interval": "1s"}
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def rest(served: ApiBroker) -> Rest:
    return Rest.logged_in(served)


def overfill(broker: Broker, lost: int) -> None:
    """A client that is away loses so many messages of QoS 1. Seven without a subscription and seven with No Local are no losses."""
    with Client(broker.address, 5, client_id_on(0, 2, "away"), clean=True, properties=STAY) as away:
        away.subscribe("queue/full", 1)
        away.disconnect()
    with Client(broker.address, 5, client_id_on(1, 2, "sender")) as sender:
        sender.subscribe("own", 1, no_local=True)
        for _ in range(7):
            sender.publish("not/subscribed", b"", 1)
            sender.publish("own", b"", 1)
        for _ in range(1 + lost):
            sender.publish("queue/full", b"x", 1)


def lasting(rest: Rest) -> list[dict[str, Any]]:
    rows = rest.good("GET", "/alarms", activated=True)["data"]
    return [row for row in rows if row["name"] == "messages_lost"]


def test_one_figure_of_all_losses_by_reason_and_an_alarm(served: ApiBroker, rest: Rest) -> None:
    with Control(served.data_dir) as control:
        window = Window()
        window.feed(before := control.call("load"))
        assert rest.good("GET", "/monitor_current")["dropped_msg_rate"] == 0
        overfill(served, LOST)
        until(lambda: control.call("metrics")["delivery.dropped.queue_full"] == LOST)
        assert until(lambda: rest.good("GET", "/monitor_current")["dropped_msg_rate"])
        window.feed(after := control.call("load"))
        figures = window.figures()
        assert figures is not None
        seconds = (after["at_ns"] - before["at_ns"]) / 1e9
        assert figures["totals"]["lost"] * seconds == pytest.approx(LOST)
        assert figures["totals"]["losses"] == {"queue_full": pytest.approx(LOST / seconds)}
        assert sum(worker["lost"] for worker in figures["workers"]) == pytest.approx(figures["totals"]["lost"])
        status = control.call("status")
        assert (status["messages_lost"], status["losses"]) == (LOST, {"queue_full": LOST})
        text = control.call("prometheus")
        assert f'shardbroker_messages_lost{{reason="queue_full"}} {LOST}\n' in text
        assert 'shardbroker_messages_lost{reason="expired"} 0\n' in text
    assert rest.good("GET", "/metrics")[0]["messages.lost"] == LOST
    (sampled,) = until(lambda: [row for row in rest.good("GET", "/monitor") if row["dropped"]])
    assert (sampled["dropped"], sampled["losses"]) == (LOST, {"queue_full": LOST})
    (alarm,) = until(lambda: lasting(rest), timeout_s=15)
    assert alarm["details"]["reason"] == "queue_full" and "queue_full" in alarm["message"]
    until(lambda: "alarm activated name=messages_lost " in served.log)


def test_retained_messages_are_counted_without_those_of_the_broker(served: ApiBroker, rest: Rest) -> None:
    with Control(served.data_dir) as control, Client(served.address, 5) as client:
        client.subscribe("$SYS/brokers/+/version", 0)
        client.expect(Publish)  # it is retained, with many others below $SYS
        client.unsubscribe("$SYS/brokers/+/version")
        assert control.call("status")["retained"] == 0
        client.publish("kept", b"x", 1, retain=True)
        until(lambda: control.call("status")["retained"] == 1)
        assert rest.good("GET", "/stats")[0]["retained.count"] == 1
