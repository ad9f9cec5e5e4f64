"""CPU of a bridge between two brokers of this kind, at both ends: `python -m tests.flows.bench_bridge --messages 500000`.

The messages are in the journal of the sending broker before the receiving one is started, so the bridge is as fast as it
can be. The CPU is that of the process flows of either side, and of the worker that publishes at the receiving side.
"""

import argparse
import tempfile
import time
from pathlib import Path

import psutil

from tests.flows.bridges.test_shardbroker import ACTION, receiving, sending
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import publish_all
from tests.harness.broker import free_port

PART = 50_000
LIMIT_S = 300.0


def cpu_s(broker: SinksBroker, name: str) -> float:
    """Returns the CPU time of processes of a broker, seconds."""
    found = [psutil.Process(pid).cpu_times() for pid in broker.child_pids(name)]
    return sum(one.user + one.system for one in found)


def run(messages: int, size: int) -> None:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        place = Path(name)
        with SinksBroker(1, place / "near", sending(port, "in/#")) as near:
            payload = b"x" * size
            for begin in range(0, messages, PART):
                publish_all(near.address, 0, 1, [payload] * min(PART, messages - begin))
            with SinksBroker(1, place / "far", receiving(port)) as far:
                watched = (near, "flows-0"), (far, "flows-0"), (far, "worker-0")
                before = [cpu_s(*one) for one in watched]
                begin_s = last_s = time.monotonic()
                done = first = near.action(ACTION).get("success", 0)
                while done < messages and time.monotonic() - begin_s < LIMIT_S:
                    time.sleep(0.2)
                    found = near.action(ACTION).get("success", 0)
                    if done == first and found > first:
                        begin_s = time.monotonic() - 1.0  # figures are written once a second
                    if found > done:
                        done, last_s = found, time.monotonic()
                spent = [cpu_s(*one) - former for one, former in zip(watched, before, strict=True)]
    rate = (done - first) / max(last_s - begin_s, 0.001)
    sender, receiver, worker = (1e6 * one / max(done - first, 1) for one in spent)
    print(f"{done} messages of {size} bytes, about {rate:,.0f} a second")
    print(f"CPU a message: sending flows {sender:.2f} µs, receiving flows {receiver:.2f} µs, receiving worker {worker:.2f} µs")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.bench_bridge", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    given = parser.parse_args()
    run(given.messages, given.size)


if __name__ == "__main__":
    main()
