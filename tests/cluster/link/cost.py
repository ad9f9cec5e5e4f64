"""CPU time of two data processes for records from rings of one to rings of the other, over loopback.

    python -m tests.cluster.link.cost [--records 1000000] [--size 200] [--rate 0] [--topics 1000]

`rate` 0: saturated. Both processes then run in this one, in turn, each with a full ring; only the time of their passes counts, so
that other processes of the machine matter little. Else each is a process of its own, whose time the kernel has counted.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

from shardbroker.cluster.outbound import PeerState
from shm.records import encode_publish
from tests.cluster.link.harness import Node, connect, pump, until

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Returns the CPU time of a process in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def print_costs(sender: float, receiver: float, note: str = "") -> None:
    print(f"sender {sender:.3f}  receiver {receiver:.3f}  both {sender + receiver:.3f} CPU s per million{note}")


def saturated(one: Node, other: Node, records: list[bytes], count: int) -> tuple[list[float], int]:
    """Returns the CPU time of sender and receiver, and how many records they have carried."""
    source, sink = one.to[2].lanes[0], other.inboxes[0].lanes[2]
    drivers = one.process(), other.process()
    pump([one, other], lambda: drivers[0].core.peers[2].outbound.state == PeerState.LIVE)
    spent, total = [0.0, 0.0], 0
    while total < count:
        put = 0
        while source.put(records[put % len(records)]):
            put += 1
        one.to[2].take_bell()
        while source.fill():
            for number, driver in enumerate(drivers):
                begin = time.process_time()
                driver.one_pass(0)
                spent[number] += time.process_time() - begin
            sink.take_many(1_000_000)
            sink.give_back()
        total += put
    return spent, total


def main() -> None:
    """Prints CPU seconds per million records of the sender, of the receiver and of both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--topics", type=int, default=1000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        one, other = (Node(Path(directory), number, peer_bytes=1 << 20, inbox_bytes=1 << 20) for number in (1, 2))
        connect(one, other)
        other.subscribe(b"t/#", 0)
        records = [encode_publish(b"t/%d" % number, b"x" * chosen.size, qos=1, originate=False) for number in range(chosen.topics)]
        if not chosen.rate:
            (sender, receiver), total = saturated(one, other, records, chosen.records)
            one.close()
            other.close()
            print_costs(sender * 1e6 / total, receiver * 1e6 / total)
            return
        for node in (one, other):
            node.start()
        try:
            source, sink = one.to[2].lanes[0], other.inboxes[0].lanes[2]
            one.put(2, 0, records[0])
            until(lambda: sink.fill() > 0)
            sink.take_many(1000)
            sink.give_back()
            before, begin = [cpu_s(node.pid) for node in (one, other)], time.monotonic()
            sent = taken = 0
            while taken < chosen.records:
                allowed = int((time.monotonic() - begin) * chosen.rate)
                put = sent
                while sent < min(chosen.records, allowed, put + 2000) and source.put(records[sent % chosen.topics]):
                    sent += 1
                if sent > put and one.to[2].take_bell():
                    os.eventfd_write(one.bell, 1)
                found = len(sink.take_many(4096))
                if found:
                    taken += found
                    if sink.give_back():
                        os.eventfd_write(other.bell, 1)
                elif sent == put:
                    time.sleep(0.0001)
            spent = time.monotonic() - begin
            after = [cpu_s(node.pid) for node in (one, other)]
        finally:
            one.close()
            other.close()
    sender, receiver = ((end - start) * 1e6 / taken for start, end in zip(before, after, strict=True))
    print_costs(sender, receiver, f", {taken / spent:,.0f}/s")


if __name__ == "__main__":
    main()
