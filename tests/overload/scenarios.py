"""The scenarios of overload, each with its sizes as parameters: the tests run them small, the benchmark large.

Each runs against a broker of its own and returns an Outcome: memory before, at most and after, and the round trips of clients that
have nothing to do with it, on the worker that is overloaded and on another.
"""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from tests.harness import Broker, Client, client_id_on, wire
from tests.overload.clients import UNREAD_BYTES, Flood, Pinger, RoundTrips

WORKERS = 2
LIMIT_MB = 400
"""overload.memory_high_water of the brokers here, MB."""
SETTLE_S = 0.5
BACK_S = 20.0
"""How long memory may take to come back."""
STEP_S = 2.5
"""Within this a worker whose memory is short gives back what is free."""
STAY = 10
"""Connections of `too_many_connections` that stay to its end."""
MB = 1 << 20
NONE = RoundTrips(0, 0, 0, 0, 0)


@dataclass
class Outcome:
    """What was seen. Memory is `memory_mb`."""

    name: str
    before: float = 0
    most: float = 0
    after: float = 0
    back_s: float = 0
    same: RoundTrips = NONE
    other: RoundTrips = NONE
    across: RoundTrips = NONE
    counters: dict[str, int] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)

    @property
    def dropped(self) -> set[str]:
        """Reasons of deliveries that were dropped."""
        prefix = "metrics.delivery.dropped."
        return {name.removeprefix(prefix) for name in self.counters if name.startswith(prefix)}

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.before:.0f} MB before, {self.most:.0f} at most, {self.after:.0f} after ({self.back_s:.1f} s)",
            f"    same worker   {self.same}",
            f"    other worker  {self.other}",
            f"    across        {self.across}",
        ]
        if self.seen:
            lines.append("    " + ", ".join(f"{name} {value:g}" for name, value in self.seen.items()))
        if self.counters:
            lines.append("    " + ", ".join(f"{name} {value}" for name, value in sorted(self.counters.items())))
        return "\n".join(lines)


def memory_mb(broker: Broker) -> float:
    """Memory of all processes of a broker: what they share counts once. The pages of programs and libraries count as in the process
    that has most of them: their PSS grows whenever other processes with the same files end, such as the brokers of other tests."""
    own_kb = files_kb = 0
    for pid in [broker.pid, *(child.pid for child in broker.children())]:
        with contextlib.suppress(OSError, KeyError):  # KeyError: it has just ended
            shares, sizes = (_kilobytes(f"/proc/{pid}/{name}") for name in ("smaps_rollup", "status"))
            own_kb += shares["Pss_Anon"] + shares["Pss_Shmem"]
            files_kb = max(files_kb, sizes["RssFile"])
    return (own_kb + files_kb) / 1024


def _kilobytes(path: str) -> dict[str, int]:
    with open(path) as lines:
        found = [line.replace(":", "").split() for line in lines if line.endswith(" kB\n")]
    return {name: int(size) for name, size, _ in found}


class Memory:
    """Samples a broker's memory from `with` to its end."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.most = 0.0

    def _sample(self) -> None:
        while not self._end.wait(0.2):
            self.most = max(self.most, memory_mb(self._broker))

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()


def accepted(broker: Broker, name: str) -> Client:
    """A client that tries again while memory is short: the wills of closed connections may fill it."""
    end = time.monotonic() + BACK_S
    while True:
        client = Client(broker.address, 4, name, timeout=10, connect=False)
        code = client.connect(None).code
        if code != 3 or time.monotonic() > end:
            assert code == 0, f"{name}: {code}"
            return client
        client.close()
        time.sleep(0.2)


def counters(broker: Broker) -> dict[str, int]:
    """The broker's metrics and stats, as $SYS tells them after a round of statistics has begun now."""
    prefix = "$SYS/brokers/"
    found: dict[str, int] = {}
    with accepted(broker, "statistics") as client:
        time.sleep(1.2)
        client.subscribe(f"{prefix}+/#", 0)
        client.ping()
        while (packet := client.recv(0.2)) is not None and len(found) < 300:
            if isinstance(packet, wire.Publish):
                name = packet.topic.removeprefix(prefix).partition("/")[2].replace("/", ".")
                if packet.payload.isdigit():
                    found[name] = int(packet.payload)
    return found


@contextmanager
def overloaded_broker(
    settings: dict[str, object] | None = None, limit_mb: int = LIMIT_MB, workers: int = WORKERS
) -> Iterator[Broker]:
    """A broker with a small memory limit and frequent statistics."""
    own = {"sys.msg_interval": "1s", "log.level": "info", **(settings or {})}
    if limit_mb:
        own["overload.memory_high_water"] = f"{limit_mb}MB"
    with Broker(workers, own) as broker:
        yield broker


