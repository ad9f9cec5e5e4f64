"""An MQTT bridge whose peer is away for long: what the process flows needs meanwhile, and what arrives afterwards.

    python -m tests.flows.bench_dead_peer [--seconds 3600] [--rate 5000] [--qos 1]

Two publishers at QoS 1, a bridge to mosquitto, and a subscriber there with a session of its own. mosquitto is ended and started
again after so many seconds, while messages are published all the time. None may be missing, each publisher's have to be in order,
and memory (PSS) of the process flows has to stay flat. It is printed at ten points of that time, and while the bridge catches up.
"""

import argparse
import multiprocessing
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.flows.bench_replay import cpu_s
from tests.flows.kills import WORKERS, connected, packets, publish
from tests.flows.sinks.broker import SinksBroker
from tests.harness import until
from tests.servers.mosquitto import mosquitto_server

POINTS = 10
CATCH_UP_S = 3600.0
QUIET_S = 60.0
"""Without a new message for so long, none comes any more; longer than the bridge waits before it connects again."""
GROWTH_MAX = 8 << 20
"""Bytes of PSS: the buffer of the action, and what an allocator keeps."""
SERVER = ("persistence true", "max_queued_messages 0", "max_inflight_messages 0", "autosave_interval 0")
NUMBER = re.compile(rb'"n":(\d+),"w":(\d)')
RECEIVED, MISSING, REPEATED = range(3)


def receive(port: int, next: Any, counts: Any, stop: Any) -> None:
    """Counts what arrives: numbers of a publisher have to follow each other."""
    while not stop.value:
        try:
            with connected(("127.0.0.1", port), "reader", clean=False) as link:
                link.sendall(b"\x82\x0a\x00\x01\x00\x05far/#\x01")
                link.settimeout(1)
                data = bytearray()
                while not stop.value:
                    try:
                        part = link.recv(1 << 18)
                    except TimeoutError:
                        continue
                    if not part:
                        break
                    data += part
                    out = bytearray()
                    for first, body in packets(data):
                        if first >> 4 == 3:
                            size = 2 + int.from_bytes(body[:2])
                            out += b"\x40\x02" + body[size : size + 2]
                            note(NUMBER.search(body, size + 2), next, counts)
                    link.sendall(out)
        except OSError:
            time.sleep(0.05)


def note(found: Any, next: Any, counts: Any) -> None:
    number, publisher = int(found[1]), int(found[2])
    counts[RECEIVED] += 1
    if number < next[publisher]:
        counts[REPEATED] += 1
        return
    counts[MISSING] += number - next[publisher]
    next[publisher] = number + 1


def pss(broker: SinksBroker) -> int:
    return sum(psutil.Process(pid).memory_full_info().pss for pid in broker.child_pids("flows"))


def point(text: str, broker: SinksBroker, began_s: float, used_s: float, counts: Any) -> int:
    size, figures = pss(broker), broker.action("mqtt:far")
    used = (cpu_s(broker, "flows") - used_s) / max(time.monotonic() - began_s, 0.001)
    disk = sum(path.stat().st_size for path in (broker.data_dir / "journal").rglob("*") if path.is_file()) >> 20
    print(
        f"{time.monotonic() - began_s:7.0f} s {text}: flows {size / 1e6:.1f} MB PSS, {used * 100:.1f} % of a core; journal"
        f" {disk} MB; {figures.get('status')}, lag {figures.get('lag_seconds', 0):.0f} s; received {counts[RECEIVED]},"
        f" {counts[MISSING]} left out, {counts[REPEATED]} repeated",
        flush=True,
    )
    return size


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.bench_dead_peer", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=3600.0, help="time without the peer")
    parser.add_argument("--rate", type=float, default=5000, help="messages a second")
    parser.add_argument("--qos", type=int, choices=(1, 2), default=1)
    given = parser.parse_args()
    room = int(given.rate * (given.seconds + 120) * 2) + 100_000
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name, mosquitto_server(*SERVER) as peer:
        sections: dict[str, dict[str, Any]] = {
            "connectors.mqtt.far": {"server": f"127.0.0.1:{peer.port}"},
            "actions.mqtt.far": {
                "connector": "far", "parameters": {"topic": "far/${topic}", "qos": given.qos},
                "resource_opts": {"max_buffer_bytes": "32GB"},
            },
            "rules.out": {"sql": 'SELECT * FROM "in/a"', "actions": ["mqtt:far"]},
        }  # fmt: skip
        raw, start = multiprocessing.RawArray, multiprocessing.get_context("fork").Process
        acknowledged = [raw("B", room) for _ in range(WORKERS)]
        next, counts = raw("Q", WORKERS), raw("Q", 3)
        stop, end = multiprocessing.RawValue("L", 0), multiprocessing.RawValue("L", 0)
        with SinksBroker(WORKERS, Path(name) / "data", sections, {"flows.processes": 1, "log.level": "warning"}) as broker:
            reader = start(target=receive, args=(peer.port, next, counts, end))
            reader.start()
            publishers = [
                start(target=publish, args=(broker.address, worker, given.rate / WORKERS, acknowledged[worker], stop))
                for worker in range(WORKERS)
            ]
            time.sleep(1.0)
            began_s = time.monotonic()
            for process in publishers:
                process.start()
            try:
                sizes = watch(broker, peer, given.seconds, counts)
            finally:
                stop.value = 1
                for process in publishers:
                    process.join(30)
                    process.kill()
            took_s = time.monotonic() - began_s
            sent = [bytes(flags).count(1) for flags in acknowledged]
            caught_up(broker, sent, next, counts)
            end.value = 1
            reader.join(5)
            reader.kill()
    print(f"{sum(sent)} acknowledged, {sum(sent) / took_s:.0f} a second")
    print(f"{sum(sent) - sum(next)} not there, {counts[MISSING]} left out, {counts[REPEATED]} repeated")
    growth = max(sizes[1:]) - sizes[1]
    print(f"PSS grew by {growth / 1e6:.1f} MB from the first point without the peer on; at most {GROWTH_MAX / 1e6:.1f}")
    is_whole = list(next) == sent and not counts[MISSING]
    return 0 if is_whole and growth <= GROWTH_MAX else 1


def watch(broker: SinksBroker, peer: Any, seconds: float, counts: Any) -> list[int]:
    """Ends the peer for so long; returns the sizes of flows."""
    until(lambda: counts[RECEIVED] > 5000, lambda: str(broker.action("mqtt:far")), 60)
    began_s, used_s = time.monotonic(), cpu_s(broker, "flows")
    sizes = [point("with the peer", broker, began_s, used_s, counts)]
    peer.stop()
    for number in range(1, POINTS + 1):
        time.sleep(max(0.0, began_s + seconds * number / POINTS - time.monotonic()))
        sizes.append(point("without", broker, began_s, used_s, counts))
    peer.start()
    return sizes


def caught_up(broker: SinksBroker, sent: list[int], next: Any, counts: Any) -> None:
    """Returns once all has arrived, or nothing has for a while."""
    began_s, used_s = time.monotonic(), cpu_s(broker, "flows")
    seen, quiet_s = -1, began_s
    while list(next) != sent and time.monotonic() - began_s < CATCH_UP_S and time.monotonic() - quiet_s < QUIET_S:
        if counts[RECEIVED] != seen:
            seen, quiet_s = counts[RECEIVED], time.monotonic()
        if int(time.monotonic() - began_s) % 10 == 0:
            point("catching up", broker, began_s, used_s, counts)
        time.sleep(1.0)
    point("caught up", broker, began_s, used_s, counts)


if __name__ == "__main__":
    raise SystemExit(main())
