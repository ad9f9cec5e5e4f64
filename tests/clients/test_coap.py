"""PyPI's aiocoap and libcoap's coap-client against the CoAP gateway."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiocoap
import pytest
from aiocoap import Code, Message
from aiocoap.numbers.types import Type

from tests.gateways.conftest import GatewayBroker
from tests.harness import Client, until, wire

pytestmark = pytest.mark.own_broker
TIMEOUT_S = 30
LONG = bytes(range(256)) * 20
needs_libcoap = pytest.mark.skipif(shutil.which("coap-client-openssl") is None, reason="libcoap3-bin is not installed")


@pytest.fixture(scope="module")
def broker() -> Iterator[GatewayBroker]:
    with GatewayBroker(3, None, "coap") as one:
        one.wait_for_log("gateway listener opened")
        yield one


# --- aiocoap ----------------------------------------------------------------------------------------------------------------------


class Device:
    """A context of aiocoap with its own socket."""

    def __init__(self, context: aiocoap.Context, at: tuple[str, int]) -> None:
        self.context, self.base = context, f"coap://{at[0]}:{at[1]}"
        self.auth = ""

    def message(self, code: Code, path: str, payload: bytes = b"", **more: Any) -> Message:
        join = "&" if "?" in path else "?"
        uri = f"{self.base}/{path}{join}{self.auth}" if self.auth else f"{self.base}/{path}"
        return Message(code=code, uri=uri, payload=payload, **more)

    async def request(self, *args: Any, **more: Any) -> Message:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.context.request(self.message(*args, **more)).response

    async def connect(self, client_id: str) -> None:
        answer = await self.request(Code.POST, f"mqtt/connection?clientid={client_id}&username=u&password=p")
        assert answer.code == Code.CREATED
        self.auth = f"clientid={client_id}&token={answer.payload.decode()}"


@asynccontextmanager
async def device_of(broker: GatewayBroker, client_id: str = "") -> AsyncIterator[Device]:
    context = await aiocoap.Context.create_client_context()
    try:
        device = Device(context, broker.at)
        if client_id:
            await device.connect(client_id)
        yield device
    finally:
        await context.shutdown()


def test_aiocoap_publishes(broker: GatewayBroker) -> None:
    async def run() -> None:
        async with device_of(broker, "aio-pub") as device:
            for n, kind in enumerate((Type.CON, Type.NON)):
                answer = await device.request(Code.POST, "ps/aio/pub", b"%d" % n, _mtype=kind)
                assert answer.code == Code.CHANGED
            assert (await device.request(Code.PUT, "ps/aio/pub?qos=2", LONG)).code == Code.CHANGED, "in blocks"
            assert (await device.request(Code.PUT, "mqtt/connection")).code == Code.CHANGED
            assert (await device.request(Code.GET, "nowhere")).code == Code.NOT_FOUND
            assert (await device.request(Code.DELETE, "mqtt/connection")).code == Code.DELETED

    with Client(broker.address, 5, "aio-pub-mqtt") as mqtt:
        mqtt.subscribe("aio/pub", 2)
        asyncio.run(run())
        got = [mqtt.expect(wire.Publish) for _ in range(3)]
        assert [(one.payload, one.qos) for one in got] == [(b"0", 1), (b"1", 0), (LONG, 2)]


@pytest.mark.parametrize("client_id", ["aio-sub", ""])
def test_aiocoap_observes(broker: GatewayBroker, client_id: str) -> None:
    """With a connection and without."""
    topic = f"aio/{client_id or 'none'}"

    async def run() -> None:
        async with device_of(broker, client_id) as device, asyncio.timeout(TIMEOUT_S):
            request = device.context.request(device.message(Code.GET, f"ps/{topic}/+", observe=0))
            first = await request.response
            assert first.code == Code.CONTENT and first.opt.observe is not None
            notifications = request.observation.__aiter__()
            for n, qos in enumerate((1, 0, 1, 1)):
                payload = LONG if n == 2 else b"m%d" % n
                await asyncio.to_thread(mqtt.publish, f"{topic}/x", payload, qos)
                got = await anext(notifications)
                assert got.payload == payload
            request.observation.cancel()

    with Client(broker.address, 5, f"aio-mqtt-{client_id}") as mqtt:
        asyncio.run(run())


def test_aiocoap_finds_resources(broker: GatewayBroker) -> None:
    async def run() -> bytes:
        async with device_of(broker) as device:
            answer = await device.request(Code.GET, ".well-known/core")
            assert answer.opt.content_format == 40
            return bytes(answer.payload)

    assert b"</ps>" in asyncio.run(run())


# --- libcoap ----------------------------------------------------------------------------------------------------------------------


def libcoap(broker: GatewayBroker, *args: str, path: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = ["coap-client-openssl", "-v", "6", *args, *(["-f", "-"] if data is not None else [])]
    uri = f"coap://{broker.at[0]}:{broker.at[1]}/{path}"
    return subprocess.run([*command, uri], input=data, capture_output=True, timeout=60)


@needs_libcoap
def test_libcoap_publishes(broker: GatewayBroker) -> None:
    """The commands of docs/gateway-coap.md."""
    with Client(broker.address, 5, "lib-pub-mqtt") as mqtt:
        mqtt.subscribe("lib/#", 2)
        made = libcoap(broker, "-m", "post", path="mqtt/connection?clientid=lib1&username=u&password=p")
        assert made.returncode == 0
        token = made.stdout.split()[-1].decode()
        assert len(token) == 16
        # another socket, so another address: the token moves the connection
        libcoap(broker, "-m", "post", "-e", "21.5", path=f"ps/lib/t?clientid=lib1&token={token}")
        got = mqtt.expect(wire.Publish)
        assert (got.topic, got.payload, got.qos) == ("lib/t", b"21.5", 1)
        libcoap(broker, "-m", "post", "-N", "-e", "non", path=f"ps/lib/t?c=lib1&t={token}&q=2")
        got = mqtt.expect(wire.Publish)
        assert (got.payload, got.qos) == (b"non", 2)
        libcoap(broker, "-m", "put", "-b", "64", path=f"ps/lib/long?clientid=lib1&token={token}", data=LONG)
        assert mqtt.expect(wire.Publish).payload == LONG
        assert b"c:2.02" in libcoap(broker, "-m", "delete", path=f"mqtt/connection?clientid=lib1&token={token}").stdout
        refused = libcoap(broker, "-m", "post", "-e", "x", path=f"ps/lib/t?clientid=lib1&token={token}")
        assert b"4.01" in refused.stdout + refused.stderr


@needs_libcoap
@pytest.mark.parametrize("qos", ["0", "1"])
def test_libcoap_observes(broker: GatewayBroker, qos: str) -> None:
    uri = f"coap://{broker.at[0]}:{broker.at[1]}/ps/lobs/{qos}?qos={qos}"
    with subprocess.Popen(["coap-client-openssl", "-s", "6", "-w", "-m", "get", uri], stdout=subprocess.PIPE) as observer:
        with Client(broker.address, 5, f"lib-obs-{qos}") as mqtt:
            until(lambda: [one for one in broker.ctl("subscriptions list")["data"] if one["topic"] == f"lobs/{qos}"])
            time.sleep(0.5)
            for n in range(3):
                mqtt.publish(f"lobs/{qos}", b"n%d" % n, 1)
            mqtt.publish(f"lobs/{qos}", LONG, 1)
        out = observer.communicate(timeout=30)[0]
    assert [line for line in out.splitlines()[:4] if line.startswith(b"n")] == [b"n0", b"n1", b"n2"], out[:100]
    assert LONG in out
