"""Measures how many connections a broker holds at once, and their cost: `python -m perf.crowd CONNECTIONS`.

The test starts the broker, connects that many clients with a subscription each to a topic of its own, holds them with keepalives
answered, publishes to one in a hundred of them meanwhile, and disconnects all. It prints one line of JSON, and ends early if memory
gets short. Descriptors and ports decide on the number of load processes and of local addresses (127.0.0.2 and on).
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perf.engine import LoadError
from perf.fleet import SPARE_DESCRIPTORS
from perf.launch import launched
from perf.measure import FAULTS, run_plan
from perf.plan import Plan, PlanError
from perf.usage import measure

__all__ = ["main"]

ONE_IN = 100
"""One of so many clients gets a message."""
KEEPALIVE_S = 300
PER_ADDRESS = 14_000
"""Connections from one local address: half of its ports, as the kernel searches long for the last free ones."""
SETTLED_S = 10.0
"""Seconds from the last connect to the first sample of CPU time."""
SAMPLE_S = 1.0
MEMORY = ("MemAvailable", "Slab", "SUnreclaim", "PageTables")
Sample = dict[str, float]


class Watch:
    """Samples memory and CPU time while clients connect, are held and disconnect; publishes after half of the time."""

    def __init__(self, pid: int, publish: list[str], hold_s: float, least_free: int) -> None:
        self.pid, self.publish, self.hold_s, self.least_free = pid, publish, hold_s, least_free
        self.samples: list[Sample] = [_sample(pid)]
        self.publisher: subprocess.Popen[bytes] | None = None
        self.idle: tuple[Sample, Sample] | None = None
        self.fullest: Sample = self.samples[0]
        self._from: Sample | None = None

    def __call__(self, snapshot: dict[str, float]) -> None:
        now = time.monotonic()
        if now - self.samples[-1]["at"] < SAMPLE_S:
            return
        self.samples.append(_sample(self.pid) | {"opened": snapshot["opened"], "gone": snapshot["gone"]})
        if self.samples[-1]["MemAvailable"] < self.least_free:
            raise LoadError(
                f"{snapshot['opened']:,.0f} clients are connected, and only {self.samples[-1]['MemAvailable']:,.0f} bytes free"
            )
        if not snapshot["running"]:
            return
        if self._from is None and snapshot["elapsed"] > SETTLED_S:
            self._from = self.fullest = self.samples[-1]
        if self.publisher is None and self._from is not None and snapshot["elapsed"] > self.hold_s / 2:
            self.idle = (self._from, self.samples[-1])
            self.publisher = subprocess.Popen(self.publish, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m perf.crowd", description=__doc__)
    own = Path(sys.executable).with_name("shardbroker")
    options = "--listen tcp://127.0.0.1:{port} --data-dir {dir} --set log.level=warning --set api.bind=disabled"
    parser.add_argument("connections", type=int)
    parser.add_argument("--hold", type=float, default=120.0, metavar="S", help="seconds, half of them before the messages; 120")
    parser.add_argument("--workers", type=int, help="workers of the broker; default: as many as its descriptors require")
    parser.add_argument("--acceptors", type=int, default=4)
    parser.add_argument("--broker", default=f"{own} serve {options}", help="command; {port} and {dir} are filled in")
    parser.add_argument("--rate", type=float, default=500.0, help="messages a second; 500")
    parser.add_argument("--least-free", type=int, default=4 << 30, metavar="BYTES", help="free memory that ends the test; 4 GiB")
    arguments = parser.parse_args(argv)
    room = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE_DESCRIPTORS
    count = arguments.connections
    # Sessions are spread by their ids, not quite evenly, and the publishers are added.
    workers = arguments.workers or max(2, -(-count * 110 // (room * 100)))
    processes = max(2, -(-count // (room - SPARE_DESCRIPTORS)))
    addresses = tuple(f"127.0.{number // 250}.{number % 250 + 2}" for number in range(-(-count // PER_ADDRESS)))
    plan = Plan(
        scenario="sub", publishers=0, subscribers=count, messages=0, seconds=arguments.hold, keepalive=KEEPALIVE_S,
        topic=("crowd/%i",), start_number=ONE_IN, processes=processes, ifaddr=addresses,
    )  # fmt: skip
    command = f"{arguments.broker} --workers {workers} --acceptors {arguments.acceptors}"
    with launched(command, None) as broker:
        publish = [
            str(own), "perf", "pub", "-p", str(broker.port), "-c", str(count // ONE_IN), "-L", str(count // ONE_IN), "-n", "1",
            "-t", f"crowd/%i{str(ONE_IN)[1:]}", "--rate", str(arguments.rate), "--quiet", "--ifaddr", "127.1.0.1",
        ]  # fmt: skip
        watch = Watch(broker.pid, publish, arguments.hold, arguments.least_free)
        line: dict[str, Any] = {"connections": count, "workers": workers, "load_processes": processes}
        try:
            result = run_plan(plan, "127.0.0.1", broker.port, broker.pid, watch)
            line |= _figures(result, watch, count)
        except (LoadError, PlanError) as error:
            line["ended"] = str(error)
            line["most_open"] = max(sample.get("opened", 0) for sample in watch.samples)
        finally:
            if watch.publisher is not None:
                watch.publisher.terminate()
                watch.publisher.wait()
    print(json.dumps(line), flush=True)
    return 1 if "ended" in line else 0


def _figures(result: dict[str, Any], watch: Watch, count: int) -> dict[str, Any]:
    empty, full = watch.samples[0], watch.fullest
    line = {
        "connect_s": result["connect_s"],
        "connect_per_s": result["opened"] / result["connect_s"],
        "connect_ms": result["opening"],
        "connect_broker_cpu_us": result["broker_connect_cpu_s_per_million"],
        "connect_load_cpu_us": result["own_connect_cpu_s"] * 1e6 / count,
        "broker_bytes": result["broker_pss_per_connection"],
        "broker_pss": [result[f"broker_pss_{when}"] for when in ("idle", "before", "after")],
        "kernel_slab_bytes": (full["Slab"] - empty["Slab"]) / count,
        "kernel_tcp_bytes": (full["tcp_pages"] - empty["tcp_pages"]) * resource.getpagesize() / count,
        "machine_bytes": (empty["MemAvailable"] - full["MemAvailable"]) / count,
        "sockets": full["tcp_inuse"],
        "messages": result["delivered"],
        "messages_wanted": count // ONE_IN,
        "latency": result["latency"],
        "faults": {name: result[name] for name in FAULTS if result.get(name)},
    }
    if watch.idle is not None:
        begin, end = watch.idle
        line["idle_broker_cores"] = (end["cpu_s"] - begin["cpu_s"]) / (end["at"] - begin["at"])
        line["idle_s"] = end["at"] - begin["at"]
    return line


def _sample(pid: int) -> Sample:
    """Returns memory in bytes, CPU time of the broker, sockets of the machine."""
    sample: Sample = {"at": time.monotonic(), "cpu_s": measure(pid, memory=False).cpu_s}
    for row in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = row.partition(":")
        if name in MEMORY:
            sample[name] = int(rest.split()[0]) * 1024
    for row in Path("/proc/net/sockstat").read_text().splitlines():
        words = row.split()
        if words[0] == "TCP:":
            sample["tcp_inuse"] = int(words[words.index("inuse") + 1])
            sample["tcp_pages"] = int(words[words.index("mem") + 1])
    return sample


if __name__ == "__main__":
    sys.exit(main())
