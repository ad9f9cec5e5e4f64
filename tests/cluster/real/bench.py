"""What a cluster costs its clients, with real brokers over loopback or a network with delays: `python -m tests.cluster.real.bench`.

    takeover    CONNECT to CONNACK of a client whose session is at the other node, also with 1000 queued messages of 1 KB
    claim       CONNECT to CONNACK of new clients, with and without `cluster.registry`
    suback      SUBSCRIBE to SUBACK with `cluster.suback` cluster and local; behind a local one, until a peer has the route
    message     PUBLISH at one node to its arrival at another, one at a time, and between two workers of one node
    spool       messages for a node that was down, from its return until all are in the queue of their session; --count 10000, since
                what is sent while it starts is not measured
    idle        CPU time of three nodes without clients

Times are those of a client in Python, so upper bounds. With --delay-ms each packet between nodes is delayed by so much, by
tests/cluster/real/switch.py (as root), which itself costs some 0.1 ms a packet.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count

import psutil

from tests.cluster.real.moves import KEPT, MOVING
from tests.cluster.real.network import Network
from tests.cluster.real.nodes import HOST, Nodes, running
from tests.harness import client_id_on, wire
from tests.harness.waiting import until

QUEUED, QUEUED_BYTES = 1_000, 1_024
BATCH = 100
IDLE_S = 20.0
SPOOL_S = 300.0


def _show(what: str, times_s: Sequence[float]) -> None:
    ordered = sorted(times_s)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    figures = f"p50 {p50 * 1000:.2f} ms, p99 {p99 * 1000:.2f} ms, most {ordered[-1] * 1000:.2f} ms"
    print(f"{what}: {figures}, {len(ordered)} times", flush=True)


def _timed(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


@contextmanager
def _nodes(given: argparse.Namespace, number: int = 2, **settings: object) -> Iterator[Nodes]:
    settings = {"mqtt.max_mqueue_len": 0, **settings}
    if not given.delay_ms:
        with running(number, workers=2, **settings) as nodes:
            _linked(nodes)
            yield nodes
        return
    with closing(Network(number)) as network, running(number, workers=2, network=network, **settings) as nodes:
        network.slow(given.delay_ms / 1000)
        _linked(nodes)
        yield nodes


def _linked(nodes: Nodes) -> None:
    for number in nodes.brokers:
        nodes.await_links(number, **{f"n{peer}": "up" for peer in nodes.brokers if peer != number})


def _fill(nodes: Nodes, node: int, topic: str, messages: int, size: int) -> None:
    """Publishes messages of QoS 1, many at a time."""
    with nodes.connect(node, "filler", timeout=60) as client:
        for first in range(0, messages, BATCH):
            ids = [client.next_id() for _ in range(min(BATCH, messages - first))]
            client.send_raw(b"".join(wire.publish(topic, bytes(size), version=5, qos=1, packet_id=one) for one in ids))
            for _ in ids:
                client.expect(wire.Puback, 60)


def takeover(given: argparse.Namespace) -> None:
    with _nodes(given, **MOVING) as nodes:
        with nodes.connect(1, "mover", clean=False, properties=KEPT) as client:
            client.subscribe("t/#", 1)
        times = []
        for number in range(given.count):
            begin = time.monotonic()
            with nodes.connect(2 - number % 2, "mover", clean=False, properties=KEPT, timeout=20) as client:
                times.append(time.monotonic() - begin)
                assert client.connack is not None and client.connack.session_present
        _show("takeover", times)
        times = []
        for number in range(max(1, given.count // 50)):
            _fill(nodes, 1, "t/1", QUEUED, QUEUED_BYTES)
            begin = time.monotonic()
            with nodes.connect(1 + number % 2, "mover", clean=False, properties=KEPT, timeout=20) as client:
                client.expect(wire.Publish, 20)
                times.append(time.monotonic() - begin)
                for _ in range(QUEUED - 1):
                    client.expect(wire.Publish, 20)
                client.ping()
        _show(f"takeover with {QUEUED} messages of {QUEUED_BYTES} B, up to the first of them", times)


def claim(given: argparse.Namespace) -> None:
    for registry in ("off", "on"):
        with _nodes(given, **{"cluster.registry": registry}) as nodes:
            times = []
            for number in range(given.count):
                begin = time.monotonic()
                with nodes.connect(1, f"new-{number}", clean=False, properties=KEPT):
                    times.append(time.monotonic() - begin)
            _show(f"CONNECT of a new client, registry {registry}", times)
            times = []
            for number in range(given.count):
                begin = time.monotonic()
                with nodes.connect(1, f"new-{number}", clean=False, properties=KEPT):
                    times.append(time.monotonic() - begin)
            _show(f"CONNECT of a client that returns, registry {registry}", times)


def suback(given: argparse.Namespace) -> None:
    for mode in ("local", "cluster"):
        with _nodes(given, **{"cluster.suback": mode}) as nodes, nodes.connect(1, "subscriber", timeout=20) as client:
            times = [_timed(lambda number=number: client.subscribe(f"s/{number}", 1)) for number in range(given.count)]
            _show(f"SUBSCRIBE to SUBACK, suback {mode}", times)
            late = nodes.counters(1).get("suback.late", 0)
            print(f"late: {late} of {given.count}", flush=True)
            if mode == "cluster":
                continue
            times = []
            with nodes.connect(2, "publisher", timeout=20) as publisher:
                for number in range(given.count):
                    client.subscribe(f"u/{number}", 0)
                    acked = time.monotonic()
                    sent = []
                    for payload in count():
                        sent.append(time.monotonic())
                        publisher.publish(f"u/{number}", b"%d" % payload)
                        packet = client.recv(0.0005)
                        if isinstance(packet, wire.Publish) and packet.topic == f"u/{number}":
                            times.append(sent[int(packet.payload)] - acked)
                            break
                    while client.recv(0.005) is not None:
                        pass
            _show("from a local SUBACK to the first PUBLISH at the peer that arrives", times)


def message(given: argparse.Namespace) -> None:
    with _nodes(given) as nodes:
        for what, node, worker in (("another node", 2, 0), ("another worker", 1, 1)):
            times = []
            with (
                nodes.connect(node, client_id_on(worker, 2, "subscriber"), timeout=20) as client,
                nodes.connect(1, client_id_on(0, 2, "publisher"), timeout=20) as publisher,
            ):
                client.subscribe("m", 0)
                for _ in range(given.count):
                    begin = time.monotonic()
                    publisher.publish("m", bytes(200))
                    client.expect(wire.Publish, 20)
                    times.append(time.monotonic() - begin)
            _show(f"PUBLISH to its arrival at {what}", times)


def spool(given: argparse.Namespace) -> None:
    messages = given.count * 100
    with _nodes(given) as nodes:
        with nodes.connect(2, "absent", clean=False, properties=KEPT) as client:
            client.subscribe("q", 1)
        nodes.brokers[2].kill()
        until(lambda: nodes.links(1).get(f"n2@{HOST}") != "up", timeout_s=20)
        begin = time.monotonic()
        _fill(nodes, 1, "q", messages, 200)
        print(f"{messages} messages into the spool: {messages / (time.monotonic() - begin):.0f} a second", flush=True)
        nodes.start([2])
        begin = time.monotonic()

        def queued() -> int:
            return nodes.counters(2).get("mqueue.count", 0)

        until(lambda: queued() >= messages, lambda: str(queued()), SPOOL_S)
        took_s = time.monotonic() - begin
        print(f"from the return of the node to the last message: {took_s:.2f} s, {messages / took_s:.0f} a second", flush=True)


def idle(given: argparse.Namespace) -> None:
    with _nodes(given, 3) as nodes:
        time.sleep(5)

        def used() -> dict[int, float]:
            found = {}
            for number, broker in nodes.brokers.items():
                processes = [psutil.Process(broker.pid), *broker.children()]
                found[number] = sum(sum(one.cpu_times()[:2]) for one in processes)
            return found

        before = used()
        time.sleep(IDLE_S)
        shares = [(after - before[number]) / IDLE_S * 100 for number, after in used().items()]
        print("idle: " + ", ".join(f"{share:.2f} %" for share in shares) + " of a core", flush=True)


BENCHES: dict[str, Callable[[argparse.Namespace], None]] = {
    one.__name__: one for one in (takeover, claim, suback, message, spool, idle)
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.real.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", choices=[[], *BENCHES], help="all of them without one")
    parser.add_argument("--count", type=int, default=1_000, help="of each; spool: messages by the hundred")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way; 0: over loopback")
    given = parser.parse_args()
    for name in given.what or BENCHES:
        BENCHES[name](given)


if __name__ == "__main__":
    main()
