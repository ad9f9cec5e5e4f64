"""Mixed traffic with restarts for as long as asked, and what the broker holds: `python -m tests.soak.soak --seconds 7200`.

A round is all kinds of traffic in turn, each for some seconds and with sessions that stay where it says so; then something is
killed or started again, all clients are gone, and a sample is taken. The first third of the samples may grow, as caches and
sessions come to be; the last third is compared with the second.
"""

import argparse
import itertools
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

import tests.harness.broker
from shardbroker.control import Control
from tests.harness import Broker
from tests.harness.faults import KILLED

tests.harness.broker.START_TIMEOUT_S = 120.0
"""A start reads journals of up to RETENTION_BYTES, beside whatever else the machine does."""

WORKERS = 3
RETENTION_BYTES = 256 << 20
"""Of all journals; reached within minutes, so that disk beyond it would be seen."""
TRAFFIC_S = 5
TRAFFIC = (
    "p2p --qos 0 --rate 4000",
    "p2p --qos 1 --rate 4000 -C false --pairs 20",
    "p2p --qos 2 --rate 2000 -C false --pairs 20",
    "fanout --subscribers 100 --rate 50",
    "fanin --qos 1 --rate 4000",
    "wildcard --rate 1000",
    "churn --rate 1000 --change-rate 500",
    "retained --topics 2000 --subscribers 20",
    "takeover --connections 500",
    "reconnect --connections 2000",
)
SESSIONS_STAY_S = 30
"""The load tool makes new client ids each time: sessions of one round must be gone in the next, or they pile up, as they should."""
REST_S = 12.0
"""From the end of the traffic to the sample: free memory is given back every 10 s."""
KINDS = ("worker", "manager", "stop", "acceptor", "everything")
"""What is killed or started again, a kind a round."""
ALLOWED = {"memory": 1.05, "descriptors": 1.02, "shared_bytes": 1.15, "shared_names": 1.0, "disk": 1.1}
"""How much the last third may be above the second. Descriptors and touched pages of rings differ with who was killed last."""
DISK_BYTES = RETENTION_BYTES * 6 // 5
"""Up to this the disk may fill: the segments that a start needs are kept beside what retention allows."""


@dataclass
class Sample:
    at_s: float
    round: int
    broken: str
    """What was done to the broker in this round."""
    memory: int
    """Private to each process, together, bytes. What they share is counted below."""
    largest: int
    """Of that, what the worker that takes most has."""
    descriptors: int
    """Of all processes."""
    shared_names: int
    shared_bytes: int
    """In /dev/shm."""
    disk: int
    """Data directory, bytes."""
    processes: int
    started_s: float
    """How long the start of the whole broker took; 0: there was none."""


def take_sample(broker: Broker, started: float, number: int, broken: str, broker_start_s: float) -> Sample:
    processes = [psutil.Process(broker.pid), *broker.children()]
    private = {process.pid: process.memory_full_info().uss for process in processes}
    shared = broker.leftovers()
    files = [file for path in shared for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file()]
    return Sample(
        round(time.monotonic() - started, 1),
        number,
        broken,
        sum(private.values()),
        max(private[pid] for pid in broker.child_pids("sb-worker")),
        sum(process.num_fds() for process in processes),
        len(shared),
        sum(file.stat().st_blocks * 512 for file in files),
        sum(file.stat().st_blocks * 512 for file in broker.data_dir.rglob("*") if file.is_file()),
        len(processes),
        round(broker_start_s, 1),
    )


def drive(broker: Broker, arguments: str) -> str:
    """A stretch of traffic. What went wrong with it, or nothing."""
    host, port = broker.address
    program = str(Path(sys.executable).with_name("shardbroker"))
    command = [program, "perf", *arguments.split(), f"--seconds={TRAFFIC_S}", f"--host={host}", f"--port={port}", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TRAFFIC_S * 20)
    if done.returncode == 0:
        return ""
    with closing(Control(broker.data_dir)) as control:
        dropped = {name: count for name, count in control.call("metrics").items() if ".dropped" in name and count}
    return f"{arguments}: exit code {done.returncode}: {(done.stdout + done.stderr)[-600:]} dropped since the start: {dropped}"


def disturb(broker: Broker, rng: random.Random, number: int) -> tuple[str, float]:
    """Kills a process or starts the whole broker again, gently or not, in turn.

    What it was, and the seconds that a start of the broker took.
    """
    kind = KINDS[number % len(KINDS)]
    if kind == "stop":
        broker.stop()
        return kind, start_again(broker)
    elif kind == "everything":
        for process in [psutil.Process(broker.pid), *broker.children()]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        broker.process.wait()  # type: ignore[union-attr]
        return kind, start_again(broker)
    else:
        psutil.Process(rng.choice(broker.child_pids(kind))).kill()
        time.sleep(2.0)
    return kind, 0.0


def start_again(broker: Broker) -> float:
    """Starts it; seconds until it was ready."""
    started = time.monotonic()
    broker.start()
    return time.monotonic() - started


def verdict(samples: list[Sample]) -> list[str]:
    """What grew, in words."""
    third = len(samples) // 3 // len(KINDS) * len(KINDS)  # each with as many of every kind: a new process is smaller
    if not third:
        return [f"too few rounds to say what grew: {3 * len(KINDS)} at least"]
    samples = samples[-3 * third :]
    grown = []
    for name, allowed in ALLOWED.items():
        parts = samples[third : 2 * third], samples[2 * third :]
        before, after = (statistics.median(getattr(sample, name) for sample in part) for part in parts)
        print(f"{name}: {before:,.0f} -> {after:,.0f}")
        if after > before * allowed and (name != "disk" or after > DISK_BYTES):
            grown.append(f"{name} grew from {before:,.0f} to {after:,.0f}")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--out", type=Path, help="a line of JSON a sample")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the broker ends with us
    print(f"seed {given.seed}", flush=True)
    rng = random.Random(given.seed)
    data_dir = Path(tempfile.mkdtemp(prefix="shardbroker-soak-"))
    settings = {
        "process.acceptors": 2,
        "journal.retention.bytes": f"{RETENTION_BYTES}B",
        "mqtt.session_expiry_interval": f"{SESSIONS_STAY_S}s",
    }
    broker = Broker(WORKERS, settings, data_dir=data_dir)
    broker.expects(KILLED)
    samples: list[Sample] = []
    faults: list[str] = []
    started = time.monotonic()
    try:
        broker.start()
        for number in itertools.count():
            if time.monotonic() - started > given.seconds:
                break
            faults += [fault for arguments in rng.sample(TRAFFIC, len(TRAFFIC)) if (fault := drive(broker, arguments))]
            broken, start_s = disturb(broker, rng, number)
            time.sleep(REST_S)
            samples.append(take_sample(broker, started, number, broken, start_s))
            line = json.dumps(asdict(samples[-1]))
            print(line, flush=True)
            if given.out:
                with given.out.open("a") as out:
                    out.write(line + "\n")
        broker.stop()
    finally:
        with suppress(AssertionError):
            broker.stop()
        shutil.rmtree(data_dir, ignore_errors=True)
    faults += verdict(samples)
    print("\n".join(faults) or f"nothing grew, nothing went wrong in {len(samples)} rounds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
