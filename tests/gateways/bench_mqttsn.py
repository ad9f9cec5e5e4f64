"""Figures of the MQTT-SN gateway: python -m tests.gateways.bench_mqttsn [messages] [devices] [sleeping devices] [processes].

Devices publish with QoS 1, one message at a time, without subscribers; others sleep.
"""

import select
import socket
import sys
import time

import psutil

from tests.gateways import mqttsn_client as norm
from tests.gateways.conftest import GatewayBroker
from tests.harness import until

PAYLOAD = b"x" * 100
TOPIC = 0x6162
RETRY_S = 5.0
AT_A_TIME = 50
"""Devices that connect together: the kernel has room for their datagrams."""


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


def sleep(broker: GatewayBroker, count: int) -> None:
    """Prints the memory of devices that sleep, each with an address of its own, a registered topic and a message behind it.

    It is the growth of PSS of all processes of the gateway: that of RSS counts pages twice that they share.
    """
    processes = [psutil.Process(pid) for pid in broker.child_pids("gateway")]
    before, start_s = sum(one.memory_full_info().pss for one in processes), time.perf_counter()
    for at in range(0, count, AT_A_TIME):
        devices = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(min(AT_A_TIME, count - at))]
        for n, one in enumerate(devices, at):
            one.settimeout(30)
            one.bind((f"127.{1 + (n >> 16)}.{n >> 8 & 255}.{n & 255}", 20_000))
            one.connect(broker.at)
            one.send(norm.connect(f"sleeper-{n}", 60_000))
        for one in devices:
            assert one.recv(100) == b"\x03\x05\x00"
        for n, one in enumerate(devices, at):
            one.send(norm.framed("REGISTER", b"\0\0\0\1" + f"device/{n}/state".encode()))
            assert one.recv(100)[1] == 0x0B
            one.send(norm.publish(norm.NAME, 1, b"21.5", 1, 2))
        for one in devices:
            assert one.recv(100)[1] == 0x0D
            one.send(norm.framed("DISCONNECT", b"\xff\xff"))
        for one in devices:
            assert one.recv(100) == b"\x02\x18"
            one.close()
    took_s = time.perf_counter() - start_s
    time.sleep(2)
    (row,) = [row for row in broker.ctl("gateways list")["data"] if row["name"] == "mqttsn"]
    assert row["current_connections"] >= count, row
    after = sum(one.memory_full_info().pss for one in processes)
    print(f"{count:,} sleeping devices in {len(processes)} processes, connected in {took_s:.0f} s: "
          f"{(after - before) / count:,.0f} bytes of the gateway for each")  # fmt: skip


def main(messages: int = 100_000, devices: int = 200, sleepers: int = 50_000, processes: int = 4) -> None:
    """Prints CPU time of the gateway for each message, and memory for each sleeping device.

    processes: of the gateway for the sleeping devices, and workers: each device has a descriptor in both.
    """
    settings = {"listeners.default.max_connections": 0, "listeners.default.max_unknown_rate": "infinity"}
    if messages:
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
        with GatewayBroker(processes, {**settings, "processes": processes}, "mqttsn") as broker:
            until(lambda: broker.ctl("gateways show", name="mqttsn")["listeners"][0]["running"])
            sleep(broker, sleepers)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
