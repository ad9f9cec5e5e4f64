"""Kills under load: `python -m tests.flows.kills --kills 50`. Each acknowledged message has to be republished; repeats count."""

import argparse
import random
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from tests.flows.broker import REPUBLISH, RulesBroker, rule
from tests.harness import Client, Closed, Publish, client_id_on, until

VICTIMS = ("flows-0", "flows-0", "worker-0", "worker-1")
PAUSE_S = 0.5
QUIET_S = 15.0
"""Without a message for so long, none comes any more."""


def publish(broker: RulesBroker, worker: int, sent: list[bytes], stop: threading.Event) -> None:
    """Publishes at QoS 1 until `stop`; what is not acknowledged is not expected."""
    while not stop.is_set():
        try:
            with Client(broker.address, 5, client_id_on(worker, broker.workers, f"p{worker}x")) as client:
                while not stop.is_set():
                    payload = b'{"t": 20, "n": "%d %d"}' % (worker, len(sent))
                    client.publish("in/a", payload, 1)
                    sent.append(payload)
        except (Closed, OSError, AssertionError):
            time.sleep(0.05)


def run(kills: int, data_dir: Path) -> int:
    """Returns how many messages are missing."""
    sent: list[list[bytes]] = [[], []]
    stop = threading.Event()
    with RulesBroker(2, data_dir, {"mqtt.max_mqueue_len": 0}) as broker:
        properties = {"session_expiry_interval": 3600}
        with Client(broker.address, 5, "sub", properties=properties) as subscriber:
            subscriber.subscribe("out/#", 1)
        broker.define(rule("hot", 'SELECT payload, qos, clientid FROM "in/a" WHERE payload.t > 10', REPUBLISH))
        threads = [threading.Thread(target=publish, args=(broker, worker, sent[worker], stop)) for worker in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            time.sleep(PAUSE_S * random.random())
            victim = random.choice(VICTIMS)
            until(lambda victim=victim: broker.child_pids(victim))  # type: ignore[misc]
            broker.kill_process(broker.child_pids(victim)[0])
        stop.set()
        for thread in threads:
            thread.join()
        got: Counter[bytes] = Counter()
        missing = {*sent[0], *sent[1]}
        until(lambda: len(broker.child_pids("worker")) == 2)
        with Client(broker.address, 5, "sub", clean=False, properties=properties, timeout=QUIET_S) as subscriber:
            while missing and isinstance(packet := subscriber.recv(), Publish):
                got[packet.payload] += 1
                missing.discard(packet.payload)
    acknowledged, repeated = len(sent[0]) + len(sent[1]), got.total() - len(got)
    print(f"{kills} kills, {acknowledged} acknowledged, {len(missing)} missing, {repeated} repeated")
    return len(missing)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        return 1 if run(given.kills, Path(name)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
