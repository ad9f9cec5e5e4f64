"""The frame of gateways with a real broker: a killed process, limits, TLS, settings that change, wrong settings, the REST API."""

import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shardbroker.control import ControlError
from tests.api.rest import ApiBroker, Rest
from tests.edge.certificates import Authority
from tests.gateways.conftest import GatewayBroker
from tests.gateways.stomp_client import StompClient
from tests.harness import Client, free_port, until

pytestmark = pytest.mark.own_broker


def row_of(broker: GatewayBroker) -> dict[str, Any]:
    """The gateway in `gateways list`."""
    return next(row for row in broker.ctl("gateways list")["data"] if row["name"] == "stomp")


# --- kill -9 ----------------------------------------------------------------------------------------------------------------------


PAUSE_S = 0.1
"""Between two windows of a publisher: the session's queue never fills up."""


class Publisher(threading.Thread):
    """Publishes numbers with receipts, a window of them at a time, and connects again for ever; `acked`: those with a receipt."""

    def __init__(self, broker: GatewayBroker, topic: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._topic = broker, topic
        self.acked: set[int] = set()
        self.stopping = threading.Event()
        self._next = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with self._broker.stomp() as client:
                    client.connect()
                    self._publish(client)
            except (OSError, AssertionError):
                continue  # the gateway was killed

    def _publish(self, client: StompClient) -> None:
        while not self.stopping.is_set():
            numbers = range(self._next, self._next + 20)
            self._next = numbers.stop
            for number in numbers:
                client.send("SEND", b"%d" % number, destination=self._topic, receipt=str(number))
            for _ in numbers:
                self.acked.add(int(client.expect("RECEIPT").headers["receipt-id"]))
            time.sleep(PAUSE_S)


class Subscriber(threading.Thread):
    """Acknowledges each message, and connects again when the gateway was killed; `seen`: numbers by topic."""

    def __init__(self, broker: GatewayBroker, name: str) -> None:
        super().__init__(daemon=True)
        self._broker, self._name = broker, name
        self.seen: list[set[int]] = [set(), set()]
        self.stopping = threading.Event()
        self.reconnect()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.step()

    def reconnect(self) -> None:
        self.client = self._broker.stomp()
        self.client.connect(client_id=self._name)
        self.client.send("SUBSCRIBE", id="1", destination=f"{self._name}/+", ack="client-individual")

    def step(self) -> None:
        """Takes one message, if one comes."""
        try:
            frame = self.client.recv(0.5)
            if frame is None:
                raise ConnectionError
            if frame.command == "MESSAGE":
                self.seen[int(frame.headers["destination"][-1])].add(int(frame.body))
                self.client.send("ACK", id=frame.headers["ack"])
        except TimeoutError:
            return
        except (OSError, AssertionError):
            self.client.socket.close()
            with suppress(OSError, AssertionError):  # killed again
                self.reconnect()

    def has(self, publishers: list[Publisher]) -> bool:
        return all(one.acked <= numbers for one, numbers in zip(publishers, self.seen, strict=True))


def test_a_killed_gateway_loses_nothing_acknowledged(name: str) -> None:
    """Publishers get receipts; a subscriber with a session acknowledges each message; the gateway is killed five times."""
    with GatewayBroker(workers=3) as broker:
        subscriber = Subscriber(broker, name)
        publishers = [Publisher(broker, f"{name}/{n}") for n in range(2)]
        for one in (subscriber, *publishers):
            one.start()
        for kill in range(5):
            until(lambda: sum(map(len, subscriber.seen)) > 150 * (kill + 1), timeout_s=30)  # noqa: B023
            (pid,) = until(lambda: broker.child_pids("gateway"))
            broker.kill_process(pid)
        for one in publishers:
            one.stopping.set()
            one.join(30)
            assert not one.is_alive()
        until(lambda: subscriber.has(publishers), lambda: str([one.acked for one in publishers]), 30)
        assert all(len(one.acked) > 50 for one in publishers)
        row = until(lambda: [one for one in broker.ctl("clients list", clientid=name)["data"] if one["connected"]])[0]
        assert row["listener"] == "stomp:tcp:default"
        subscriptions = broker.ctl("subscriptions list", clientid=name)["data"]
        assert [one["topic"] for one in subscriptions] == [f"{name}/+"]
        subscriber.stopping.set()
        subscriber.join(30)
        subscriber.client.socket.close()


def test_the_broker_sends_devices_away_when_it_stops(name: str) -> None:
    with GatewayBroker(workers=2) as broker:
        client = broker.stomp()
        client.connect(client_id=name)
        broker.terminate()
        client.expect_error("the broker has ended the session", "server shutting down")


# --- limits and access ------------------------------------------------------------------------------------------------------------


def test_connections_above_the_limit_are_closed() -> None:
    with GatewayBroker(2, {"listeners.default.max_connections": 2}) as broker:
        with broker.stomp() as first, broker.stomp() as second:
            first.connect()
            second.connect()
            with broker.stomp() as third:
                assert third.recv() is None
            broker.wait_for_log("gateway client refused", "max_connections = 2 is reached")
            until(lambda: row_of(broker)["current_connections"] == 2)  # the gateway records it from time to time
        until(lambda: row_of(broker)["current_connections"] == 0)
        with broker.stomp() as again:
            again.connect()


def test_access_rules() -> None:
    with GatewayBroker(1, {"listeners.default.access_rules": '["deny 127.0.0.0/8", "allow all"]'}) as broker:
        broker.wait_for_log("gateway listener opened")
        with broker.stomp() as client:
            assert client.recv() is None
        broker.wait_for_log("gateway client refused", "reason=access_rules")


def test_rates_hold_for_devices(name: str) -> None:
    with GatewayBroker(1, {"listeners.default.messages_rate": "100/s"}) as broker, broker.stomp() as client:
        client.connect()
        for n in range(400):
            client.send("SEND", destination=f"{name}/x", receipt=str(n))
        client.socket.settimeout(1.0)
        got = 0
        with pytest.raises(TimeoutError):
            while True:
                client.recv(1.0 - 0.5 * (got > 0))
                got += 1
                if got == 390:
                    break
        assert got < 390


def test_authentication_of_the_gateway_alone(name: str) -> None:
    """The chain of the gateway holds for its clients; the broker's own listener stays open."""
    with GatewayBroker(2, {"authentication": '["builtin"]'}) as broker:
        with Client(broker.address, 5, f"{name}-mqtt"):
            pass
        broker.ctl("users add", name="ada", password="secret")
        with broker.stomp() as client:
            client.connect(login="ada", passcode="secret")
        for headers in ({}, {"login": "ada", "passcode": "wrong"}):
            with broker.stomp() as client:
                client.send("CONNECT", accept_version="1.2", host="h", **headers)
                client.expect_error("the broker rejects the client")


def test_rules_of_the_broker_hold(name: str, tmp_path: Path) -> None:
    rules = tmp_path / "acl.conf"
    rules.write_text('{deny, all, all, ["closed/#"]}.\n{allow, all}.\n')
    with GatewayBroker(2, None, acl__sources="file", acl__file__path=rules) as broker:
        for command, headers in (("SEND", {}), ("SUBSCRIBE", {"id": "1"})):
            with broker.stomp() as client:
                client.connect()
                client.send(command, destination="closed/a", receipt="r", **headers)
                assert client.expect_error(command, "not authorized").headers["receipt-id"] == "r"


def test_mount_point(name: str) -> None:
    with GatewayBroker(2, {"mountpoint": "plant/${username}/"}) as broker, broker.stomp() as client:
        client.connect(login="ada")
        client.done("SUBSCRIBE", id="1", destination="x/+")
        with Client(broker.address, 5, f"{name}-mqtt") as mqtt:
            mqtt.publish("plant/ada/x/y", b"m", 1)
        client.expect("MESSAGE", destination="x/y")


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("broker", "broker", ("localhost", "127.0.0.1"))
    certfile = authority.directory / "broker.pem"
    settings = {"listeners.default.type": "ssl", "listeners.default.tls.certfile": certfile}
    with GatewayBroker(1, settings) as broker:
        broker.wait_for_log("gateway listener opened")
        context = ssl.create_default_context(cafile=str(authority.cafile))
        wrapped = context.wrap_socket(socket.create_connection(broker.at, 10), server_hostname="localhost")
        with StompClient(broker.at, wrapped) as client:
            client.connect()
            client.done("SEND", destination="a/b")
            client.done("DISCONNECT")
        certfile.write_text("nothing")
        broker.wait_for_log("gateway tls files not reloaded")
        authority.issue("broker", "another", ("localhost", "127.0.0.1"))

        def renewed() -> bool:
            with suppress(ConnectionError):
                secured = context.wrap_socket(socket.create_connection(broker.at, 10), server_hostname="localhost")
                with secured:
                    return "another" in str(secured.getpeercert())
            return False

        until(renewed)


# --- settings ---------------------------------------------------------------------------------------------------------------------


def test_it_starts_and_stops_while_the_broker_runs(name: str) -> None:
    with GatewayBroker(2, {"enable": None}) as broker:
        assert broker.child_pids("gateway") == []
        assert row_of(broker)["status"] == "unloaded"
        for _ in range(2):
            broker.ctl("gateways enable", name="stomp", enable=True)
            client = broker.stomp()
            client.connect(client_id=name)
            client.done("SEND", destination="a")
            until(lambda: row_of(broker)["status"] == "running")
            broker.ctl("gateways enable", name="stomp", enable=False)
            client.expect_error()
            until(lambda: _closed(broker.at))


def test_a_setting_of_the_command_line_cannot_be_changed() -> None:
    with GatewayBroker(1) as broker:
        with pytest.raises(ControlError, match="must be changed where it is set, by --set"):
            broker.ctl("gateways enable", name="stomp", enable=False)
        assert row_of(broker)["status"] != "unloaded"


def _closed(at: tuple[str, int]) -> bool:
    try:
        socket.create_connection(at, 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_another_listener_while_the_broker_runs(name: str) -> None:
    with GatewayBroker(2) as broker, broker.stomp() as client:
        client.connect(client_id=name)
        port = free_port()
        broker.ctl("config set", key="gateways.stomp.listeners.more.bind", value=f"127.0.0.1:{port}")
        until(lambda: not _closed(("127.0.0.1", port)))
        with StompClient(("127.0.0.1", port)) as other:
            other.connect(client_id=f"{name}-other")
            row = until(lambda: next(iter(broker.ctl("clients list", clientid=f"{name}-other")["data"]), None))
            assert row["listener"] == "stomp:tcp:more"


def test_listeners_of_gateways_are_not_for_operators() -> None:
    with GatewayBroker(2) as broker:
        assert [row["name"] for row in broker.ctl("listeners list")["data"]] == ["default"]
        for verb in ("listeners stop", "listeners remove"):
            with pytest.raises(ControlError, match="belongs to a gateway"):
                broker.ctl(verb, name="stomp:tcp:default")


def test_an_address_in_use_is_an_alarm() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with GatewayBroker(1, {"listeners.default.bind": f"127.0.0.1:{port}"}) as broker:
            broker.wait_for_log("gateway listener not opened", "listener=stomp:tcp:default")
            broker.wait_for_log("alarm activated", "gateway_listener_failed")
            row = until(lambda: row_of(broker))["listeners"][0]
            assert not row["running"] and "in use" in row["problem"]
            taken.close()
            broker.wait_for_log("alarm deactivated", "gateway_listener_failed")


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("gateways.stomp.listeners.default.bind=nowhere", "HOST:PORT"),
        ("gateways.stomp.listeners.UP.bind=127.0.0.1:1", "allowed is a name of a-z"),
        ("gateways.stomp.listeners.default.type=ssl", "tls.certfile"),
        ("gateways.stomp.mountpoint=a/#", "ends with /"),
        ("gateways.stomp.frame.max_headers=0", "max_headers"),
        ("gateways.stomp.authentication=[\"nothing\"]", "nothing"),
        ("gateways.stmp.enable=true", "gateways.stmp"),
    ],
)
def test_wrong_settings_are_named(setting: str, text: str) -> None:
    program = Path(sys.executable).with_name("shardbroker")
    command = [program, "config", "check", "--set=gateways.stomp.enable=true", f"--set={setting}"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode != 0 and text in found.stdout + found.stderr, found


# --- REST, metrics ----------------------------------------------------------------------------------------------------------------


def test_rest_and_metrics(name: str) -> None:
    port = free_port()
    settings: dict[str, Any] = {"gateways.stomp.listeners.default.bind": f"127.0.0.1:{port}"}
    with ApiBroker(2, settings) as broker:
        rest = Rest.logged_in(broker)
        rest.good("PUT", "/gateways/stomp/enable/true")
        until(lambda: rest.good("GET", "/gateways")[-1]["status"] == "running")
        until(lambda: not _closed(("127.0.0.1", port)))
        with StompClient(("127.0.0.1", port)) as client:
            client.connect(client_id=name)
            client.done("SEND", destination="a")
            (row,) = until(lambda: rest.good("GET", "/gateways/stomp/clients")["data"])
            assert (row["clientid"], row["proto_name"], row["connected"]) == (name, "STOMP", True)
            shown = until(lambda: (found := rest.good("GET", "/gateways/stomp"))["figures"].get("messages_in") and found)
            assert (shown["name"], shown["enable"], shown["current_connections"]) == ("stomp", True, 1)
            assert shown["listeners"][0]["id"] == "stomp:tcp:default" and shown["listeners"][0]["running"]
            text = rest.good("GET", "/prometheus/stats")
            assert 'shardbroker_gateway_up{gateway="stomp"} 1' in text
            assert 'shardbroker_gateway_connections{listener="stomp:tcp:default"} 1' in text
            assert 'shardbroker_gateway_messages_in{gateway="stomp"} 1' in text
            assert rest.refused("GET", "/gateways/nothing") == (404, "NOT_FOUND")
            rest.good("PUT", "/gateways/stomp/enable/false")
            client.expect_error("the")
        assert rest.good("GET", "/gateways")[-1]["status"] == "unloaded"
