"""What access control costs: `python -m tests.access.bench_access`. Run it on a machine that does nothing else.

- CPU of the workers per million messages, QoS 0 and 1, without rules and with a file of rules, in turn.
- Logins a second with the broker's own users (argon2id).
- Round trips of a connected client while 1,000 logins wait for a back end that never answers.
"""

import statistics
import time
from contextlib import ExitStack

import psutil

from tests.access.guarded import Guarded, http_server
from tests.harness import wire
from tests.harness.client import Client
from tests.harness.wire import Publish

ROUNDS = 5
BATCH, BATCHES = 500, 20_000
"""Messages sent in one piece, and how often."""
RULES = "\n".join(f'{{allow, {{client, "c{i}"}}, all, ["{i}/#"]}}.' for i in range(50))
RULES += '\n{allow, all, all, ["bench/${clientid}/#"]}.\n'


def worker_cpu(broker: Guarded) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in broker.child_pids("worker"))


def load(broker: Guarded, qos: int) -> float:
    """CPU seconds of the workers per million messages, one publisher to one subscriber on the same topic."""
    with broker.client("sub", 4) as sub, broker.client("pub", 4) as pub:
        sub.subscribe("bench/pub/x", 0)
        packets = b"".join(
            wire.publish("bench/pub/x", b"x" * 64, version=4, qos=qos, packet_id=i + 1 if qos else None) for i in range(BATCH)
        )
        expected = BATCH * len(wire.publish("bench/pub/x", b"x" * 64, version=4))
        before = worker_cpu(broker)
        for _ in range(BATCHES):
            pub.socket.sendall(packets)
            got = 0
            while got < expected:
                got += len(sub.socket.recv(1 << 20))
            acks = 0
            while qos and acks < 4 * BATCH:
                acks += len(pub.socket.recv(1 << 20))
        return (worker_cpu(broker) - before) / (BATCH * BATCHES) * 1e6


def hot_path() -> None:
    with ExitStack() as stack:
        plain, ruled = (make(stack, rules) for rules in ("", RULES))
        for qos in (0, 1):
            pairs = [(load(plain, qos), load(ruled, qos)) for _ in range(ROUNDS)]
            without, with_rules = (statistics.median(side) for side in zip(*pairs, strict=True))
            ratio = statistics.median(b / a for a, b in pairs)
            print(f"QoS {qos}: CPU s/M {without:.3f} without rules, {with_rules:.3f} with, median ratio {ratio:.3f}")


def make(stack: ExitStack, rules: str) -> Guarded:
    broker = Guarded({"acl.sources": ["file"]} if rules else {}, workers=1)
    if rules:
        path = broker.folder / "acl.conf"
        path.write_text(rules + '{allow, {client, "sub"}, subscribe, ["bench/#"]}.\n')
        broker.settings["acl.file.path"] = str(path)
    return stack.enter_context(broker)


def logins() -> None:
    settings = {"auth.chain": ["builtin"], "auth.timeout": "120s"}
    with ExitStack() as stack, Guarded(settings, users={"ada": "secret"}) as broker:
        count = 200
        known = {"username": "ada", "password": "secret"}
        clients = [stack.enter_context(Client(broker.address, 4, f"l{i}", connect=False, **known)) for i in range(count)]
        start = time.perf_counter()
        for client in clients:
            client.send_raw(client._connect_packet)
        for client in clients:
            client.timeout = 120
            assert client.expect(wire.Connack).code == 0
        print(f"logins: {count / (time.perf_counter() - start):.0f}/s with argon2id in 2 threads")
    with ExitStack() as stack, Guarded({}) as broker:
        clients = [stack.enter_context(Client(broker.address, 4, f"l{i}", connect=False)) for i in range(count)]
        start = time.perf_counter()
        for client in clients:
            client.send_raw(client._connect_packet)
        for client in clients:
            client.expect(wire.Connack)
        print(f"connects without authentication: {count / (time.perf_counter() - start):.0f}/s with this client")


def dead_back_end() -> None:
    with http_server() as service, ExitStack() as stack:
        service.answer = lambda path, fields: None
        secrets = f'[auth.http]\nurl = "{service.url}"\ntimeout = "8s"\n'
        broker = stack.enter_context(Guarded({"auth.chain": ["builtin", "http"]}, secrets=secrets, users={"a": "s"}))
        inside = stack.enter_context(broker.client("inside", username="a", password="s"))
        inside.subscribe("x", 0)

        def round_trips() -> list[float]:
            times = []
            for _ in range(2000):
                start = time.perf_counter()
                inside.publish("x", b"1", 0)
                inside.expect(Publish)
                times.append((time.perf_counter() - start) * 1000)
            return sorted(times)

        calm = round_trips()
        for i in range(1000):
            client = stack.enter_context(Client(broker.address, 4, f"w{i}", username=f"u{i}", password="x", connect=False))
            client.send_raw(client._connect_packet)
        busy = round_trips()
        for name, times in (("calm", calm), ("1,000 logins wait", busy)):
            print(f"round trips, {name}: p50 {times[1000]:.2f} ms, p99 {times[1980]:.2f} ms, worst {times[-1]:.2f} ms")


if __name__ == "__main__":
    hot_path()
    logins()
    dead_back_end()
