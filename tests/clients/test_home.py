"""docs/howto-home.md as it stands: users, rules, the announcement of a device, and the flow in Node-RED."""

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardbroker.control import Control
from tests.docs.pages import ROOT, Example, parts_of
from tests.harness import Broker, Client, until
from tests.harness.needed import needed
from tests.harness.npm import installed

pytestmark = pytest.mark.own_broker
BLOCKS = [part for part in parts_of(ROOT / "docs" / "howto-home.md") if isinstance(part, Example)]
NODE_RED = Path(__file__).parent / "node_red"
PASSWORDS = {"homeassistant": b"correct horse", "nodered": b"battery staple", "kitchen": b"cellar door"}
CONFIG = "homeassistant/sensor/kitchen/temperature/config"
START_S = 60.0
"""Of Node-RED on a busy machine."""


def block(kind: str, words: str) -> str:
    """Returns the block of the page that has these words."""
    (found,) = [part.text for part in BLOCKS if part.kind == kind and words in part.text]
    return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Broker]:
    """A broker with the users and the rules of the page."""
    rules = tmp_path / "acl.conf"
    rules.write_text(block("erlang", "homeassistant"))
    settings = {"auth.chain": ["builtin"], "acl.sources": ["file"], "acl.file.path": str(rules)}
    with Broker(2, settings, tmp_path / "data") as broker:
        with Control(broker.data_dir) as control:
            for line in block("sh", "users add").splitlines():
                password, name = shlex.split(line)[1], line.split()[-1]
                assert password.encode() == PASSWORDS[name]
                control.call("users add", name=name, password=password)
        yield broker


def connected(home: Broker, name: str) -> Client:
    return Client(home.address, 5, name, username=name, password=PASSWORDS[name], timeout=10)


def test_home_assistant_finds_a_device_that_has_announced_itself(home: Broker) -> None:
    host, port = home.address
    commands = block("sh", "mosquitto_pub").replace("-h localhost", f"-h {host} -p {port}")
    with connected(home, "homeassistant") as client:
        client.subscribe("home/#", 1)
        subprocess.run(["sh", "-e", "-c", commands], check=True, env={"PATH": str(Path(needed("mosquitto_pub")).parent)})
        seen = [client.recv() for _ in range(2)]
        assert [(one.topic, one.payload) for one in seen] == [
            ("home/kitchen/available", b"online"), ("home/kitchen/state", b'{"t": 21.5}'),
        ]  # fmt: skip
    with connected(home, "homeassistant") as client:  # after a restart of Home Assistant
        client.subscribe("homeassistant/#", 1)
        found = client.recv()
        assert found.topic == CONFIG and found.retain
        announced = json.loads(found.payload)
        assert announced["state_topic"] == "home/kitchen/state"
        client.subscribe(announced["availability_topic"], 1)
        assert client.recv().payload == b"online"
    with connected(home, "kitchen") as client:
        assert client.publish("home/garage/state", b"1", 1).code == 0x87
        assert client.subscribe("home/#", 1, check=False).codes[0] == 0x87
        assert client.subscribe("homeassistant/status", 1).codes[0] == 1


def test_the_flow_switches_the_light(home: Broker, tmp_path: Path) -> None:
    with node_red(home, tmp_path), connected(home, "homeassistant") as client, connected(home, "kitchen") as kitchen:
        client.subscribe("home/light/set", 1)
        until(lambda: "nodered" in subscriptions_of(home), lambda: subscriptions_of(home), START_S)
        for warm, light in ((26.5, b"ON"), (21.5, b"OFF"), (25.1, b"ON")):
            kitchen.publish("home/kitchen/state", b'{"t": %.1f}' % warm, 1)
            assert client.recv().payload == light


def subscriptions_of(home: Broker) -> str:
    with Control(home.data_dir) as control:
        return json.dumps(control.call("subscriptions list"))


@contextmanager
def node_red(home: Broker, place: Path) -> Iterator[None]:
    """Node-RED with the flow of the page, and user and password as its editor keeps them."""
    needed("npm")
    program = installed(NODE_RED, "node-red") / "red.js"
    host, port = home.address
    flow = json.loads(block("json", "mqtt-broker"))
    flow[0] |= {"broker": host, "port": str(port)}
    user = {"user": "nodered", "password": PASSWORDS["nodered"].decode()}
    (place / "flows.json").write_text(json.dumps(flow))
    (place / "flows_cred.json").write_text(json.dumps({"broker": user}))
    (place / "settings.js").write_text(
        'module.exports = {flowFile: "flows.json", credentialSecret: false, uiPort: 0, uiHost: "127.0.0.1", disableEditor: true}\n'
    )
    log = (place / "node-red.log").open("w")
    process = subprocess.Popen(
        [needed("node"), str(program), "-u", str(place), "-s", str(place / "settings.js")], stdout=log, stderr=log
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()