@contextmanager
def watched(name: str, broker: Broker, back: bool = True) -> Iterator[Outcome]:
    """Measures what happens in the block: memory, and the round trips of others; then waits until memory has come back."""
    outcome = Outcome(name, before=memory_mb(broker))
    with ExitStack() as stack:
        pingers: list[Pinger] = []
        pairs = [(0, 0), (1, 1), (1, 0)]
        pids = [broker.child_pids(f"sb-worker-{number}")[0] for number in (0, 1)]
        for publisher, subscriber in pairs:
            tag = f"ping{publisher}{subscriber}"
            pingers.append(
                Pinger(
                    broker.address,
                    client_id_on(publisher, broker.workers, f"{tag}p"),
                    client_id_on(subscriber, broker.workers, f"{tag}s"),
                    {pids[publisher], pids[subscriber]},
                )
            )
            stack.enter_context(pingers[-1])
        memory = stack.enter_context(Memory(broker))
        time.sleep(SETTLE_S)
        yield outcome
        outcome.counters = {
            key: value
            for key, value in counters(broker).items()
            if value and ("pass_us" in key or "dropped" in key or "overload" in key or "closed" in key)
        }
    outcome.most = max(memory.most, outcome.before)
    outcome.same, outcome.other, outcome.across = (pinger.trips for pinger in pingers)


def wait_for_memory(outcome: Outcome, broker: Broker, allowance_mb: float) -> None:
    """Waits until the broker is back at what it took before, and says how long that lasted."""
    started = time.monotonic()
    while True:
        outcome.after = memory_mb(broker)
        outcome.back_s = time.monotonic() - started
        if outcome.after <= outcome.before + allowance_mb or outcome.back_s > BACK_S:
            return
        time.sleep(0.3)


