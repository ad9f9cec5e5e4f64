"""Kills under load: `python -m tests.flows.kills --flows 50 --workers 50 --brokers 10 --rate 20000`.

Each acknowledged message has to be republished; repeats count. Publishers and the subscriber are processes with clients of their
own, which speak MQTT 3.1.1 in large writes and reads: those of the harness do some thousand messages a second.
"""

import argparse
import multiprocessing
import random
import re
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.flows.broker import RulesBroker, rule
from tests.harness import client_id_on, until

WORKERS = 2
MESSAGES_MAX = 1 << 23
"""Of one publisher: a flag each in shared memory."""
WINDOW = 5000
"""Messages of a publisher that are not acknowledged yet."""
SLICE_S = 0.01
PAUSE_S = 0.5
QUIET_S = 20.0
"""Without a new message for so long, none comes any more."""
ACTION = {"function": "republish", "args": {"topic": "out/x", "qos": 1, "payload": "${payload}"}}
NUMBER = re.compile(rb'"n":(\d+),"w":(\d)')


def packets(data: bytearray) -> Iterator[tuple[int, bytes]]:
    """Yields (first byte, body) of the whole packets in `data`, and removes them."""
    at, end = 0, len(data)
    while at + 2 <= end:
        size = shift = 0
        place = at + 1
        while True:
            if place >= end:
                del data[:at]
                return
            size |= (data[place] & 127) << shift
            shift += 7
            place += 1
            if data[place - 1] < 128:
                break
        if place + size > end:
            break
        yield data[at], bytes(data[place : place + size])
        at = place + size
    del data[:at]


def connected(address: tuple[str, int], client_id: str, clean: bool) -> socket.socket:
    """Returns a connection behind CONNACK. Raises OSError."""
    link = socket.create_connection(address, 5)
    try:
        name = client_id.encode()
        body = b"\x00\x04MQTT\x04" + bytes([2 if clean else 0]) + b"\x00\x00" + struct.pack(">H", len(name)) + name
        link.sendall(b"\x10" + bytes([len(body)]) + body)
        if link.recv(4)[:1] != b"\x20":
            raise OSError("no CONNACK")
    except OSError:
        link.close()
        raise
    return link


def publish(address: tuple[str, int], worker: int, rate: float, acknowledged: Any, stop: Any) -> None:
    """Publishes at QoS 1, `rate` a second, until `stop`; notes what is acknowledged."""
    number = 0
    while not stop.value:
        try:
            with connected(address, client_id_on(worker, WORKERS, f"p{worker}x"), clean=True) as link:
                number = publish_on(link, worker, rate, number, acknowledged, stop)
        except OSError:
            time.sleep(0.02)


def publish_on(link: socket.socket, worker: int, rate: float, number: int, acknowledged: Any, stop: Any) -> int:
    """Publishes on one connection; returns the next number. What waits for its acknowledgement at the end is not expected."""
    waiting: deque[int] = deque()
    data, due, packet_id = bytearray(), time.monotonic(), 0
    link.setblocking(False)
    with suppress(OSError):
        while True:
            now = time.monotonic()
            if not stop.value and now >= due and len(waiting) < WINDOW:
                due = max(due + SLICE_S, now - 0.1)
                out = bytearray()
                for _ in range(int(rate * SLICE_S)):
                    payload = b'{"t":20,"n":%d,"w":%d}' % (number, worker)
                    packet_id = packet_id % 65535 + 1
                    out += b"\x32" + bytes([8 + len(payload)]) + b"\x00\x04in/a" + struct.pack(">H", packet_id) + payload
                    waiting.append(number)
                    number += 1
                link.setblocking(True)
                link.settimeout(5)
                link.sendall(out)
                link.setblocking(False)
            try:
                part = link.recv(1 << 16)
                if not part:
                    return number
                data += part
            except BlockingIOError:
                time.sleep(0.001)
            for first, _ in packets(data):
                if first == 0x40:
                    acknowledged[waiting.popleft()] = 1
            if stop.value and not waiting:
                return number
    return number


def subscribe(address: tuple[str, int], seen: list[Any], repeated: Any, stop: Any) -> None:
    """Notes what arrives, until `stop`."""
    while not stop.value:
        try:
            with connected(address, "sub", clean=False) as link:
                link.sendall(b"\x82\x0a\x00\x01\x00\x05out/#\x01")
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
                            found = NUMBER.search(body, size + 2)
                            assert found is not None, body
                            flags, number = seen[int(found[2])], int(found[1])
                            repeated.value += flags[number]
                            flags[number] = 1
                    link.sendall(out)
        except OSError:
            time.sleep(0.02)


def kill_all(broker: RulesBroker, victims: list[str]) -> None:
    for victim in victims:
        time.sleep(PAUSE_S * (0.5 + random.random()))
        if victim == "broker":
            broker.kill()
            broker.start()
        else:
            until(lambda victim=victim: broker.child_pids(victim))  # type: ignore[misc]
            broker.kill_process(random.choice(broker.child_pids(victim)))


def run(victims: list[str], rate: float, data_dir: Path) -> int:
    """Returns how many messages are missing."""
    shared = multiprocessing.RawArray
    acknowledged, seen = ([shared("B", MESSAGES_MAX) for _ in range(WORKERS)] for _ in range(2))
    repeated, stop, end = (multiprocessing.RawValue("L", 0) for _ in range(3))
    with RulesBroker(WORKERS, data_dir, {"mqtt.max_mqueue_len": 0, "log.level": "warning"}) as broker:
        broker.define(rule("hot", 'SELECT payload FROM "in/a" WHERE payload.t > 10', ACTION))
        start = multiprocessing.get_context("fork").Process
        subscriber = start(target=subscribe, args=(broker.address, seen, repeated, end))
        publishers = [
            start(target=publish, args=(broker.address, worker, rate / WORKERS, acknowledged[worker], stop))
            for worker in range(WORKERS)
        ]
        for process in (subscriber, *publishers):
            process.start()
        began_s = time.monotonic()
        try:
            kill_all(broker, victims)
        finally:
            stop.value = 1
            for process in publishers:
                process.join(30)
                process.kill()
        took_s = time.monotonic() - began_s
        expected = [int.from_bytes(bytes(flags), "little") for flags in acknowledged]
        count = sum(bytes(flags).count(1) for flags in acknowledged)
        missing, quiet_s = count, time.monotonic()
        while missing and time.monotonic() - quiet_s < QUIET_S:
            time.sleep(0.5)
            arrived = [int.from_bytes(bytes(flags), "little") for flags in seen]
            left = sum((one & ~other).bit_count() for one, other in zip(expected, arrived, strict=True))
            if left != missing:
                missing, quiet_s = left, time.monotonic()
        end.value = 1
        subscriber.join(5)
        subscriber.kill()
    kinds = ", ".join(f"{victims.count(one)} of {one}" for one in sorted(set(victims)))
    print(f"kills: {kinds}; {count} acknowledged, {count / took_s:.0f} a second, {missing} missing, {repeated.value} repeated")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flows.kills", description=__doc__.partition("\n")[0])
    parser.add_argument("--flows", type=int, default=50)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--brokers", type=int, default=10)
    parser.add_argument("--rate", type=float, default=20_000, help="messages a second")
    given = parser.parse_args()
    victims = ["flows-0"] * given.flows + ["worker"] * given.workers + ["broker"] * given.brokers
    random.shuffle(victims)
    with tempfile.TemporaryDirectory(prefix="shardbroker-test-") as name:
        return 1 if run(victims, given.rate, Path(name)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
