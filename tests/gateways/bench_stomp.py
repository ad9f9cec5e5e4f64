"""Figures of the STOMP gateway: python -m tests.gateways.bench_stomp [messages] [connections].

Connections publish with receipts, a window of 100 messages each, without subscribers.
"""

import selectors
import sys
import time

import psutil

from tests.gateways.conftest import GatewayBroker
from tests.gateways.stomp_client import StompClient

WINDOW = 100
PAYLOAD = b"x" * 100


def publish(clients: list[StompClient], count: int, topic: str) -> float:
    """Publishes `count` messages with receipts; returns the seconds until the last receipt."""
    one = f"SEND\ndestination:{topic}\nreceipt:r\ncontent-length:{len(PAYLOAD)}\n\n".encode() + PAYLOAD + b"\0"
    window = one * WINDOW
    selector = selectors.DefaultSelector()
    left, sent, got = dict.fromkeys(clients, 0), 0, 0
    start_s = time.perf_counter()
    for client in clients:
        client.socket.setblocking(True)
        selector.register(client.socket, selectors.EVENT_READ, client)
        client.raw(window)
        left[client] += WINDOW
        sent += WINDOW
    while got < sent:
        for key, _ in selector.select():
            client = key.data
            receipts = client.socket.recv(1 << 20).count(0)
            got += receipts
            left[client] -= receipts
            if left[client] <= WINDOW // 2 and sent < count:
                client.raw(window)
                left[client] += WINDOW
                sent += WINDOW
    return time.perf_counter() - start_s


def main(messages: int = 100_000, connections: int = 20) -> None:
    """Prints messages per second and CPU time of the gateway for each message."""
    with GatewayBroker(workers=1) as broker:
        broker.stomp().socket.close()
        (pid,) = broker.child_pids("gateway")
        process = psutil.Process(pid)
        clients = [broker.stomp() for _ in range(connections)]
        for client in clients:
            client.connect()
        before = process.cpu_times()
        seconds = publish(clients, messages, "bench/a")
        after = process.cpu_times()
        cpu_us = (after.user + after.system - before.user - before.system) / messages * 1e6
        print(f"SEND with RECEIPT: {messages / seconds:,.0f}/s, {cpu_us:.1f} µs CPU of the gateway for each, "
              f"{1e6 / cpu_us:,.0f}/s and core")  # fmt: skip
        for client in clients:
            client.socket.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
