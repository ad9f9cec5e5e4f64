"""Every counter and gauge moves: by how much, where a test brings it about here, and which test does, where that takes more than a
few packets."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import Control
from shm.counters import NAMES, Counters
from tests.access.guarded import Guarded
from tests.access.scram_client import ScramClient
from tests.harness import Broker, Client, Publish, Pubrec, client_id_on, until, wire
from tests.harness.waiting import stopped
from tests.harness.wire import Auth, Disconnect
from tests.journal.faulty_disk import FaultyDisk

pytestmark = pytest.mark.own_broker
WORKERS = 2
PENDING_BYTES = 1 << 18
"""The least that may wait for a disk."""
STAY = {"session_expiry_interval": 60}

ELSEWHERE = {
    "tests/edge/refusals.py": (
        "client.banned", "client.closed.access_rules", "client.closed.idle_timeout", "client.closed.keepalive",
        "client.closed.kicked", "client.closed.malformed", "client.closed.max_connections", "client.closed.not_connect",
        "client.closed.protocol_error", "client.closed.proxy", "client.closed.tls", "client.closed.too_large",
        "client.closed.upgrade", "client.closed.websocket", "messages.dropped.receive_maximum",
    ),
    "tests/access/test_connecting.py": ("client.flapping",),
    "tests/behaviour/test_push_back.py": (
        "delivery.dropped.queue_stalled", "overload.acks_held", "overload.subscribers_stalled",
    ),
    "tests/behaviour/test_delayed.py": ("messages.dropped.outdated",),
    "tests/behaviour/test_single_failures.py": ("messages.dropped.failed",),
    "tests/behaviour/test_links.py": ("messages.dropped.unreachable",),
    "tests/behaviour/test_unknown_destinations.py": ("messages.dropped.unroutable",),
    "tests/cluster/real/test_membership.py": ("link.closed", "link.established", "link.refused"),
    "tests/link/test_signals.py": ("suback.late",),
    "tests/edge/test_quotas.py": ("overload.rate_paused", "packets.publish.quota_exceeded"),
    "tests/flows/test_holds.py": ("journal.hold_exceeded",),
    "tests/hooks/test_points.py": ("messages.dropped.hook",),
}  # fmt: skip
"""Tests that assert what these counters come to, by file."""

moved: set[str] = set()


class Counted:
    """The counters of a running broker, read from shared memory: also while a process of it stands still."""

    def __init__(self, broker: Broker) -> None:
        (instance,) = broker._instances
        self._counters = Counters.attach(f"/dev/shm/shardbroker-{instance}/counters")

    def now(self) -> dict[str, int]:
        return dict(self._counters.totals())

    @contextmanager
    def move(self, expected: Mapping[str, int]) -> Iterator[None]:
        """What happens in the block moves these by so much, at once or within a moment."""
        before = self.now()
        yield
        self.have({name: before[name] + by for name, by in expected.items()})
        moved.update(name for name, by in expected.items() if by)

    def have(self, expected: Mapping[str, int]) -> None:
        """These come to so much."""
        found: dict[str, int] = {}

        def there() -> bool:
            found.update((name, value) for name, value in self.now().items() if name in expected)
            return found == expected

        try:
            until(there)
        except AssertionError:
            differ = {name: f"{found[name]}, not {value}" for name, value in expected.items() if found[name] != value}
            raise AssertionError(differ) from None
        moved.update(name for name, value in expected.items() if value)

    def grow(self, *names: str) -> None:
        """These come to more than nothing."""
        until(lambda: all(self.now()[name] > 0 for name in names), lambda: str({name: self.now()[name] for name in names}))
        moved.update(names)


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[Broker, Counted]]]:
    """start(mqtt__max_inflight=1): a broker of the test's own, and its counters."""
    running: list[Broker] = []

    def make(**settings: object) -> tuple[Broker, Counted]:
        broker = Broker(WORKERS, {name.replace("__", "."): value for name, value in settings.items()})
        running.append(broker)
        broker.start()
        return broker, Counted(broker)

    yield make
    for broker in running:
        broker.stop()