def wait_until(condition: Callable[[], bool], deadline_s: float = 20) -> None:
    """Until it holds or the time is up: machines differ."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end and not condition():
        time.sleep(0.02)


def publishes(topic: str, size: int, qos: int, count: int) -> bytes:
    """`count` PUBLISH packets with payloads of `size`; of QoS 2 with their PUBRELs."""
    packets = []
    for number in range(1, count + 1):
        packets.append(wire.publish(topic, bytes(size), version=4, qos=qos, packet_id=number if qos else None))
        if qos == 2:
            packets.append(wire.pubrel(number))
    return b"".join(packets)


def block_of(topic: str, size: int, qos: int) -> bytes:
    """About 64 KB of them."""
    return publishes(topic, size, qos, max(1, min(60, 65536 // (size + len(topic) + 8))))


# --- the scenarios --------------------------------------------------------------------------------------------------------


def stuck_subscribers(qos: int, subscribers: int = 10, blocks: int = 3000, size: int = 1000) -> Outcome:
    """Subscribers that never read, and a publisher that writes blocks of 60 messages without a pause."""
    with overloaded_broker() as broker:
        with watched(f"stuck subscribers, QoS {qos}", broker) as outcome:
            ids = [client_id_on(0, broker.workers, f"stuck{n}x") for n in range(subscribers)]
            stuck = [Client(broker.address, 4, one, keepalive=0) for one in ids]
            for client in stuck:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
                client.subscribe("flood/#", qos)
            publisher = client_id_on(0, broker.workers, "flooder")
            with Flood(broker.address, [publisher], [block_of("flood/a", size, qos)], limit=blocks) as flood:
                wait_until(lambda: flood.done)
            outcome.seen["blocks"] = float(str(flood.result))
            outcome.seen["subscriber_mb"] = memory_mb(broker)
        for client in stuck:
            client.cut()
        wait_for_memory(outcome, broker, 60)
    return outcome


def slow_subscribers(factor: float = 10, subscribers: int = 5, seconds: float = 4, size: int = 1000, qos: int = 1) -> Outcome:
    """Subscribers that read, but only a tenth of what is published."""
    with overloaded_broker() as broker:
        with watched(f"publishers {factor:g} times faster, QoS {qos}", broker) as outcome, ExitStack() as stack:
            slow = []
            for n in range(subscribers):
                client = stack.enter_context(
                    Client(broker.address, 4, client_id_on(0, broker.workers, f"slow{n}x"), keepalive=0, timeout=20)
                )
                client.subscribe("flood/#", qos)
                slow.append(client)
            publisher = [client_id_on(n % broker.workers, broker.workers, f"fast{n}x") for n in range(2)]
            block = block_of("flood/a", size, qos)
            rate = 40.0
            per_block = max(1, min(60, 65536 // (size + 15)))
            received = 0
            flood = stack.enter_context(Flood(broker.address, publisher, [block], rate=rate))
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                round_end = time.monotonic() + 0.1
                for client in slow:
                    for _ in range(int(rate * per_block * 0.1 / factor)):
                        if client.recv(0.001) is None:
                            break
                        received += 1
                time.sleep(max(0.0, round_end - time.monotonic()))
            outcome.seen["received"] = received
            del flood
        wait_for_memory(outcome, broker, 60)
    return outcome


def flooding_publishers(
    publishers: int = 20, seconds: float = 3, size: int = 64, qos: int = 0, workers_apart: bool = False, least_mb: float = 0
) -> Outcome:
    """Publishers that write as fast as they can, to one subscriber that reads; for longer if it has not read `least_mb` by then."""
    name = f"{publishers} flooding publishers, QoS {qos}" + (", by ring" if workers_apart else "")
    with overloaded_broker() as broker:
        with watched(name, broker) as outcome, ExitStack() as stack:
            place = 1 if workers_apart else 0
            reader = client_id_on(0, broker.workers, "reader")
            sink = stack.enter_context(Sink(broker, reader, "flood/#", qos))
            ids = [client_id_on(place, broker.workers, f"flooder{n}x") for n in range(publishers)]
            flood = stack.enter_context(Flood(broker.address, ids, [block_of("flood/a", size, qos)]))
            time.sleep(seconds)
            wait_until(lambda: sink.bytes >= least_mb * MB, 60)
            outcome.seen["read_mb"] = sink.bytes / MB
            del flood
        wait_for_memory(outcome, broker, 60)
    return outcome


class Sink:
    """A client that subscribes and reads; QoS 1 is acknowledged by number, without looking closely."""

    def __init__(self, broker: Broker, client_id: str, topic_filter: str, qos: int = 0) -> None:
        self._client = Client(broker.address, 4, client_id, keepalive=0, timeout=30)
        self._client.subscribe(topic_filter, qos)
        self._qos = qos
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.bytes = 0
        self.messages = 0

    def _read(self) -> None:
        pending = b""
        self._client.socket.settimeout(None)
        with contextlib.suppress(OSError):
            while data := self._client.socket.recv(1 << 18):
                self.bytes += len(data)
                if self._qos:
                    pending = self._answer(pending + data)

    def _answer(self, data: bytes) -> bytes:
        answers = []
        at = 0
        while at + 5 <= len(data):
            size, shift, head = 0, 0, at + 1
            while True:
                byte = data[head]
                size |= (byte & 127) << shift
                head, shift = head + 1, shift + 7
                if byte < 128:
                    break
            if head + size > len(data):
                break
            if data[at] >> 4 == 3 and data[at] & 6:
                self.messages += 1
                topic = struct.unpack_from("!H", data, head)[0]
                answers.append(b"\x40\x02" + data[head + 2 + topic : head + 4 + topic])
            at = head + size
        self._client.socket.sendall(b"".join(answers))
        return data[at:]

    def __enter__(self) -> "Sink":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._client.socket.shutdown(2)
        self._client.close()
        self._thread.join(5)


def many_filters(filters: int = 50_000, one_packet: bool = False) -> Outcome:
    """One client that subscribes to very many filters, and goes."""
    with overloaded_broker({"mqtt.max_packet_size": "16MB", "mqtt.max_subscriptions": 0}) as broker:
        name = f"{filters} filters of one client" + (", one packet" if one_packet else "")
        each = filters if one_packet else 10
        names = [(f"filter/{n}/+/x", 1) for n in range(filters)]
        packets = filters // each
        data = b"".join(wire.subscribe(n + 1, names[n * each : (n + 1) * each], version=4) for n in range(packets))
        answers = sum(len(wire.packet(wire.SUBACK, bytes(2 + each))) for _ in range(packets))
        with watched(name, broker) as outcome:
            greedy = client_id_on(0, broker.workers, "greedy")
            with Flood(broker.address, [greedy], [data], limit=1, answers=answers) as flood:
                started = time.monotonic()
                wait_until(lambda: flood.done)
                outcome.seen["subscribed_s"] = time.monotonic() - started
            time.sleep(1)
        wait_for_memory(outcome, broker, 60)
    return outcome


def retain_many(broker: Broker, messages: int, size: int) -> None:
    with Client(broker.address, 4, client_id_on(1, broker.workers, "retainer"), timeout=60) as client:
        for start in range(0, messages, 1000):
            client.send_raw(
                b"".join(
                    wire.publish(f"retained/{n % 100}/{n}", bytes(size), version=4, retain=True) for n in range(start, start + 1000)
                )
            )
            client.ping()


def retained_to_many(
    messages: int = 50_000, clients: int = 20, size: int = 100, deadline_s: float = 60, filter: str = "retained/#"
) -> Outcome:
    """Clients that subscribe at once and get all retained messages."""
    with overloaded_broker() as broker:
        retain_many(broker, messages, size)
        with watched(f"{messages} retained messages to {clients} clients, {filter}", broker) as outcome, ExitStack() as stack:
            started = time.monotonic()
            sinks = [
                stack.enter_context(Sink(broker, client_id_on(0, broker.workers, f"sub{n}x"), filter, 0)) for n in range(clients)
            ]
            least = messages * (size + len("retained/0/0"))
            while time.monotonic() < started + deadline_s and any(sink.bytes < least for sink in sinks):
                time.sleep(0.05)
            outcome.seen["replayed_s"] = time.monotonic() - started
            outcome.seen["complete"] = sum(sink.bytes >= least for sink in sinks)
        wait_for_memory(outcome, broker, 60)
    return outcome


def ping_flood(clients: int = 20, seconds: float = 3) -> Outcome:
    """PINGREQs without end from clients that never read."""
    with overloaded_broker() as broker:
        with watched(f"PINGREQ floods of {clients}", broker) as outcome:
            ids = [client_id_on(0, broker.workers, f"ping{n}x") for n in range(clients)]
            with Flood(broker.address, ids, [wire.pingreq() * 32768], read=False) as flood:
                time.sleep(seconds)
                wait_until(lambda: counters(broker).get("metrics.overload.output_stopped", 0) >= clients)
            outcome.seen["blocks"] = float(str(flood.result))
        wait_for_memory(outcome, broker, 60)
    return outcome


def offline_queues(
    sessions: int = 10, messages: int = 100_000, size: int = 100, topics: int = 1, limit_mb: int = LIMIT_MB
) -> Outcome:
    """Sessions of absent clients whose queues take very many messages; then one comes back for its own."""
    with overloaded_broker({"mqtt.max_mqueue_len": messages}, limit_mb) as broker:
        with watched(f"{messages} messages for each of {sessions} absent clients", broker) as outcome:
            ids = [client_id_on(0, broker.workers, f"absent{n}x") for n in range(sessions)]
            for n, one in enumerate(ids):
                with Client(broker.address, 4, one, clean=False) as client:
                    client.subscribe(f"queue/{n % topics}/#", 1)
                    client.drop()
            publisher = Client(broker.address, 4, client_id_on(0, broker.workers, "filler"), keepalive=0, timeout=60)
            sent = 0
            started = time.monotonic()
            for start in range(0, messages, 1000):
                try:
                    for topic in range(topics):
                        publisher.socket.settimeout(3)
                        publisher.socket.sendall(publishes(f"queue/{topic}/{start % 7}", size, 1, 1000))
                        sent += 1000
                        deadline = 1000 * 4
                        got = 0
                        while got < deadline:
                            got += len(publisher.socket.recv(1 << 16))
                except TimeoutError:
                    break
            outcome.seen["queued"] = sent
            outcome.seen["queued_s"] = time.monotonic() - started
            time.sleep(0.5)
        for one in ids:
            with Client(broker.address, 4, one, clean=True):
                pass
        publisher.close()
        wait_for_memory(outcome, broker, 60)
    return outcome


def memory_runs_short(apart: bool = False, limit_mb: int = 250, size: int = 2000) -> Outcome:
    """Queues of absent clients grow until the broker's memory is short: publishers that fill them, one that does not, newcomers.

    `seen` tells what the harmless publisher got through, how newcomers were answered, and what the greedy ones wrote before and
    after memory had come back.
    """
    settings: dict[str, object] = {"mqtt.max_mqueue_len": "infinity", "mqtt.max_inflight": 100}
    with overloaded_broker(settings, limit_mb) as broker:
        with watched("memory runs short" + (", by ring" if apart else ""), broker) as outcome, ExitStack() as stack:
            absent = [client_id_on(0, broker.workers, f"absent{n}x") for n in range(4)]
            for n, one in enumerate(absent):
                with Client(broker.address, 4, one, clean=False) as client:
                    client.subscribe(f"queue/{n}/#", 1)
                    client.drop()
            ids = [client_id_on(int(apart), broker.workers, f"greedy{n}x") for n in range(4)]
            blocks = [block_of(f"queue/{n}/a", size, 1) for n in range(4)]
            watcher = stack.enter_context(Client(broker.address, 5, client_id_on(0, broker.workers, "watcher"), keepalive=0))
            watcher.subscribe("$SYS/brokers/+/alarms/#", 0)
            flood = stack.enter_context(Flood(broker.address, ids, blocks))
            outcome.seen["alarm"] = wait_for_alarm(watcher, "activate", 20)
            time.sleep(1)
            outcome.seen["refused_v5"] = refused(broker, 5)
            outcome.seen["refused_v4"] = refused(broker, 4)
            time.sleep(1)
            outcome.seen["full_mb"] = memory_mb(broker)
            for one in absent:
                with Client(broker.address, 4, one, clean=True):
                    pass
            outcome.seen["alarm_ended"] = wait_for_alarm(watcher, "deactivate", BACK_S)
            del flood
        outcome.seen["accepted_again"] = float(not refused(broker, 5))
        wait_for_memory(outcome, broker, 60)
    return outcome


def too_many_connections(limit_mb: int = 200, most: int = 6000, will_bytes: int = 60_000, in_steps: bool = False) -> Outcome:
    """Connections whose wills fill the memory, until newcomers are refused.

    in_steps: a fifth is closed before the others, and a few stay, whose memory is at the end of the heap. So each worker gives back
    what the first have left, and what the others leave is no more than it keeps while there is enough.
    """
    with overloaded_broker({}, limit_mb) as broker:
        with watched("connections until memory is short", broker) as outcome, ExitStack() as stack:
            old = client_id_on(0, broker.workers, "old")
            with Client(broker.address, 5, old, properties={"session_expiry_interval": 60}) as client:
                client.drop()
            will = wire.Will("will", bytes(will_bytes))
            refusals = 0
            connected: list[Client] = []
            for n in range(most):
                one = stack.enter_context(Client(broker.address, 5, f"will{n}", will=will, keepalive=0, connect=False, timeout=10))
                one.send_raw(wire.connect(one.client_id, 5, will=will, keepalive=0))
                code = one.expect(wire.Connack).code
                # What is taken may still fall a little, when workers give back what is free.
                refusals = refusals + 1 if code else 0
                connected += [] if code else [one]
                if refusals == 20:
                    break
            outcome.seen |= {"connected": n, "refused_v5": code, "refused_v4": refused(broker, 4)}
            with Client(broker.address, 5, old, clean=False) as client:
                outcome.seen["session_present"] = float(client.connack is not None and client.connack.session_present)
                outcome.seen["suback"] = max(client.subscribe("some/topic", 1, check=False).codes)
            outcome.seen["full_mb"] = memory_mb(broker)
            if in_steps:
                del connected[-STAY:]
                for one in connected[::5]:
                    one.close()
                time.sleep(STEP_S)
                for one in connected:
                    one.close()
            else:
                stack.close()
            end = time.monotonic() + BACK_S
            while time.monotonic() < end and refused(broker, 5):
                time.sleep(0.2)
            outcome.seen["accepted_again"] = float(not refused(broker, 5))
        wait_for_memory(outcome, broker, 60)
    return outcome


def wait_for_alarm(client: Client, kind: str, deadline_s: float) -> float:
    """Whether the message came in time."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        packet = client.recv(0.2)
        if isinstance(packet, wire.Publish) and packet.topic.endswith(kind):
            return 1.0
    return 0.0


def refused(broker: Broker, version: int) -> float:
    """The largest code of the CONNACKs that new clients get, one on each worker, as each judges by itself; 0 if all are let in."""
    codes: list[int] = []
    for worker in range(broker.workers):
        with Client(broker.address, version, client_id_on(worker, broker.workers, f"new{version}x"), connect=False) as client:
            client.send_raw(wire.connect(client.client_id, version))
            codes.append(client.expect(wire.Connack).code)
    return float(max(codes))


ALL: dict[str, Callable[[], Outcome]] = {
    "stuck0": lambda: stuck_subscribers(0),
    "stuck1": lambda: stuck_subscribers(1),
    "stuck2": lambda: stuck_subscribers(2),
    "slow": slow_subscribers,
    "flood0": flooding_publishers,
    "flood1": lambda: flooding_publishers(qos=1),
    "flood0ring": lambda: flooding_publishers(workers_apart=True),
    "filters": many_filters,
    "filters1": lambda: many_filters(one_packet=True),
    "retained": retained_to_many,
    "pings": ping_flood,
    "offline": offline_queues,
    "connections": too_many_connections,
    "memory": memory_runs_short,
    "memory-ring": lambda: memory_runs_short(apart=True),
}
