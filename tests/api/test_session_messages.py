"""Messages that wait for a client, and those that it has not acknowledged."""

import base64
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from shardbroker.control import Control, ControlError
from tests.api.rest import ApiBroker, Rest
from tests.harness import Client, Publish, client_id_on, until

pytestmark = pytest.mark.own_broker
EXPIRY = {"session_expiry_interval": 3600}


@pytest.fixture
def come(served: ApiBroker) -> Iterator[Callable[..., Client]]:
    with ExitStack() as stack:
        yield lambda name, version=5, **options: stack.enter_context(Client(served.address, version, name, **options))


def away(come: Callable[..., Client], name: str, topic: str) -> None:
    """A client that has subscribed and is not there."""
    client = come(name, clean=True, properties=EXPIRY)
    client.subscribe(topic, 2)
    client.close()


def pages(rest: Rest, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    """All pages up to the empty one, as a program for EMQX reads them."""
    found = []
    position = "none"
    while True:
        page = rest.good("GET", path, position=position, **query)
        assert page["meta"]["start"] == position
        if not page["data"]:
            assert page["meta"]["hasnext"] is False
            return found
        found.append(page["data"])
        position = page["meta"]["position"]


def test_what_waits_for_a_client(rest: Rest, come: Callable[..., Client]) -> None:
    name = client_id_on(1, 3, "waits/for")
    away(come, name, "waiting/#")
    publisher = come(client_id_on(2, 3, "waiting-p"))
    for number in range(25):
        publisher.publish(f"waiting/{number}", f"payload {number}".encode(), qos=1 + number % 2)
    path = f"/clients/{name.replace('/', '%2F')}/mqueue_messages"
    until(lambda: len(rest.good("GET", path)["data"]) == 25)
    whole = rest.good("GET", path)
    assert [row["topic"] for row in whole["data"]] == [f"waiting/{number}" for number in range(25)]
    first = whole["data"][0]
    assert (first["qos"], first["retain"], first["from_clientid"], first["payload_size"]) == (1, False, publisher.client_id, 9)
    assert base64.b64decode(first["payload"]) == b"payload 0" and len(first["msgid"]) == 32 and first["mqueue_priority"] == 0
    assert first["publish_at"].endswith("Z") and first["expires_at"] is None and whole["meta"]["hasnext"] is False
    read = pages(rest, path, limit=10, payload="plain")
    assert [len(page) for page in read] == [10, 10, 5]
    assert [row["payload"] for page in read for row in page] == [f"payload {number}" for number in range(25)]
    assert all("payload" not in row for page in pages(rest, path, payload="none") for row in page)
    small = pages(rest, path, max_payload_bytes=128)
    sizes = [[len(row["topic"]) + row["payload_size"] for row in page] for page in small]
    assert sum(map(len, small)) == 25 and all(sum(page) - page[-1] < 128 <= sum(page) for page in sizes[:-1])
    position = rest.good("GET", path, limit=10)["meta"]["position"]
    client = come(name, clean=False, properties=EXPIRY)
    for _ in range(25):
        client.expect(Publish)
    assert rest.good("GET", path, position=position)["data"] == [], "the page before has been delivered"
    client.disconnect()


def test_positions_move_with_the_queue(rest: Rest, served: ApiBroker, come: Callable[..., Client]) -> None:
    """The oldest messages are dropped between two pages: the next page is behind the one before nevertheless."""
    name = "moves"
    away(come, name, "moving")
    rest.good("PUT", "/configs/mqtt", {"max_mqueue_len": 20})
    try:
        publisher = come("moving-p")
        for number in range(20):
            publisher.publish("moving", str(number).encode(), qos=1)
        path = f"/clients/{name}/mqueue_messages"
        until(lambda: len(rest.good("GET", path)["data"]) == 20)
        position = rest.good("GET", path, limit=10)["meta"]["position"]
        for number in range(20, 25):
            publisher.publish("moving", str(number).encode(), qos=1)
        until(lambda: rest.good("GET", path, payload="plain")["data"][-1]["payload"] == "24")
        rows = rest.good("GET", path, position=position, payload="plain")["data"]
        assert [row["payload"] for row in rows] == [str(number) for number in range(10, 25)]
        for number in range(25, 60):
            publisher.publish("moving", str(number).encode(), qos=1)
        until(lambda: rest.good("GET", path, payload="plain")["data"][-1]["payload"] == "59")
        rows = rest.good("GET", path, position=position, payload="plain")["data"]
        assert [row["payload"] for row in rows] == [str(number) for number in range(40, 60)], "its message is gone"
    finally:
        rest.good("POST", "/configs_reset/mqtt.max_mqueue_len")
        rest.good("DELETE", f"/clients/{name}")


def test_what_a_client_has_not_acknowledged(rest: Rest, come: Callable[..., Client]) -> None:
    client = come("flies", auto_ack=False, properties={**EXPIRY, "receive_maximum": 4})
    client.subscribe("flying/#", 2)
    publisher = come("flying-p")
    for number in range(6):
        publisher.publish(f"flying/{number}", b"\xff\0", qos=1 + number % 2)
    sent = [client.expect(Publish) for _ in range(4)]
    path = "/clients/flies/inflight_messages"
    rows = until(lambda: rows if len(rows := rest.good("GET", path)["data"]) == 4 else None)
    assert [(row["packet_id"], row["topic"], row["qos"]) for row in rows] == [(one.packet_id, one.topic, one.qos) for one in sent]
    assert [row["awaits"] for row in rows] == ["puback", "pubrec"] * 2
    assert rows[0]["inserted_at"].endswith("Z") and base64.b64decode(rows[0]["payload"]) == b"\xff\0"
    assert rest.good("GET", path, payload="plain", limit=1)["data"][0]["payload"] == "\ufffd\0"
    assert [len(page) for page in pages(rest, path, limit=3)] == [3, 1]
    waiting = rest.good("GET", "/clients/flies/mqueue_messages")["data"]
    assert [row["topic"] for row in waiting] == ["flying/4", "flying/5"]
    client.send_raw(b"\x50\x02" + sent[1].packet_id.to_bytes(2, "big"))  # PUBREC
    row = until(lambda: row if (row := rest.good("GET", path)["data"][1])["awaits"] == "pubcomp" else None)
    assert set(row) == {"packet_id", "awaits", "inserted_at"} and row["packet_id"] == sent[1].packet_id
    rest.good("DELETE", "/clients/flies")


def test_one_client_is_not_asked_for_at_all_nodes(served: ApiBroker) -> None:
    """The node that has the client answers; rows of several nodes would be those of none."""
    with Control(served.data_dir, of_all_nodes=True) as control, pytest.raises(ControlError) as refused:
        control.call("sessions queue", clientid="x")
    assert refused.value.code == "BAD_REQUEST"


@pytest.mark.parametrize(
    "query",
    [
        {"position": "x"}, {"position": "gwEBQQ"}, {"position": "gxv__________wBA"}, {"position": "gwA7f____________0A"},
        {"limit": 0}, {"limit": 1001}, {"payload": "hex"}, {"max_payload_bytes": 1}, {"page": 1},
    ],
)  # fmt: skip
def test_wrong_queries_are_refused(rest: Rest, come: Callable[..., Client], query: dict[str, Any]) -> None:
    come("asked-for")
    for path in ("mqueue_messages", "inflight_messages"):
        assert rest.refused("GET", f"/clients/asked-for/{path}", **query) == (400, "BAD_REQUEST")
        assert rest.refused("GET", f"/clients/not-there/{path}")[0] == 404
        assert rest.good("GET", f"/clients/asked-for/{path}") == {
            "data": [], "meta": {"start": "none", "position": "none", "hasnext": False},
        }  # fmt: skip
