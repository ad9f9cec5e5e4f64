"""The process flows in a broker with several workers: rules, republished messages, kills."""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shardbroker.flows.priority import NICE
from tests.flows.broker import REPUBLISH, RulesBroker, rule
from tests.harness import Client, Publish, client_id_on, until
from tests.harness.waiting import stopped

pytestmark = pytest.mark.own_broker
SQL = 'SELECT payload, qos, clientid FROM "in/a" WHERE payload.t > 10'


@pytest.fixture
def data_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        yield Path(name)


def publishers(broker: RulesBroker) -> list[Client]:
    return [Client(broker.address, 5, client_id_on(worker, broker.workers, f"p{worker}x")) for worker in range(broker.workers)]


def test_flows_gives_way_to_workers(data_dir: Path) -> None:
    """So do its threads."""
    with RulesBroker(1, data_dir) as broker:
        broker.define(rule("hot", SQL, REPUBLISH))
        (flows,), (worker,) = broker.child_pids("flows-0"), broker.child_pids("worker-0")
        assert os.getpriority(os.PRIO_PROCESS, flows) == min(os.getpriority(os.PRIO_PROCESS, worker) + NICE, 19)
        threads = [int(one) for one in os.listdir(f"/proc/{flows}/task")]
        assert {os.getpriority(os.PRIO_PROCESS, one) for one in threads} == {os.getpriority(os.PRIO_PROCESS, flows)}


def test_messages_are_republished_and_counted(data_dir: Path) -> None:
    with RulesBroker(2, data_dir) as broker, Client(broker.address, 5, "sub") as subscriber:
        subscriber.subscribe("out/#", 1)
        broker.define(rule("hot", SQL, REPUBLISH), rule("loop", 'SELECT payload FROM "in/#"', {
            "function": "republish", "args": {"topic": "in/again", "qos": 0},
        }))  # fmt: skip
        for client in publishers(broker):
            with client:
                client.publish("in/a", b'{"t": 11}', 1)
                client.publish("in/a", b'{"t": 9}', 1)
                client.publish("in/a", b"no json", 1)
                packet = subscriber.expect(Publish, topic=f"out/{client.client_id}", payload=b'{"t": 11}', qos=1)
                assert not packet.retain
        # `loop` sees what it has published itself, and passes over it; `hot` sees that too.
        until(lambda: broker.rule_figures("loop") == [6, 6, 0])

        until(lambda: broker.rule_figures("hot") == [6, 2, 4])


def rung(pid: int) -> set[str]:
    """Returns the doorbells that have been rung and not been answered."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/fdinfo").iterdir()]
    found = [re.search(r"eventfd-count:\s+(\w+)\neventfd-id: (\d+)", text) for text in texts]
    return {one[2] for one in found if one is not None and int(one[1], 16)}


@pytest.mark.parametrize("level", ["process", "machine"])
def test_a_worker_rings_for_rules(data_dir: Path, level: str) -> None:
    """The process is stopped, mostly while it sleeps, and so does not answer."""
    with RulesBroker(2, data_dir, {"durability.level": level}) as broker:
        broker.define(rule("one", 'SELECT * FROM "in/#"'), rule("two", 'SELECT * FROM "$events/client/ping"'))
        (flows,) = broker.child_pids("flows-0")

        def rings(cause: Callable[[], object]) -> bool:
            with stopped(flows):
                cause()
                for _ in range(20):  # doorbells of workers ring, too, and are answered
                    if not (before := rung(flows)) & rung(flows):
                        time.sleep(0.01)
                return bool(before & rung(flows))

        for worker in range(2):
            with Client(broker.address, 5, client_id_on(worker, 2, "rings")) as client:
                until(lambda client=client: rings(lambda: client.publish("in/x", b"x", 1)))  # type: ignore[misc]
                until(lambda client=client: rings(client.ping))  # type: ignore[misc]


def test_a_restart_goes_on_where_it_was_and_a_new_rule_begins_at_the_end(data_dir: Path) -> None:
    with (
        RulesBroker(2, data_dir) as broker,
        Client(broker.address, 5, "sub") as subscriber,
        Client(broker.address, 5, "pub") as client,
    ):
        client.publish("in/a", b'{"t": 11}', 1)
        broker.define(rule("hot", SQL, REPUBLISH))
        subscriber.subscribe("out/#", 1)
        client.publish("in/a", b'{"t": 12}', 1)
        subscriber.expect(Publish, payload=b'{"t": 12}')
        broker.kill_process(broker.child_pids("flows-0")[0])
        client.publish("in/a", b'{"t": 13}', 1)
        while subscriber.expect(Publish).payload != b'{"t": 13}':
            pass


def test_nothing_is_lost_when_flows_a_worker_and_the_broker_are_killed(data_dir: Path) -> None:
    expected: set[bytes] = set()
    with RulesBroker(2, data_dir) as broker:
        with Client(broker.address, 5, "sub", properties={"session_expiry_interval": 3600}) as subscriber:
            subscriber.subscribe("out/#", 1)
            broker.define(rule("hot", SQL, REPUBLISH))
            for victim in ("flows-0", "worker-1", ""):
                for client in publishers(broker):
                    with client:
                        for number in range(50):
                            payload = b'{"t": 20, "of": "%s %s %d"}' % (victim.encode(), client.client_id.encode(), number)
                            client.publish("in/a", payload, 1)
                            expected.add(payload)
                if victim:
                    broker.kill_process(broker.child_pids(victim)[0])
                    until(lambda victim=victim: broker.child_pids(victim))  # type: ignore[misc]
        broker.kill()
        broker.start()
        with Client(broker.address, 5, "sub", clean=False, properties={"session_expiry_interval": 3600}) as subscriber:
            missing = set(expected)
            while missing:
                missing.discard(subscriber.expect(Publish).payload)
