"""Figures of the CoAP gateway: python -m tests.gateways.bench_coap [messages] [devices].

Devices with a connection publish with QoS 1, one message at a time, without subscribers.
"""

import select
import sys
import time

import psutil

from tests.gateways import coap_client as norm
from tests.gateways.conftest import GatewayBroker

PAYLOAD = b"x" * 100
RETRY_S = 5.0
TOKEN = b"abcd"
"""Of all messages; a request for a connection has another one."""


class Device:
    """A socket and its datagram, of which only the message id changes."""

    def __init__(self, broker: GatewayBroker, name: str) -> None:
        client = broker.coap()
        client.connect(name)
        self.socket = client.socket
        self.socket.setblocking(False)
        options = norm.options_of(f"ps/device/{name}/state", client.auth | {"qos": 1})
        data = norm.message(norm.CON, norm.POST, 0, TOKEN, options, PAYLOAD)
        self._head, self._tail = data[:2], data[4:]
        self.mid = 0
        self.length = len(data)

    def send(self) -> None:
        self.mid = (self.mid + 1) % 65536
        self.socket.send(self._head + self.mid.to_bytes(2, "big") + self._tail)


def publish(devices: list[Device], count: int) -> float:
    """Publishes `count` messages; returns the seconds until the last response."""
    poll = select.epoll()
    by_number = {one.socket.fileno(): one for one in devices}
    for number, one in by_number.items():
        poll.register(number, select.EPOLLIN)
        one.send()
    start_s, got = time.perf_counter(), 0
    while got < count:
        for number, _ in poll.poll(RETRY_S):
            one = by_number[number]
            answer = one.socket.recv(100)
            if answer[4:8] != TOKEN:
                continue  # a second answer to a request for a connection that was sent twice
            assert answer[:4] == b"\x64\x44" + one.mid.to_bytes(2, "big"), answer
            got += 1
            one.send()
    return time.perf_counter() - start_s


def main(messages: int = 100_000, devices: int = 200) -> None:
    """Prints CPU time of the gateway for each message, and memory for each device."""
    settings = {"listeners.default.max_connections": 0, "listeners.default.max_unknown_rate": "infinity", "heartbeat": "1h"}
    with GatewayBroker(1, settings, "coap") as broker:
        broker.wait_for_log("gateway listener opened")
        (pid,) = broker.child_pids("gateway")
        process = psutil.Process(pid)
        memory = process.memory_info().rss
        found = [Device(broker, f"bench-{n}") for n in range(devices)]
        memory = process.memory_info().rss - memory
        before = process.cpu_times()
        seconds = publish(found, messages)
        after = process.cpu_times()
        cpu_us = (after.user + after.system - before.user - before.system) / messages * 1e6
        print(f"POST with QoS 1, {found[0].length} bytes: {messages / seconds:,.0f}/s, {cpu_us:.1f} µs CPU of the gateway for each "
              f"({(after.user - before.user) / messages * 1e6:.1f} in user space), {1e6 / cpu_us:,.0f}/s and core")  # fmt: skip
        print(f"{devices:,} devices: {memory / devices:,.0f} bytes of the gateway for each")
        for one in found:
            one.socket.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
