"""Figures of the MQTT-SN gateway: python -m tests.gateways.bench_mqttsn [messages] [devices] [sleeping devices].

Devices publish with QoS 1, one message at a time, without subscribers; others sleep.
"""

import select
import socket
import sys
import time

import psutil

from tests.gateways import mqttsn_client as norm
from tests.gateways.conftest import GatewayBroker

PAYLOAD = b"x" * 100
TOPIC = 0x6162
RETRY_S = 5.0


def connected(broker: GatewayBroker, name: str, count: int) -> list[socket.socket]:
    """Returns devices that are connected, at most 50 at a time."""
    devices = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for at in range(0, count, 50):
        for n, one in enumerate(devices[at : at + 50]):
            one.settimeout(30)
            one.connect(broker.at)
            one.send(norm.connect(f"{name}-{at + n}", 60_000))
        for one in devices[at : at + 50]:
            assert one.recv(100) == b"\x03\x05\x00"
    return devices


def publish(devices: list[socket.socket], count: int) -> float:
    """Publishes `count` messages; returns the seconds until the last PUBACK."""
    poll = select.epoll()
    by_number = {one.fileno(): one for one in devices}
    sent = dict.fromkeys(by_number, 0)
    for number, one in by_number.items():
        one.setblocking(False)
        poll.register(number, select.EPOLLIN)
        one.send(norm.publish(norm.SHORT, TOPIC, PAYLOAD, 1, 1))
    start_s, got = time.perf_counter(), 0
    while got < count:
        for number, _ in poll.poll(RETRY_S):
            one = by_number[number]
            answer = one.recv(100)
            assert answer[1] == 0x0D and answer[6] == 0, answer
            got += 1
            sent[number] += 1
            one.send(norm.publish(norm.SHORT, TOPIC, PAYLOAD, 1, sent[number] % 65535 + 1))
    return time.perf_counter() - start_s


def sleep(broker: GatewayBroker, process: psutil.Process, count: int) -> None:
    """Prints the memory of devices that sleep, each with a registered topic."""
    before = process.memory_info().rss
    devices = connected(broker, "sleeper", count)
    for n, one in enumerate(devices):
        one.send(norm.framed("REGISTER", b"\0\0\0\1" + f"device/{n}/state".encode()))
        one.send(norm.framed("DISCONNECT", b"\xff\xff"))
        assert one.recv(100)[1] == 0x0B and one.recv(100) == b"\x02\x18"
    time.sleep(1)
    after = process.memory_info().rss
    print(f"{count:,} sleeping devices: {(after - before) / count:,.0f} bytes of the gateway for each")
    for one in devices:
        one.close()


def main(messages: int = 100_000, devices: int = 200, sleepers: int = 10_000) -> None:
    """Prints CPU time of the gateway for each message, and memory for each sleeping device."""
    settings = {"listeners.default.max_connections": 0, "listeners.default.max_unknown_rate": "infinity"}
    with GatewayBroker(1, settings, "mqttsn") as broker:
        with broker.mqttsn() as first:
            first.connect("first")
        found = connected(broker, "bench", devices)
        (pid,) = broker.child_pids("gateway")
        process = psutil.Process(pid)
        before = process.cpu_times()
        seconds = publish(found, messages)
        after = process.cpu_times()
        cpu_us = (after.user + after.system - before.user - before.system) / messages * 1e6
        print(f"PUBLISH with QoS 1: {messages / seconds:,.0f}/s, {cpu_us:.1f} µs CPU of the gateway for each "
              f"({(after.user - before.user) / messages * 1e6:.1f} in user space), {1e6 / cpu_us:,.0f}/s and core")  # fmt: skip
        for one in found:
            one.close()
        if sleepers:
            sleep(broker, process, sleepers)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
