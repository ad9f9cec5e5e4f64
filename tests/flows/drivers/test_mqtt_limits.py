"""What a server of MQTT may do to the memory, the time and the connections here: mosquitto, and servers that stop reading."""

import asyncio
import multiprocessing
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from shardbroker.connectors.mqtt_client import Login, Message, MqttClient
from shardbroker.flows.sources.source import Received
from tests.flows.drivers.delivery import run, some_rows
from tests.flows.drivers.test_mqtt import begun, connector, driver, publish, source
from tests.flows.kills import packets
from tests.flows.sources.harness import Taker
from tests.harness.needed import needed
from tests.servers.mosquitto import PASSWORD, mosquitto_server
from tests.servers.service import Service

pytestmark = pytest.mark.own_broker
needed("mosquitto", "mosquitto_pub")
PAYLOAD = 200_000
BIG = 100_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Service]:
    with mosquitto_server("max_queued_messages 0", "max_inflight_messages 0", login="mqtt") as one:
        yield one


class Busy(Taker):
    """Takes no second batch before `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()

    async def take(self, batch: Sequence[Received], done: Callable[[], None]) -> None:
        await super().take(batch, done)
        await self.free.wait()


async def publish_all(server: Service, topic: str, payloads: Sequence[bytes]) -> None:
    command = ["mosquitto_pub", "-p", str(server.port), "-u", "mqtt", "-P", PASSWORD, "-t", topic, "-q", "1", "-l"]
    await asyncio.to_thread(subprocess.run, command, input=b"".join([one + b"\n" for one in payloads]), check=True)


async def settled(look: Callable[[], int]) -> int:
    """Returns a number once it has been the same for a second."""
    found, since_s = look(), time.monotonic()
    async with asyncio.timeout(60):
        while time.monotonic() - since_s < 1:
            await asyncio.sleep(0.05)
            if look() != found:
                found, since_s = look(), time.monotonic()
    return found


# --- messages that wait -----------------------------------------------------------------------------------------------------------


def test_large_messages_that_wait_are_limited_by_their_bytes(server: Service, tmp_path: Path) -> None:
    over = connector(server, tmp_path)
    one = source(over, topic="large/#", qos=1)
    count = 400

    async def scenario() -> None:
        taker = Busy()
        task = await begun(server, taker, one, "large/#")
        await publish_all(server, "large/a", [b"x" * PAYLOAD] * count)
        assert await settled(lambda: sum(len(arrived.packet.payload) for arrived in one._waiting)) < 20_000_000
        assert sum(len(received.columns["payload"]) for received in taker.received) < 2_000_000
        taker.free.set()
        await taker.wait_for(count)
        task.cancel()

    run(scenario(), over)


def test_a_source_that_has_ended_holds_up_no_action(server: Service, tmp_path: Path) -> None:
    """It had stopped reading. What arrives meanwhile is limited, and is there in order when the source begins again.

    A read takes 256 KiB, so at most 2,300 of these messages are above the limit of 5,000.
    """
    over = connector(server, tmp_path)
    payloads = [b"%0100d" % number for number in range(20_000)]

    async def scenario() -> None:
        first, second = Busy(), Taker()
        task = await begun(server, first, source(over, topic="held/#", qos=1), "held/#")
        await publish_all(server, "held/a", payloads[:10_000])
        intake = over.intake_of(0)
        async with asyncio.timeout(60):
            while intake.waiting_messages <= 5000:
                await asyncio.sleep(0.05)
        assert await settled(lambda: intake.waiting_messages) < 9000
        task.cancel()
        await asyncio.wait([task])
        async with asyncio.timeout(10):
            assert await driver(over, topic="elsewhere", qos=1).write(some_rows(100)) == []
        await publish_all(server, "held/a", payloads[10_000:])
        assert await settled(lambda: intake.waiting_messages) < 9000
        task = second.run(source(over, topic="held/#", qos=1))
        while not second.received or second.received[-1].columns["payload"] != payloads[-1]:  # some arrive twice
            await second.wait_for(len(second.received) + 1)
        task.cancel()
        found = [one.columns["payload"] for one in (*first.received, *second.received)]
        assert list(dict.fromkeys(found)) == payloads

    run(scenario(), over)


def test_a_message_of_an_ended_session_does_not_acknowledge_another_one(server: Service, tmp_path: Path) -> None:
    over = connector(server, tmp_path, clean_start=True)
    acknowledged: list[Any] = []

    async def scenario() -> None:
        client = over.client_of(0)
        acknowledge = client.acknowledge
        client.acknowledge = lambda ids: (acknowledged.append(list(ids)), acknowledge(ids))
        takers = [Taker(acknowledges=False) for _ in range(2)]
        for number, taker in enumerate(takers):
            task = await begun(server, taker, source(over, topic="ended/#", qos=1), "ended/#")
            await asyncio.to_thread(publish, server, "ended/a", "-m", str(number), "-q", "1")
            await taker.wait_for(1)
            if not number:
                client.close()
                await asyncio.wait([task])
        takers[0].finish()
        assert not acknowledged
        takers[1].finish()
        assert acknowledged == [[(1, 1)]]
        task.cancel()

    run(scenario(), over)


def test_a_message_for_a_source_that_does_not_run_waits(server: Service, tmp_path: Path) -> None:
    """It was acknowledged and dropped while another source of the connector was running."""
    over = connector(server, tmp_path)
    one, other = source(over, topic="one/#"), source(over, topic="other/#")

    async def scenario() -> None:
        takers = Taker(), Taker()
        tasks = [await begun(server, takers[0], one, "one/#"), await begun(server, takers[1], other, "other/#")]
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        for topic in ("other/a", "one/a"):
            await asyncio.to_thread(publish, server, topic, "-m", topic, "-q", "1")
        await takers[0].wait_for(1)
        tasks[1] = takers[1].run(other)
        await takers[1].wait_for(1)
        assert [[found.columns["payload"] for found in taker.received] for taker in takers] == [[b"one/a"], [b"other/a"]]
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        await other.close()
        await asyncio.to_thread(publish, server, "other/a", "-m", "x", "-q", "1")  # of a source that was removed
        await settled(lambda: 0)
        assert not over.intake_of(0).waiting_messages
        tasks[0].cancel()

    run(scenario(), over)


# --- servers --------------------------------------------------------------------------------------------------------------------


@contextmanager
def stub(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server of one connection, which accepts the client; yields its port."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def work() -> None:
            link, _ = listener.accept()
            with link:
                link.recv(4096)
                link.sendall(b"\x20\x02\x00\x00")
                serve(link)
                ended.wait(60)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        thread.join(10)


def client_to(port: int) -> MqttClient:
    return MqttClient("127.0.0.1", port, None, Login(b"x", 4, True, 60), 10, 1000, 20)


def test_a_server_that_does_not_read_keeps_no_connection_open(tmp_path: Path) -> None:
    async def scenario(port: int) -> None:
        client = client_to(port)
        await client.connect()
        sending = asyncio.ensure_future(client.publish([Message(0, 0, b"t", b"", b"x" * 1_000_000)] * 30))
        await asyncio.sleep(0.5)
        client.close()
        await asyncio.gather(sending, return_exceptions=True)
        await asyncio.sleep(0.5)
        open_ones = [one for one in psutil.Process().net_connections("tcp") if one.raddr and one.raddr.port == port]
        assert not open_ones, open_ones

    with stub(lambda link: None) as port:
        run(scenario(port))


def test_a_large_message_is_put_together_once(tmp_path: Path) -> None:
    """Each read of it copied all that was there before."""
    head = b"\x30" + bytes([(BIG >> 7 * at) & 127 | (128 if at < 3 else 0) for at in range(4)]) + b"\x00\x01t"

    async def scenario(port: int) -> None:
        client, sizes = client_to(port), []
        client.on_publish = lambda packet: sizes.append(len(packet.payload))
        await client.connect()
        began_s = time.thread_time()
        async with asyncio.timeout(60):
            while not sizes:
                await asyncio.sleep(0.05)
        assert time.thread_time() - began_s < 2.0
        assert sizes == [BIG - 3]
        client.close()

    with stub(lambda link: link.sendall(head + bytes(BIG - 3))) as port:
        run(scenario(port))


class Reading(MqttClient):
    """Counts the reads."""

    reads = 0

    def data_received(self, data: bytes) -> None:
        self.reads += 1
        super().data_received(data)


def acknowledge_each(listener: socket.socket, count: int) -> None:
    """Serves one client; sends each PUBACK alone, 10,000 a second."""
    link = listener.accept()[0]
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = bytearray(link.recv(1000))
    data.clear()
    link.sendall(b"\x20\x02\x00\x00")
    due_s = time.monotonic()
    while count:
        data += link.recv(1 << 16)
        for first, body in packets(data):
            if first >> 4 == 3:
                due_s = max(due_s + 0.0001, time.monotonic() - 0.001)
                while time.monotonic() < due_s:
                    pass
                size = 2 + int.from_bytes(body[:2])
                link.sendall(b"\x40\x02" + body[size : size + 2])
                count -= 1
    link.recv(1)


def test_acknowledgements_that_arrive_one_by_one_are_read_many_at_a_time() -> None:
    """The server is a process of its own: a thread would send only while the client does not run."""
    batches, batch = 10, 500

    async def scenario(port: int) -> Reading:
        client = Reading("127.0.0.1", port, None, Login(b"x", 4, True, 60), 10, 1000, 20)
        await client.connect()
        for _ in range(batches):
            assert await client.publish([Message(2, 0, b"t", b"", b"x")] * batch) == [0] * batch
        client.close()
        return client

    with socket.create_server(("127.0.0.1", 0)) as listener:
        context = multiprocessing.get_context("fork")
        server = context.Process(target=acknowledge_each, args=(listener, batches * batch), daemon=True)
        server.start()
        try:
            client = asyncio.run(scenario(listener.getsockname()[1]))
        finally:
            server.join(10)
            server.kill()
    assert client.reads < batches * batch / 4, client.reads
