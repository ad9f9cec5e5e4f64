"""How long a broker with many sessions and queued messages takes to start: `python -m tests.torture.bench_restart`.

SESSIONS clients with clean session 0 subscribe to a topic of their own and go; each gets messages of 64 bytes at QoS 1, all of them
different. Then the broker is stopped, or killed with all its processes, and started again.
Whether some of them have their messages is looked at.
"""

import argparse
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from shardbroker.mqtt.packets import Connect, Publish
from tests.harness import Broker, Client

BATCH = 5_000
"""Clients at a time: two descriptors each, of 20,000 that a process may have."""
UNDER_WAY = 500
"""Messages without an acknowledgement."""
PACKET_IDS = 65_535


def make_sessions(broker: Broker, sessions: int) -> None:
    host, port = broker.address
    program = str(Path(sys.executable).with_name("shardbroker"))
    for start in range(0, sessions, BATCH):
        count = min(BATCH, sessions - start)
        subprocess.run(
            [program, "perf", "conn", f"--count={count}", f"--startnumber={start}", "--clean=false", "--client-id=restart%i",
             "--topic=restart/%i", "--qos=1", "--keepalive=0", "--seconds=0.2", f"--host={host}", f"--port={port}", "--quiet"],
            check=True, capture_output=True,
        )  # fmt: skip


def publish(broker: Broker, sessions: int, each: int) -> None:
    """All messages of all sessions in turn, acknowledged."""
    with socket.create_connection(broker.address) as publisher:
        publisher.sendall(Connect(4, b"restart-publisher").encode(4))
        assert publisher.recv(4) == b"\x20\x02\x00\x00"
        total, sent, acknowledged, rest = sessions * each, 0, 0, b""
        while acknowledged < total:
            packets = []
            while sent < total and sent - acknowledged < UNDER_WAY:
                topic = b"restart/%d" % (sent % sessions)
                packets.append(Publish(topic, b"%-64d" % sent, 1, packet_id=sent % PACKET_IDS + 1).encode(4))
                sent += 1
            publisher.sendall(b"".join(packets))
            rest += publisher.recv(1 << 16)
            whole = len(rest) // 4 * 4
            acknowledged += sum(first == 0x40 for first, _, _ in struct.iter_unpack(">BBH", rest[:whole]))
            rest = rest[whole:]


def queued_messages(broker: Broker, client_id: str, expected: int) -> int:
    """What one of the sessions gets when it comes back."""
    with Client(broker.address, 4, client_id, clean=False) as client:
        return sum(client.recv(5.0) is not None for _ in range(expected))


def restart(broker: Broker, kill: bool) -> tuple[float, float]:
    """Seconds to stop, and to the line that says ready."""
    started = time.monotonic()
    if kill:
        for process in [psutil.Process(broker.pid), *broker.children()]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        broker.process.wait()  # type: ignore[union-attr]
    else:
        broker.stop()
    stopped = time.monotonic()
    broker.start()
    return stopped - started, time.monotonic() - stopped


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.bench_restart", description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=10, help="messages for each session")
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    data_dir = Path(tempfile.mkdtemp(prefix="shardbroker-restart-"))
    broker = Broker(given.workers, {"mqtt.session_expiry_interval": "2h"}, data_dir=data_dir)
    try:
        broker.start()
        started = time.monotonic()
        make_sessions(broker, given.sessions)
        made = time.monotonic()
        publish(broker, given.sessions, given.each)
        print(f"{given.sessions} sessions in {made - started:.1f} s, {given.sessions * given.each} messages for them in "
              f"{time.monotonic() - made:.1f} s", flush=True)  # fmt: skip
        for number, kill in enumerate((False, True)):
            size = sum(file.stat().st_size for file in (data_dir / "journal").rglob("*.sbj"))
            stopped_s, ready_s = restart(broker, kill)
            how = "killed" if kill else "stopped"
            memory = sum(process.memory_full_info().pss for process in broker.children())
            print(f"{how} in {stopped_s:.1f} s, ready after {ready_s:.1f} s, {size >> 20} MiB of journal, "
                  f"{memory >> 20} MiB of memory", flush=True)  # fmt: skip
            for session in (number, given.sessions // 2 + number, given.sessions - 2 + number):
                came = queued_messages(broker, f"restart{session}", given.each)
                assert came == given.each, f"session {session}: {came} of {given.each} messages"
        broker.stop()
    finally:
        with suppress(AssertionError):
            broker.stop()
        shutil.rmtree(data_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
