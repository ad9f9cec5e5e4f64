"""What all clients of a listener, or of the broker, may publish together: whoever can be told is refused, others are slowed."""

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from shm.counters import Counters
from tests.edge.conftest import Edge
from tests.harness import Client, client_id_on, wire

pytestmark = pytest.mark.own_broker
QUOTA_EXCEEDED = 0x97
SECOND_NS = 10**9


def test_a_shared_bucket_leaks_at_the_rate_and_holds_a_second(tmp_path: Path) -> None:
    """Two views of the same bucket, as two processes have them."""
    counters = Counters.create(str(tmp_path / "counters"), 1, 1)
    try:
        mine, theirs = counters.bucket(3, 10.0), Counters.attach(counters.name).bucket(3, 10.0)
        now = 1_000 * SECOND_NS
        for number in range(12):
            assert (mine.over(now) == 0) == (number <= 10)
            (mine, theirs)[number % 2].fill(now, 1)
        assert theirs.over(now) == pytest.approx(0.2 * SECOND_NS)
        assert mine.over(now + SECOND_NS // 5) == 0
        assert theirs.over(now + 3600 * SECOND_NS) == 0
        theirs.fill(now + 3600 * SECOND_NS, 10)
        assert mine.over(now + 3600 * SECOND_NS) == 0, "a quiet hour saves up no more than a second"
        assert counters.bucket(4, 10.0).over(now) == 0, "its neighbour is empty"
        with pytest.raises(IndexError):
            counters.bucket(384, 1.0)
    finally:
        counters.unlink()


def come(broker: Edge, listener: str, version: int, client_id: str, **options: Any) -> Client:
    return Client(broker.address, version, client_id, dial=lambda: socket.create_connection(broker.at(listener), 5), **options)


def count(broker: Edge, name: str) -> int:
    (instance,) = broker._instances
    return int(Counters.attach(f"/dev/shm/shardbroker-{instance}/counters").totals()[name])


@pytest.mark.parametrize("limit", [{"limiter.messages_rate": "20/s"}, {"limiter.bytes_rate": "20KB/s"}], ids=str)
def test_clients_of_all_workers_share_what_their_listener_may(limit: dict[str, str]) -> None:
    """5.0, QoS 1 and 2: the rate and a second's worth more is taken, the rest gets 0x97. Other listeners' clients feel nothing."""
    with Edge({"few": limit, "free": {}}, 2) as own:
        clients = [come(own, "few", 5, client_id_on(worker, 2, "few")) for worker in (0, 1)]
        free = come(own, "free", 5, "free")
        codes: list[int] = []
        began = time.monotonic()
        for number in range(60):
            for client in clients:
                ack = client.publish("t", b"x" * 1000, 1 + number % 2)
                assert ack is not None
                codes.append(ack.code)
        took = time.monotonic() - began
        taken = sum(code < 0x80 for code in codes)
        assert 15 <= taken <= 20 * (took + 1) + 3
        assert set(codes) <= {0, 0x10, QUOTA_EXCEEDED} and codes.count(QUOTA_EXCEEDED) == len(codes) - taken > 0
        assert count(own, "packets.publish.quota_exceeded") == len(codes) - taken
        for _ in range(100):
            assert free.publish("t", b"x" * 1000, 1).code in (0, 0x10)  # type: ignore[union-attr]
        for client in (*clients, free):
            client.close()


@pytest.mark.parametrize(("version", "qos"), [(4, 1), (4, 2), (5, 0)])
def test_who_cannot_be_told_is_read_more_slowly_and_nothing_is_lost(version: int, qos: int) -> None:
    with Edge({"few": {"limiter.messages_rate": "50/s"}}, 2) as own, Client(own.address, 5, "watcher", timeout=20) as watcher:
        watcher.subscribe("t", 1)
        clients = [come(own, "few", version, client_id_on(worker, 2, "few"), timeout=20) for worker in (0, 1)]
        began = time.monotonic()
        for number in range(75):
            for client in clients:
                client.publish("t", b"%d" % number, qos, wait=False)
        got = [watcher.expect(wire.Publish).payload for _ in range(150)]
        for client in clients:
            client.ping()
        took = time.monotonic() - began
        assert sorted(got) == sorted(b"%d" % number for number in range(75) for _ in clients)
        assert took > 1.0  # three seconds' worth, of which one may come at once
        assert count(own, "packets.publish.quota_exceeded") == 0 < count(own, "overload.rate_paused")
        for client in clients:
            client.close()


def test_a_limit_for_all_listeners() -> None:
    with (
        Edge({"other": {}}, 2, {"mqtt.limiter.messages_rate": "10/s"}) as own,
        come(own, "other", 5, "one") as one,
        Client(own.address, 5, "two") as two,
    ):
        codes = [client.publish("t", b"", 1).code for _ in range(15) for client in (one, two)]  # type: ignore[union-attr]
        assert QUOTA_EXCEEDED in codes[::2] and QUOTA_EXCEEDED in codes[1::2]
        time.sleep(1.2)
        assert one.publish("t", b"", 1).code != QUOTA_EXCEEDED  # type: ignore[union-attr]


def test_connections_a_second_of_all_listeners() -> None:
    """Those above it wait; nobody is refused. An acceptor has its share of it."""
    with Edge({"other": {}}, 1, {"mqtt.limiter.max_conn_rate": "20/s", "process.acceptors": 1}) as own:
        began = time.monotonic()
        for number in range(25):
            for listener in ("other", "default"):
                address = own.address if listener == "default" else own.at(listener)
                Client(address, 5, f"{listener}{number}").close()
        assert time.monotonic() - began > 1.0
