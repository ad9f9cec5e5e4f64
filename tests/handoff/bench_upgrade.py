"""Upgrades of a broker with many clients: `python -m tests.handoff.bench_upgrade`.

CONNECTIONS of them are pairs of `shardbroker perf p2p`, over TCP, TLS 1.2, TLS 1.3, WebSocket and WSS, with QoS 0, 1 and 2.
IDLE others keep a connection with a subscription each. Clients here send a PINGREQ every PROBE_S meanwhile: the longest wait
for a PINGRESP is the pause of a client. A message that is lost, doubled or out of order, and a client that is disconnected,
ends the run with exit code 1.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardbroker.mqtt.packets import Connect
from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.handoff.test_upgrade import Upgradable
from tests.harness import client_id_on

PROGRAM = str(Path(sys.executable).with_name("shardbroker"))
TRANSPORTS = ("tcp", "tls 1.2", "tls 1.3", "ws", "wss")
QOS = (0, 1, 2)
PER_PROCESS = 15_000
"""Idle connections of a worker, and of a load process: a process may have 20,000 descriptors."""
PER_ADDRESS = 14_000
"""Connections from one local address: half of its ports."""
PROBES = 200
PROBE_S = 0.02
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
CONNECTED_S = 600.0
"""For all to be connected."""
SETTLED_S = 3.0
FAULTS = ("lost", "disordered", "misrouted", "refused", "disconnected", "failed")
TLS_12 = """\
openssl_conf = main
[main]
ssl_conf = all
[all]
system_default = one
[one]
MaxProtocol = TLSv1.2
"""


@dataclass
class Probe:
    """One client that sends PINGREQ."""

    waits_ms: list[float] = field(default_factory=list)

    async def run(self, address: tuple[str, int], client_id: str, ends: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(Connect(4, client_id.encode(), keepalive_s=0).encode(4))
        await reader.readexactly(4)
        while not ends.is_set():
            begin = time.monotonic()
            writer.write(PINGREQ)
            assert await reader.readexactly(2) == PINGRESP
            self.waits_ms.append(1000 * (time.monotonic() - begin))
            await asyncio.sleep(PROBE_S)
        writer.close()


async def probed(address: tuple[str, int], workers: int, work: Callable[[], None]) -> list[Probe]:
    """Runs `work` beside the probes."""
    probes, ends = [Probe() for _ in range(PROBES)], asyncio.Event()
    tasks = [
        asyncio.create_task(probe.run(address, client_id_on(number % workers, workers, f"probe{number}-"), ends))
        for number, probe in enumerate(probes)
    ]
    await asyncio.sleep(1.0)
    try:
        await asyncio.to_thread(work)
    finally:
        ends.set()
    await asyncio.gather(*tasks)
    return probes


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


class Load:
    """The processes of `perf`."""

    def __init__(self, broker: Edge, authority: Authority, directory: Path) -> None:
        self.broker, self.authority = broker, authority
        self.running: dict[str, subprocess.Popen[str]] = {}
        self._tls_12 = directory / "openssl.cnf"
        self._tls_12.write_text(TLS_12)

    def start(self, name: str, transport: str, *arguments: str) -> None:
        port = {"tcp": self.broker.address[1], "ws": self.broker.ports["ws"], "wss": self.broker.ports["wss"]}.get(
            transport, self.broker.ports["ssl"]
        )
        given = [f"--port={port}"]
        given += ["--ws"] if transport in ("ws", "wss") else []
        given += ["--tls", f"--cafile={self.authority.cafile}"] if transport not in ("tcp", "ws") else []
        environment = dict(os.environ) | ({"OPENSSL_CONF": str(self._tls_12)} if transport == "tls 1.2" else {})
        self.running[name] = subprocess.Popen(
            [PROGRAM, "perf", *arguments, "--host=127.0.0.1", "--keepalive=0", "--json", "--quiet", *given],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def end(self) -> dict[str, dict[str, Any]]:
        """Returns the result of each."""
        found = {}
        for name, process in self.running.items():
            out, err = process.communicate(timeout=CONNECTED_S)
            assert out, f"{name}: {err}"
            found[name] = json.loads(out.splitlines()[-1])
        return found

    def kill(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def broker_for(directory: Path, authority: Authority, workers: int) -> Iterator[Upgradable]:
    certfile = str(authority.directory / "broker.pem")
    tls = {"tls.certfile": certfile}
    broker = Edge(
        {"ssl": {"type": "ssl", **tls}, "ws": {"type": "ws"}, "wss": {"type": "wss", **tls}},
        workers,
        {"log.level": "warning", "api.bind": "disabled"},
    )
    with Upgradable(directory, broker) as made:
        yield made


def await_connections(two: Upgradable, wanted: int) -> None:
    deadline = time.monotonic() + CONNECTED_S
    while (there := two.call("status")["connections"]) < wanted:
        assert time.monotonic() < deadline, f"{there} of {wanted} connected"
        time.sleep(0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000, help="with traffic; 10,000")
    parser.add_argument("--idle", type=int, default=0, help="without; 0")
    parser.add_argument("--rate", type=float, default=1_000.0, help="messages a second in all; 1,000")
    parser.add_argument("--seconds", type=int, default=60, help="of traffic, connecting and all upgrades included; 60")
    parser.add_argument("--upgrades", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0, help="default: as many as the descriptors require, at least 2")
    given = parser.parse_args()
    workers = given.workers or max(2, math.ceil((given.connections + given.idle) / PER_PROCESS))
    mixes = [(transport, qos) for transport in TRANSPORTS for qos in QOS]
    pairs = given.connections // len(mixes) // 2
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (directory / "certificates").mkdir()
        (directory / "code").mkdir()
        authority = Authority(directory / "certificates")
        authority.issue("broker", "broker", ("localhost", "127.0.0.1"))
        two = stack.enter_context(broker_for(directory / "code", authority, workers))
        assert isinstance(two.broker, Edge)
        load = Load(two.broker, authority, directory)
        stack.callback(load.kill)
        if given.idle:
            addresses = [f"127.0.0.{2 + number}" for number in range(math.ceil(given.idle / PER_ADDRESS))]
            load.start(
                "idle", "tcp", "conn", f"--count={given.idle}", "--topic=idle/%i", "--client-id=idle%i", "--connrate=5000",
                f"--ifaddr={','.join(addresses)}", f"--processes={math.ceil(given.idle / PER_PROCESS)}", "--seconds=0",
            )  # fmt: skip
            await_connections(two, given.idle)
        connected = given.idle + 2 * pairs * len(mixes)
        if pairs:
            for transport, qos in mixes:
                load.start(
                    f"{transport} QoS {qos}", transport, "p2p", f"--pairs={pairs}", f"--qos={qos}", f"--seconds={given.seconds}",
                    "--messages=1000000000", f"--rate={given.rate / len(mixes)}",
                )  # fmt: skip
        await_connections(two, connected)
        time.sleep(SETTLED_S)
        took_s = []

        def upgrades() -> None:
            for number in range(given.upgrades):
                begin = time.monotonic()
                two.upgrade_to(f"0.2.{number}")
                took_s.append(time.monotonic() - begin)
                time.sleep(SETTLED_S)

        probes = asyncio.run(probed(two.broker.address, workers, upgrades))
        there = two.call("status")["connections"]
        assert all(process.poll() is None for process in load.running.values()), "--seconds is too short for the upgrades"
        if given.idle:
            load.running["idle"].send_signal(signal.SIGINT)
        results = load.end()
    longest = [max(probe.waits_ms) for probe in probes]
    upgrades_s = ", ".join(f"{one:.1f} s" for one in took_s)
    print(f"{workers} workers, {connected} connections, {there} at the end, {len(took_s)} upgrades: {upgrades_s}")
    print(f"longest wait of a client for PINGRESP, of {PROBES}: median {percentile(longest, 0.5):.0f} ms, "
          f"p99 {percentile(longest, 0.99):.0f} ms, max {max(longest):.0f} ms")  # fmt: skip
    faults = there < connected
    for name, result in results.items():
        wrong = {what: result[what] for what in FAULTS if result.get(what)}
        if result.get("qos") == 2 and result["duplicates"]:
            wrong["duplicates"] = result["duplicates"]
        faults |= bool(wrong)
        p99_ms = result["latency"]["p99_us"] / 1000 if result.get("latency") else 0
        counts = f"{result.get('published', 0):8} sent {result.get('delivered', 0):8} received"
        print(f"{name:12} {counts}  p99 {p99_ms:6.0f} ms  {wrong or 'no fault'}")
    return int(faults)


if __name__ == "__main__":
    sys.exit(main())
