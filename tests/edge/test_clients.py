"""The clients that people use, over ssl, ws and wss: paho-mqtt, aiomqtt, MQTT.js in node and in a browser."""

import asyncio
import http.server
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from urllib.parse import unquote, urlencode

import aiomqtt
import paho.mqtt.client as mqtt
import pytest

from tests.edge.certificates import Authority
from tests.edge.conftest import Edge
from tests.harness import mqtt_js as mqtt_js_package
from tests.harness.needed import needed

pytestmark = pytest.mark.own_broker
TYPES = ("ssl", "ws", "wss")
TIMEOUT_S = 10.0
BROWSER_S = 60.0
PAYLOADS = [b"", b"one", b"x" * 200_000]


@pytest.fixture(scope="session")
def mqtt_js() -> Path:
    """The directory with MQTT.js."""
    needed("npm", "node")
    mqtt_js_package.install()
    return mqtt_js_package.DIRECTORY


@pytest.mark.parametrize("version", [mqtt.MQTTv311, mqtt.MQTTv5])
@pytest.mark.parametrize("transport", TYPES)
def test_paho(edge: Edge, authority: Authority, name: str, transport: str, version: int) -> None:
    got: Queue[tuple[bytes, int]] = Queue()
    subscribed = threading.Event()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2,
        client_id=name,
        protocol=mqtt.MQTTProtocolVersion(version),
        transport="websockets" if "ws" in transport else "tcp",
    )
    if transport != "ws":
        client.tls_set(str(authority.cafile))
    client.on_connect = lambda *_: client.subscribe(name, 2)
    client.on_subscribe = lambda *_: subscribed.set()
    client.on_message = lambda client, data, message: got.put((message.payload, message.qos))
    client.connect("localhost" if transport != "ws" else "127.0.0.1", edge.ports[transport])
    client.loop_start()
    try:
        assert subscribed.wait(TIMEOUT_S)
        for qos, payload in enumerate(PAYLOADS):
            client.publish(name, payload, qos).wait_for_publish(TIMEOUT_S)
        assert [got.get(timeout=TIMEOUT_S) for _ in PAYLOADS] == [(payload, qos) for qos, payload in enumerate(PAYLOADS)]
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize("transport", TYPES)
def test_aiomqtt(edge: Edge, authority: Authority, name: str, transport: str) -> None:
    async def talk() -> list[bytes]:
        async with aiomqtt.Client(
            "localhost" if transport != "ws" else "127.0.0.1",
            edge.ports[transport],
            identifier=name,
            transport="websockets" if "ws" in transport else "tcp",
            tls_context=authority.client() if transport != "ws" else None,
        ) as client:
            await client.subscribe(name, qos=1)
            for payload in PAYLOADS:
                await client.publish(name, payload, qos=1)
            got = []
            async for message in client.messages:
                got.append(bytes(message.payload))  # type: ignore[arg-type]
                if len(got) == len(PAYLOADS):
                    return got
        raise AssertionError("the connection ended")

    assert asyncio.run(asyncio.wait_for(talk(), TIMEOUT_S)) == PAYLOADS


@pytest.mark.parametrize("version", ["4", "5"])
@pytest.mark.parametrize(("transport", "scheme"), [("ssl", "mqtts"), ("ws", "ws"), ("wss", "wss")])
def test_mqtt_js(edge: Edge, authority: Authority, mqtt_js: Path, name: str, transport: str, scheme: str, version: str) -> None:
    url = f"{scheme}://localhost:{edge.ports[transport]}" if transport != "ws" else f"ws://127.0.0.1:{edge.ports[transport]}"
    path = "/mqtt" if "ws" in transport else ""
    cafile = str(authority.cafile) if transport != "ws" else ""
    command = ["node", "roundtrip.mjs", url + path, name, cafile, version]
    done = subprocess.run(command, cwd=mqtt_js, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [["zero", 4, 0], ["one", 3, 1], ["xxxx", 100000, 2]]


class Page(http.server.ThreadingHTTPServer):
    """Serves the page to a browser, and hears what it says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files = {"/page.html": directory / "page.html", "/mqtt.min.js": directory / "node_modules/mqtt/dist/mqtt.min.js"}
        self.said: Queue[str] = Queue()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Page

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/said":
            self.server.said.put(unquote(query))
        file = self.server.files.get(path)
        self.send_response(200 if file else 404)
        self.end_headers()
        if file:
            self.wfile.write(file.read_bytes())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def page(mqtt_js: Path) -> Iterator[Page]:
    with Page(mqtt_js) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("transport", ["ws", "wss"])
def test_a_browser(edge: Edge, page: Page, name: str, transport: str, tmp_path: Path) -> None:
    chromium = needed("chromium")
    query = urlencode({"url": f"{transport}://127.0.0.1:{edge.ports[transport]}/mqtt", "topic": name})
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--ignore-certificate-errors"]
    address = f"http://127.0.0.1:{page.server_port}/page.html?{query}"
    browser = subprocess.Popen(
        [chromium, *options, f"--user-data-dir={tmp_path}", address],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert page.said.get(timeout=BROWSER_S) == "got 5 and 70000"
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait()