class Metered(socket.socket):
    """A socket that knows how many bytes it has taken and given."""

    sent = received = 0

    def sendall(self, data: Any, flags: int = 0) -> None:
        super().sendall(data, flags)
        self.sent += len(data)

    def recv(self, size: int, flags: int = 0) -> bytes:
        data = super().recv(size, flags)
        self.received += len(data)
        return data


def on(worker: int, broker: Broker, version: int = 5, **options: Any) -> Client:
    """A client of that worker."""
    return Client(broker.address, version, client_id_on(worker, WORKERS, "c"), **options)


# --- what comes and goes ----------------------------------------------------------------------------------------------------------


def test_an_exchange_of_each_kind(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start()
    meters: list[Metered] = []

    def dial() -> Metered:
        meters.append(Metered())
        meters[-1].connect(broker.address)
        return meters[-1]

    with counted.move({
        "packets.received": 14, "packets.sent": 12,
        "packets.connect.received": 2, "packets.connack.sent": 2,
        "packets.publish.received": 3, "packets.publish.sent": 3,
        "packets.puback.received": 1, "packets.puback.sent": 1, "packets.pubrec.received": 1, "packets.pubrec.sent": 1,
        "packets.pubrel.received": 1, "packets.pubrel.sent": 1, "packets.pubcomp.received": 1, "packets.pubcomp.sent": 1,
        "packets.subscribe.received": 1, "packets.suback.sent": 1, "packets.unsubscribe.received": 1, "packets.unsuback.sent": 1,
        "packets.pingreq.received": 1, "packets.pingresp.sent": 1, "packets.disconnect.received": 2, "packets.disconnect.sent": 0,
        "packets.puback.missed": 0, "packets.pubrec.missed": 0, "packets.pubrel.missed": 0, "packets.pubcomp.missed": 0,
        "messages.received": 3, "messages.sent": 3, "messages.forward": 3, "messages.acked": 2, "messages.dropped": 0,
        "messages.qos0.received": 1, "messages.qos1.received": 1, "messages.qos2.received": 1,
        "messages.qos0.sent": 1, "messages.qos1.sent": 1, "messages.qos2.sent": 1,
        "client.connected": 2, "client.disconnected": 2, "client.closed.reset": 0,
        "session.created": 2, "session.terminated": 2, "delivery.dropped": 0,
    }):  # fmt: skip
        before = counted.now()
        with on(0, broker, dial=dial) as publisher, on(1, broker, dial=dial) as subscriber:
            subscriber.subscribe("t", 2)
            for qos in (0, 1, 2):
                publisher.publish("t", b"%d" % qos, qos)
                subscriber.expect(Publish, payload=b"%d" % qos)
            subscriber.ping()
            subscriber.unsubscribe("t")
            publisher.disconnect()
            subscriber.disconnect()
    counted.have({"bytes.received": before["bytes.received"] + sum(meter.sent for meter in meters),
                  "bytes.sent": before["bytes.sent"] + sum(meter.received for meter in meters)})  # fmt: skip


def test_gauges_tell_what_there_is(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start(mqtt__max_inflight=1)
    there = {"connections.count": 2, "sessions.count": 2, "subscriptions.count": 2, "subscriptions.shared.count": 1,
             "retained.count": 1, "inflight.count": 1, "mqueue.count": 2, "delayed.count": 1}  # fmt: skip
    with on(0, broker, auto_ack=False) as subscriber, on(1, broker) as publisher:
        for topic_filter in ("t", "u/+", "$share/g/s"):
            subscriber.subscribe(topic_filter, 1)
        for _ in range(3):
            publisher.publish("t", b"x", 1)
        publisher.publish("kept", b"x", 1, retain=True)
        with counted.move({"messages.delayed": 1}):
            publisher.publish("$delayed/60/t", b"later", 1)
        counted.have(there)
        counted.grow("memory.bytes.count")
        packet_ids = []
        for _ in range(3):
            packet_ids.append(subscriber.expect(Publish).packet_id)
            assert packet_ids[-1] is not None
            subscriber.send_raw(wire.puback(packet_ids[-1]))
        counted.have(there | {"inflight.count": 0, "mqueue.count": 0})
        publisher.publish("kept", b"", 1, retain=True)
        subscriber.unsubscribe("t", "$share/g/s")
        counted.have({"retained.count": 0, "subscriptions.count": 1, "subscriptions.shared.count": 0})
        subscriber.disconnect()
        publisher.disconnect()
    counted.have({"connections.count": 0, "sessions.count": 0, "subscriptions.count": 0})


def test_acknowledgements_of_nothing_are_missed(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start()
    names = ("puback", "pubrec", "pubrel", "pubcomp")
    with on(0, broker, auto_ack=False) as client, counted.move({f"packets.{name}.missed": 1 for name in names}):
        for name in names:
            client.send_raw(getattr(wire, name)(77))
        client.ping()


def test_a_connection_is_taken_over_comes_back_and_is_reset(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start()
    options: dict[str, Any] = {"clean": False, "properties": STAY}
    with counted.move({"session.created": 2, "session.takenover": 1, "session.resumed": 1, "session.discarded": 1,
                       "packets.disconnect.sent": 1, "client.closed.reset": 1}):  # fmt: skip
        with on(0, broker, **options) as first, on(0, broker, **options) as second:
            assert first.expect(Disconnect).code == 0x8E
            first.expect_close()
            second.cut()
            counted.have({"connections.count": 0})
        with on(0, broker, clean=True) as last:
            last.disconnect()


# --- who may ----------------------------------------------------------------------------------------------------------------------


def test_logins_and_what_clients_may() -> None:
    rules = '{allow, all, publish, ["may"]}.\n{deny, all, all, ["may not"]}.\n'
    guarded = Guarded({"auth.chain": ["builtin", "scram"], "acl.sources": ["file", "builtin"]}, users={"ada": "secret"})
    guarded.settings["acl.file.path"] = str(guarded.folder / "acl.conf")
    (guarded.folder / "acl.conf").write_text(rules)
    guarded.admin.add_user("root", "secret", superuser=True)
    guarded.admin.add_user("sam", "pencil", scram=True)
    with guarded:
        counted = Counted(guarded)
        with counted.move({"authentication.failure": 1, "authentication.unavailable": 0, "packets.connack.auth_error": 1,
                           "packets.connack.error": 1, "client.closed.refused": 1}):  # fmt: skip
            guarded.refused("eve", 0x86, username="ada", password="wrong")
        with (
            counted.move({
                "authentication.success": 1, "authorization.allow": 1, "authorization.deny": 3, "authorization.nomatch": 1,
                "packets.publish.error": 1, "packets.publish.auth_error": 1, "packets.subscribe.auth_error": 2,
            }),
            guarded.client("ada", username="ada", password="secret") as ada,
        ):  # fmt: skip
            ada.publish("may", b"", 1)
            ada.publish("may not", b"", 1)
            assert ada.subscribe([("may not", 0), ("unknown", 0)], check=False).codes == (0x87, 0x87)
        with counted.move({"authorization.superuser": 1}), guarded.client("root", username="root", password="secret") as root:
            root.publish("may not", b"", 1)
        scram = ScramClient("sha256", "sam", "pencil")

        def fields(data: bytes) -> dict[str, Any]:
            return {"authentication_method": "SCRAM-SHA-256", "authentication_data": data}

        with (
            counted.move({"packets.auth.sent": 1, "packets.auth.received": 1, "authentication.success": 1}),
            Client(guarded.address, 5, "sam", connect=False, properties=fields(scram.first())) as sam,
        ):
            sam.send_raw(sam._connect_packet)
            challenge = sam.expect(Auth)
            sam.send_raw(wire.auth(0x18, fields(scram.final(challenge.properties["authentication_data"]))))
            assert sam.expect(wire.Connack).code == 0


def test_anonymous_clients(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start()
    with counted.move({"authentication.success": 0, "authentication.success.anonymous": 1}), on(0, broker) as client:
        client.disconnect()


def test_a_back_end_that_is_not_there() -> None:
    guarded = Guarded({"auth.chain": ["http"], "auth.http.url": "http://127.0.0.1:1/"})
    with guarded, Counted(guarded).move({"authentication.unavailable": 1, "authentication.failure": 0}):
        guarded.refused("who", 0x88, username="ada", password="secret")


# --- what is not delivered --------------------------------------------------------------------------------------------------------


def test_messages_that_nobody_gets(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start(mqtt__await_rel_timeout="1s")
    with on(0, broker) as client:
        with counted.move({"messages.dropped": 1, "messages.dropped.no_subscribers": 1}):
            client.publish("nobody", b"", 1)
        with counted.move({"packets.publish.error": 1}):
            client.publish("nobody", b"\xff", 1, properties={"payload_format_indicator": 1})
        with counted.move({"packets.subscribe.error": 1}):
            client.subscribe([("a/#/b", 0)], check=False)
        with counted.move({"messages.dropped.await_pubrel_timeout": 1}):
            client.send_raw(wire.publish("nobody", b"", qos=2, packet_id=9))
            client.expect(Pubrec)


def test_an_alarm_that_nobody_hears_is_no_loss(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start(retainer__max_total_bytes="512KB")
    with on(0, broker) as client, counted.move({"messages.dropped": 0, "messages.dropped.no_subscribers": 0}):
        client.subscribe("r/#", 1)
        for number in range(100):
            client.publish(f"r/{number}", b"x" * 10_000, 1, True)
        with Control(broker.data_dir) as control:
            until(lambda: [one["name"] for one in control.call("alarms list")["data"]] == ["retained_limit"], timeout_s=10)


def test_deliveries_that_are_dropped(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start(mqtt__max_mqueue_len=2, mqtt__mqueue_store_qos0="false")
    with on(0, broker) as client:
        with counted.move({"delivery.dropped": 1, "delivery.dropped.no_local": 1}):
            client.subscribe("own", 1, no_local=True)
            client.publish("own", b"", 1)
        with on(1, broker, properties={"maximum_packet_size": 100}) as small:
            small.subscribe("small", 1)
            with counted.move({"delivery.dropped": 1, "delivery.dropped.too_large": 1}):
                client.publish("small", bytes(100), 1)
            small.disconnect()
        absent = client_id_on(1, WORKERS, "absent")
        with Client(broker.address, 5, absent, clean=False, properties=STAY) as one:
            one.subscribe("away", 1)
            one.disconnect()
        with counted.move({"delivery.dropped": 1, "delivery.dropped.qos0_msg": 1}):
            client.publish("away", b"", 0)
            client.ping()
        with counted.move({"delivery.dropped": 1, "delivery.dropped.queue_full": 1}):
            for _ in range(2):
                client.publish("away", b"stays", 1)
            client.publish("away", b"the last", 1, properties={"message_expiry_interval": 1})
        with counted.move({"delivery.dropped": 1, "delivery.dropped.expired": 1}):
            time.sleep(1.2)
            with Client(broker.address, 5, absent, clean=False, properties=STAY) as one:
                one.expect(Publish, payload=b"stays")


def test_a_client_that_reads_nothing(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start(mqtt__max_output_bytes="64KB")
    with on(0, broker) as stuck, on(1, broker) as publisher:
        stuck.subscribe("much", 0)
        while not counted.now()["delivery.dropped.output_full"]:
            for _ in range(100):
                publisher.publish("much", bytes(10_000), 0)
            publisher.ping()
        counted.grow("delivery.dropped.output_full")
        while not counted.now()["overload.output_stopped"]:
            stuck.send_raw(wire.pingreq() * 1000)
        counted.grow("overload.output_stopped")


def test_retained_messages_that_are_too_many(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start(retainer__max_messages=1)
    with on(0, broker) as client, counted.move({"retained.dropped": 1, "retained.count": 1}):
        for topic in ("a", "b"):
            client.publish(topic, b"x", 1, retain=True)


def test_events_that_the_manager_does_not_take(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start()
    (manager,) = broker.child_pids("manager")
    with stopped(manager):
        for _ in range(100_000):
            on(0, broker, keepalive=0).close()
            if counted.now()["events.dropped"]:
                break
    counted.grow("events.dropped")


# --- when something runs short ----------------------------------------------------------------------------------------------------


def test_memory_runs_short(start: Callable[..., tuple[Broker, Counted]]) -> None:
    broker, counted = start(overload__memory_high_water="256MB")
    will = wire.Will("will", bytes(60_000))
    with (
        on(0, broker, clean=False, properties=STAY) as absent,
        Client(broker.address, 5, "harmless", keepalive=0) as harmless,
        Client(broker.address, 5, "greedy", keepalive=0, timeout=20) as greedy,
        ExitStack() as stack,
    ):
        absent.subscribe("away", 1)
        absent.disconnect()
        with counted.move({"client.closed.overload": 1}):
            for number in range(5000):
                one = Client(broker.address, 5, f"will{number}", will=will, keepalive=0, connect=False, timeout=20)
                if stack.enter_context(one).connect(None).code == 0x97:
                    break
        counted.have({"overload.level.count": 2 * WORKERS})
        with counted.move({"delivery.dropped": 1, "delivery.dropped.overload": 1}):
            harmless.publish("away", b"", 0)
        greedy.socket.settimeout(2)
        with suppress(TimeoutError):           # in the middle of a message: it is not read any more
            while not counted.now()["overload.publishers_paused"]:
                greedy.send_raw(wire.publish("away", bytes(10_000), qos=1, packet_id=greedy.next_id()))
        counted.grow("overload.publishers_paused")


@pytest.mark.parametrize("goes_on", [False, True])
def test_the_disk_refuses(goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FaultyDisk(tmp_path, tmp_path / "data")
    settings = {"journal.capture": "q/#", "durability.max_pending_bytes": PENDING_BYTES,
                "durability.on_disk_error": "continue" if goes_on else "hold"}  # fmt: skip
    with monkeypatch.context() as patch:
        for name, value in disk.environment.items():
            patch.setenv(name, value)
        broker = Broker(WORKERS, settings, data_dir=tmp_path / "data")
        broker.start()
    try:
        counted = Counted(broker)
        with on(0, broker, clean=False, properties=STAY) as client:
            client.subscribe("q/#", 1)
            disk.slow_down(0.005)
            client.publish("q/slow", b"", 1)
            counted.grow("journal.write_ms")
            disk.refuse()
            for _ in range(PENDING_BYTES // 1000 if goes_on else 1):
                client.publish("q/1", bytes(1000), 1, wait=goes_on)
            client.publish("kept", b"x", 1, retain=True, wait=False)
            counted.grow("journal.refused", "journal.errno.count", "journal.stage.count", "retained.errno.count")
            counted.grow(*(("journal.given_up", "journal.not_captured") if goes_on else ("journal.pending.count",)))
            disk.heal()
            client.publish("kept", b"x", 1, retain=True)
            counted.have({"journal.errno.count": 0, "journal.stage.count": 0, "retained.errno.count": 0,
                          "journal.pending.count": 0})  # fmt: skip
            client.disconnect()
        broker.stop()
    finally:
        disk.heal()
        broker.kill()


# --- all of them ------------------------------------------------------------------------------------------------------------------


def test_every_counter_moves_in_a_test(request: pytest.FixtureRequest) -> None:
    """Runs last."""
    root = Path(__file__).parents[2]
    for file, names in ELSEWHERE.items():
        text = (root / file).read_text()
        assert not [name for name in names if f'"{name}"' not in text], file
    if request.config.option.keyword or any("::" in argument for argument in request.config.args):
        pytest.skip("only some tests of the module run")
    assert sorted({*NAMES} - moved - {name for names in ELSEWHERE.values() for name in names}) == []
