"""CPU of a message that passes a bridge to mosquitto, beside the bridge of another mosquitto in the same run, both directions.

    python -m tests.flows.bench_bridges [--messages 400000] [--rounds 3] [--rate 40000] [--proto v4]

A publisher at QoS 1 on one side, a session at the other end that is read afterwards: no message may be missing, repeated or out of
order. The broker with the bridge has the first core, all others have the second one. Each round has the four cells in turn; printed
are medians, of the process flows alone and of all processes of the broker, and the ratio of mosquitto's CPU to that of all.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.flows.kills import connected, packets
from tests.flows.sinks.broker import SinksBroker
from tests.flows.sinks.publishing import publish_part
from tests.harness import until
from tests.harness.broker import free_port
from tests.servers.mosquitto import mosquitto_server

PART = 500
"""Messages that are sent together."""
LONGEST_S = 120.0
"""Time for the last message to arrive."""
END = b"in/end"
"""Topic of the message behind all others."""
MOSQUITTO = ("max_queued_messages 0", "max_inflight_messages 1000", "set_tcp_nodelay true")
VERSIONS = {"v3": "mqttv31", "v4": "mqttv311", "v5": "mqttv50"}


class Cell(NamedTuple):
    """What a message costs, in µs of CPU. rate: messages a second from the first to the last one."""

    flows: float
    all: float
    rate: float


class Near(NamedTuple):
    """A broker with a bridge. pids: of its processes; flows: those of processes flows among them."""

    port: int
    pids: Callable[[], list[int]]
    flows: Callable[[], list[int]]


def pin(pids: Sequence[int], core: int) -> None:
    """Has all threads of processes run on one core."""
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {core})


def used_s(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


@contextmanager
def own(far: int, is_out: bool, version: str, place: Path) -> Iterator[Near]:
    sections: dict[str, dict[str, Any]] = {"connectors.mqtt.far": {"server": f"127.0.0.1:{far}", "proto_ver": version}}
    if is_out:
        sections["actions.mqtt.far"] = {"connector": "far", "parameters": {"topic": "far/${topic}", "qos": 1}}
        sections["rules.out"] = {"sql": 'SELECT * FROM "in/#"', "actions": ["mqtt:far"]}
    else:
        parameters = {"topic": "in/#", "local": {"topic": "far/${topic}"}}
        sections["sources.mqtt.far"] = {"connector": "far", "parameters": parameters}
    settings = {"flows.processes": 1, "log.level": "warning", "mqtt.max_mqueue_len": "infinity", "mqtt.max_inflight": 1000}
    with SinksBroker(1, place, sections, settings) as broker:
        until(lambda: far in connected_to(broker.child_pids("flows")), lambda: str(broker.output[-5:]), 60)
        yield Near(broker.address[1], lambda: [broker.pid, *broker.child_pids()], lambda: broker.child_pids("flows"))


@contextmanager
def of_mosquitto(far: int, is_out: bool, version: str, place: Path) -> Iterator[Near]:
    topic = "topic # out 1 in/ far/in/" if is_out else "topic # in 1 far/in/ in/"
    protocol = f"bridge_protocol_version {VERSIONS[version]}"
    bridge = ("connection far", f"address 127.0.0.1:{far}", topic, protocol, "notifications false")
    with mosquitto_server(*MOSQUITTO, *bridge, port=free_port()) as one:
        assert one.process is not None
        pids = [one.process.pid]
        until(lambda: far in connected_to(pids), one.log, 60)
        yield Near(one.port, lambda: pids, list)


def connected_to(pids: Sequence[int]) -> set[int]:
    """Returns the ports of others that processes are connected to."""
    links = [link for pid in pids for link in psutil.Process(pid).net_connections("tcp")]
    return {link.raddr.port for link in links if link.raddr and link.status == psutil.CONN_ESTABLISHED}


def subscribed(port: int, client_id: str, filter: bytes) -> socket.socket:
    """Returns a connection whose session stays, behind SUBACK."""
    link = connected(("127.0.0.1", port), client_id, clean=False)
    link.sendall(b"\x82" + bytes([5 + len(filter)]) + b"\x00\x01" + len(filter).to_bytes(2) + filter + b"\x01")
    assert link.recv(5)[:1] == b"\x90"
    return link


def publish(port: int, count: int, rate: float) -> None:
    """Publishes at QoS 1, at most `rate` a second, and then one message to END; returns when all are acknowledged."""
    with connected(("127.0.0.1", port), "publisher", clean=True) as link:
        began_s = time.monotonic()
        for begin in range(0, count, PART):
            time.sleep(max(0.0, began_s + begin / rate - time.monotonic()))
            publish_part(link, [b'{"n":%d}' % number for number in range(begin, min(begin + PART, count))], b"in/a")
        publish_part(link, [b"{}"], END)


def measure(kind: Any, is_out: bool, given: argparse.Namespace, place: Path) -> Cell:
    """Returns what a message costs. Raises AssertionError if one is missing."""
    count = given.messages
    with mosquitto_server(*MOSQUITTO) as far, kind(far.port, is_out, given.proto, place) as near:
        assert far.process is not None
        source, target = (near.port, far.port) if is_out else (far.port, near.port)
        pin(near.pids(), 0)
        pin([far.process.pid, os.getpid()], 1)
        subscribed(target, "reader", b"far/in/a").close()
        with subscribed(target, "end", b"far/" + END) as end:
            end.settimeout(LONGEST_S)
            before, began_s = (used_s(near.flows()), used_s(near.pids())), time.monotonic()
            publish(source, count, given.rate)
            assert end.recv(1)
            took_s = time.monotonic() - began_s
            spent = [used_s(near.flows()) - before[0], used_s(near.pids()) - before[1]]
        verify(target, count)
    return Cell(*(1e6 * one / count for one in spent), count / took_s)


def verify(port: int, count: int) -> None:
    """Reads the session. Raises AssertionError unless it has all messages in order, each once."""
    data, next = bytearray(), 0
    with connected(("127.0.0.1", port), "reader", clean=False) as link:
        link.settimeout(30)
        while next < count:
            data += link.recv(1 << 18)
            out = bytearray()
            for first, body in packets(data):
                if first >> 4 == 3:
                    size = 2 + int.from_bytes(body[:2])
                    assert json.loads(body[size + 2 :])["n"] == next, (body, next)
                    next += 1
                    out += b"\x40\x02" + body[size : size + 2]
            link.sendall(out)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.bench_bridges", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=400_000, help="of a cell")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=40_000, help="messages a second, at most")
    parser.add_argument("--proto", choices=tuple(VERSIONS), default="v4")
    given = parser.parse_args()
    found: dict[tuple[Any, bool], list[Cell]] = {(kind, is_out): [] for is_out in (True, False) for kind in (own, of_mosquitto)}
    for number in range(given.rounds):
        for (kind, is_out), cells in found.items():
            with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
                cells.append(measure(kind, is_out, given, Path(name) / "data"))
                print(f"round {number + 1}, {'out' if is_out else 'in'}, {kind.__name__}: {cells[-1]}", flush=True)
    for is_out in (True, False):
        cells = [zip(*found[kind, is_out], strict=True) for kind in (own, of_mosquitto)]
        here, there = ([statistics.median(column) for column in columns] for columns in cells)
        print(
            f"{'out' if is_out else 'in'}: flows {here[0]:.1f} us a message, all processes {here[1]:.1f} at {here[2]:.0f}/s;"
            f" mosquitto {there[1]:.1f} at {there[2]:.0f}/s; ratio {there[1] / here[1]:.2f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
