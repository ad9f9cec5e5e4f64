"""`ctl upgrade` with gateways: their devices stay connected, with what they have registered and what is on its way."""

import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.edge.certificates import Authority
from tests.gateways import coap_client as coap
from tests.gateways import mqttsn_client as norm
from tests.gateways.conftest import GatewayBroker
from tests.gateways.mqttsn_client import DUP, NAME, MqttSnClient
from tests.handoff.test_upgrade import LONGEST_S, Upgradable
from tests.harness import Client, Publish, free_port, until

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(600)]
HANDOFF = "shardbroker/gateways/handoff.py"
KEEPALIVE_S = 600
STREAM_PACE_S = 0.2


def pids(broker: GatewayBroker, kind: str = "mqttsn") -> set[int]:
    """The kernel has 15 characters of a title."""
    return {*broker.child_pids(f"sb-gateway-{kind}"[:15])}


class Stream:
    """A device that publishes with QoS 1, and sends again what is not acknowledged, while an MQTT client reads."""

    def __init__(self, broker: GatewayBroker, name: str) -> None:
        self.mqtt = Client(broker.address, 5, f"{name}-mqtt", timeout=60)
        self.mqtt.subscribe(f"{name}/up", 1)
        self.device = broker.mqttsn()
        self.device.connect(name, KEEPALIVE_S)
        self.topic_id = self.device.register(f"{name}/up")
        self.ends = threading.Event()
        self.sent, self.answers = 0, [b""]
        self.problem = ""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            while not self.ends.is_set():
                self.sent += 1
                self._publish(b"%d" % self.sent)
                time.sleep(STREAM_PACE_S)
        except Exception as error:
            self.problem = repr(error)

    def _publish(self, payload: bytes) -> None:
        message_id = self.device.next_id()
        for attempt in range(30):
            self.device.raw(norm.publish(NAME, self.topic_id, payload, 1, message_id, DUP if attempt else 0))
            try:
                while True:
                    got = self.device.recv(2.0)
                    assert got.name == "PUBACK" and got.fields[2] == 0, got
                    if got.fields[1] == message_id:
                        return
            except TimeoutError:
                continue
        raise AssertionError(f"no PUBACK for {payload!r}")

    def check(self) -> None:
        """Ends the stream: each message has arrived, once and in order."""
        self.ends.set()
        self.thread.join()
        assert not self.problem
        got = [int(self.mqtt.expect(Publish, timeout=30).payload) for _ in range(self.sent)]
        assert got == [*range(1, self.sent + 1)]
        self.device.socket.close()
        self.mqtt.close()


@pytest.fixture
def sn(tmp_path: Path) -> Iterator[Upgradable]:
    settings = {"processes": 2, "retry_interval": "300s"}
    with Upgradable(tmp_path, GatewayBroker(2, settings, "mqttsn")) as made:
        yield made


def gateway_of(made: Upgradable) -> GatewayBroker:
    assert isinstance(made.broker, GatewayBroker)
    return made.broker


def publish_from(broker: GatewayBroker, topic: str, payload: bytes, qos: int = 1) -> None:
    with Client(broker.address, 5, "now-and-then", timeout=60) as mqtt:
        mqtt.publish(topic, payload, qos)


def test_devices_of_mqttsn_notice_nothing(sn: Upgradable) -> None:
    sn.code.install("0.1.2")
    broker = gateway_of(sn)
    streams = [Stream(broker, f"stream{n}") for n in range(3)]
    with (
        broker.mqttsn() as active, broker.mqttsn() as sleeper, broker.mqttsn() as half, broker.mqttsn() as taker,
        Client(broker.address, 5, "reader", timeout=60) as reader,
    ):  # fmt: skip
        reader.subscribe("half/#", 2)
        active.connect("active", KEEPALIVE_S)
        down = active.subscribe("down/active")
        sleeper.connect("sleeper", KEEPALIVE_S, 0, will=("will/sleeper", b"lost", 0))
        sleeper.subscribe("down/sleeper")
        sleeper.sleep(KEEPALIVE_S)
        publish_from(broker, "down/sleeper", b"while it sleeps")
        half.connect("half", KEEPALIVE_S)
        topic_id = half.register("half/up")
        half.raw(norm.publish(NAME, topic_id, b"once", 2, 77))
        half.expect("PUBREC", 77)
        taker.connect("taker", KEEPALIVE_S)
        taker.subscribe("down/taker")
        publish_from(broker, "down/taker", b"first")
        got = taker.recv()
        while got.name == "REGISTER":
            taker.send("REGACK", struct.pack("!HHB", *got.fields, 0))
            got = taker.recv()
        before, connected = pids(broker), times_of(broker, NAMES)
        found = sn.check()
        ways = {part["part"]: part["way"] for part in found["parts"]}
        assert (ways["gateway-mqttsn-0"], ways["gateway-mqttsn-1"], found["disconnects"]) == ("moved", "moved", False)
        sn.upgrade_to("0.1.2")
        assert len(before) == 2 and not before & pids(broker)
        # A PUBLISH in the middle of QoS 2: a copy of it is no other message, and its PUBREL completes it.
        half.raw(norm.publish(NAME, topic_id, b"once", 2, 77, DUP))
        half.expect("PUBREC", 77)
        half.send("PUBREL", struct.pack("!H", 77))
        half.expect("PUBCOMP", 77)
        half.publish(topic_id, b"then", 1)
        assert [reader.expect(Publish).payload for _ in range(2)] == [b"once", b"then"]
        # A message that is not acknowledged yet keeps its id, and the next one waits for it.
        publish_from(broker, "down/taker", b"second")
        taker.expect_nothing()
        taker.send("PUBACK", struct.pack("!HHB", *got.fields[1:], 0))
        assert got.rest == b"first" and taker.take()[2] == b"second"
        # Topic ids are as they were registered; a device that sleeps is awaited, and has its messages.
        publish_from(broker, "down/active", b"x")
        assert active.take()[1:] == (down, b"x")
        sleeper.send("PINGREQ", b"sleeper")
        assert sleeper.take()[2] == b"while it sleeps"
        sleeper.expect("PINGRESP")
        for stream in streams:
            stream.check()
        assert times_of(broker, NAMES) == connected, "a device has another connection to its worker"
        until(lambda: "gateway replaced" in sn.log)
        assert "gateway client disconnected" not in sn.log
        sn.upgrade_to("0.1.3")
        active.send("PINGREQ")
        active.expect("PINGRESP")


def test_what_arrives_during_the_pause_is_handled_behind_it(tmp_path: Path) -> None:
    """The device sends nothing twice, and gets nothing twice."""
    with (
        Upgradable(tmp_path, GatewayBroker(1, {"retry_interval": "300s", "max_inflight": UNDER_WAY}, "mqttsn")) as made,
        one_device(gateway_of(made)) as device, Client(made.broker.address, 5, "other", timeout=60) as other,
    ):  # fmt: skip
        topic_id = device.register("kept/up")
        sent: list[int] = []
        acknowledged: list[int] = []
        down: list[bytes] = []

        def take(timeout_s: float) -> None:
            with suppress(TimeoutError):
                while True:
                    got = device.recv(timeout_s)
                    if got.name == "PUBLISH":
                        down.append(got.rest)
                        device.send("PUBACK", struct.pack("!HHB", *got.fields[1:], 0))
                    else:
                        assert (got.name, got.fields[2]) == ("PUBACK", 0), got
                        acknowledged.append(got.fields[1])

        made.code.install("0.1.2")
        at = "                state = _from_memory"
        made.code.replace(HANDOFF, at, f"                time.sleep({PAUSE_S})\n{at}")
        made.call("upgrade")
        deadline = time.monotonic() + LONGEST_S
        while "gateway replaced" not in made.log:
            assert time.monotonic() < deadline, made.log
            if len(sent) < len(acknowledged) + UNDER_WAY:
                sent.append(device.next_id())
                device.raw(norm.publish(NAME, topic_id, b"%d" % len(sent), 1, sent[-1]))
                if len(sent) % 10 == 0:
                    other.publish("kept/down", b"%d" % len(sent), 1)
            take(0.05)

        def has_all() -> bool:
            take(0.1)
            return len(acknowledged) == len(sent) and len(down) == len(sent) // 10

        until(has_all, lambda: f"{acknowledged} of {sent}, {down}", 60)
        assert acknowledged == sent and down == [b"%d" % (10 * (n + 1)) for n in range(len(down))]
        pause = next(line for line in made.log.splitlines() if "gateway replaced" in line).partition("pause=")[2]
        assert float(pause.partition("ms")[0]) >= 1000 * PAUSE_S


PAUSE_S = 2
UNDER_WAY = 20
"""Messages of a device without PUBACK; the gateway refuses more."""
NAMES = ("active", "sleeper", "half", "taker")


def times_of(broker: GatewayBroker, names: Sequence[str]) -> dict[str, object]:
    """When each client has connected to its worker."""
    return {
        name: until(lambda name=name: [one["connected_at"] for one in broker.ctl("clients list", clientid=name)["data"]])
        for name in names
    }


def test_devices_of_coap_notice_nothing(tmp_path: Path) -> None:
    with Upgradable(tmp_path, GatewayBroker(2, {"processes": 2, "heartbeat": "600s"}, "coap")) as made:
        broker = gateway_of(made)
        broker.wait_for_log("gateway listener opened")
        with broker.coap() as observer, broker.coap() as loose, broker.coap() as sender, broker.coap() as parts:
            observer.connect("observer", clean_start="true")
            observing = observer.observe("down/observer")
            token = loose.observe("down/loose")  # without a connection
            sender.connect("sender")
            request = coap.message(
                coap.CON, coap.POST, 4711, b"tok", coap.options_of("ps/up", sender.auth | {"retain": "true"}), b"once"
            )  # fmt: skip
            sender.raw(request)
            answer = sender.recv()
            assert answer.text == "2.04"
            parts.connect("parts")
            body = bytes(range(256)) * 8

            def send_block(number: int) -> str:
                more = {"block1": coap.block(number, number < 1, 6)}
                return parts.request(coap.POST, "ps/body", body[1024 * number : 1024 * (number + 1)], more=more).text

            assert send_block(0) == "2.31"
            before = pids(broker, "coap")
            made.code.install("0.1.2")
            found = made.check()
            ways = {part["part"]: part["way"] for part in found["parts"]}
            assert (ways["gateway-coap-0"], ways["gateway-coap-1"], found["disconnects"]) == ("moved", "moved", False)
            publish_from(broker, "down/observer", b"first")  # which is sent again for 62 s at least
            first = observer.recv()
            assert (first.kind, first.token, first.payload) == (coap.CON, observing, b"first")
            publish_from(broker, "down/observer", b"second")  # it waits for the acknowledgement
            made.upgrade_to("0.1.2")
            assert len(before) == 2 and not before & pids(broker, "coap")
            # The message that is not acknowledged comes again under its id, and the next one behind its ACK.
            while (got := observer.recv(60.0)).payload == b"first":
                assert got.mid == first.mid
                observer.raw(coap.message(coap.ACK, 0, got.mid))
            assert (got.token, got.payload) == (observing, b"second")
            assert (got.uint(coap.OBSERVE) or 0) > (first.uint(coap.OBSERVE) or 0)
            observer.take(got)
            assert observer.request(coap.PUT, "mqtt/connection").text == "2.04", "the token is as it was"
            publish_from(broker, "down/loose", b"to the address")
            got = loose.notified(60.0)
            assert (got.token, got.payload) == (token, b"to the address")
            # A copy of a request gets the same answer, and is no other request.
            with Client(broker.address, 5, "reader", timeout=60) as reader:
                reader.subscribe("#", 1)
                assert reader.expect(Publish).payload == b"once", "the retained message"
                sender.raw(request)
                assert sender.recv(60.0) == answer
                assert send_block(1) == "2.04"
                got = reader.expect(Publish)
                assert (got.topic, got.payload) == ("body", body)
            assert "gateway client disconnected" not in made.log


def test_settings_and_counts_go_on(sn: Upgradable) -> None:
    broker = gateway_of(sn)
    with broker.mqttsn() as device:
        device.connect("counted", KEEPALIVE_S)
        topic_id = device.register("counted/up")
        device.publish(topic_id, b"x")
        until(lambda: broker.figures("mqttsn")["messages_in"] == 1)
        sn.call("config set", key="gateways.mqttsn.gateway_id", value="7")
        sn.upgrade_to("0.1.2")
        device.publish(topic_id, b"y")
        until(lambda: broker.figures("mqttsn")["messages_in"] == 2)
        assert broker.figures("mqttsn")["accepted"] == 1
        device.send("SEARCHGW", b"\x01")
        device.expect("GWINFO", 7)
        sn.call("config set", key="gateways.mqttsn.gateway_id", value="8")
        with broker.mqttsn() as other:

            def gateway_id() -> int:
                other.send("SEARCHGW", b"\x01")
                return other.expect("GWINFO").fields[0]

            until(lambda: gateway_id() == 8, timeout_s=30)
            other.connect("late", KEEPALIVE_S)


def test_devices_over_dtls_are_disconnected_as_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("broker", "broker", ("localhost", "127.0.0.1"))
    port = free_port()
    settings = {
        "listeners.secure.bind": f"127.0.0.1:{port}", "listeners.secure.type": "dtls",
        "listeners.secure.tls.certfile": authority.directory / "broker.pem",
    }  # fmt: skip
    command = ["openssl", "s_client", "-dtls1_2", "-quiet", "-connect", f"127.0.0.1:{port}", "-CAfile", str(authority.cafile)]
    (tmp_path / "code").mkdir()
    with Upgradable(tmp_path / "code", GatewayBroker(1, settings, "mqttsn")) as made, gateway_of(made).mqttsn() as plain:
        broker = gateway_of(made)
        broker.wait_for_log("gateway listener opened", "mqttsn:dtls:secure")
        plain.connect("plain", KEEPALIVE_S)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.write(norm.connect("dtls-sn", KEEPALIVE_S))
            client.stdin.flush()
            assert client.stdout.read(3) == b"\x03\x05\x00"

            def part() -> dict[str, str]:
                return next(one for one in made.check()["parts"] if one["part"] == "gateway-mqttsn-0")

            until(lambda: part()["reason"], timeout_s=60)
            assert (part()["way"], part()["reason"].split(":")[0]) == ("moved", "1 clients over DTLS are disconnected")
            assert "some clients are disconnected" in made.ctl("upgrade", "--check", code=4)
            assert "clients would be disconnected" in made.ctl("upgrade", "--no-drain", code=1)
            made.upgrade_to("0.1.2")
            assert client.stdout.read(2) == b"\x02\x18", "no DISCONNECT"
            until(lambda: not any(one["connected"] for one in broker.ctl("clients list", clientid="dtls-sn")["data"]))
            client.kill()
        plain.send("PINGREQ")
        plain.expect("PINGRESP")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
            assert client.stdin is not None and client.stdout is not None
            client.stdin.write(norm.connect("dtls-sn", KEEPALIVE_S))
            client.stdin.flush()
            assert client.stdout.read(3) == b"\x03\x05\x00"
            client.kill()


KILL = "os.kill(os.getpid(), 9)\n"
OLD, NEW, LOST = "the old process serves", "the new process serves", "the gateway is started again"
SUCCESSOR = {
    "before it says hello": ('            self._peer.send({"hello"', OLD),
    "before it takes the state": ("                state = _from_memory", OLD),
    "once it has the state": ("        self._commit(predecessor", OLD),
    "once it has everything": ("        gateway.serve_on(", LOST),
}
"""Where the new process is killed, and what follows."""
PREDECESSOR = {
    "before it writes the state": ("    state, descriptors = gateway.image()", LOST),
    "before it sends the sockets": ("    peer.send_all(descriptors", LOST),
    "once it has sent everything": ("    adopted, _ = peer.receive(deadline)", NEW),
    'before it says "yours"': ('    peer.send({"yours"', NEW),
    'once it has said "yours"': ("        gateway.leave()", NEW),
}


def follow(made: Upgradable, before: set[int], device: MqttSnClient, outcome: str) -> None:
    """Asserts that the outcome is the expected one: for the process, the upgrade and the device."""
    state, broker = made.upgrade(), gateway_of(made)
    if outcome is OLD:
        assert state["phase"] == "failed" and state["problem"].startswith("gateway-mqttsn-0: it continues"), state
        assert pids(broker) == before
    else:
        assert state["phase"] == "done", f"{state}\n{made.log}"
        assert not before & pids(broker)
    device.knock(norm.framed("PINGREQ"))
    if outcome is LOST:
        device.expect("DISCONNECT")
        with suppress(TimeoutError):
            while device.recv(1.0).name == "DISCONNECT":  # of the old process, and for each PINGREQ
                pass
        device.connect("kept", KEEPALIVE_S, 0)
    else:
        device.expect("PINGRESP")
    publish_from(broker, "kept/down", b"after")
    assert device.take()[2] == b"after"


def one_device(broker: GatewayBroker) -> MqttSnClient:
    device = broker.mqttsn()
    device.connect("kept", KEEPALIVE_S, 0)
    device.subscribe("kept/down")
    publish_from(broker, "kept/down", b"before")
    assert device.take()[2] == b"before"
    return device


@pytest.mark.parametrize("moment", SUCCESSOR)
def test_the_new_process_is_killed(tmp_path: Path, moment: str) -> None:
    at, outcome = SUCCESSOR[moment]
    with Upgradable(tmp_path, GatewayBroker(1, {}, "mqttsn")) as made, one_device(gateway_of(made)) as device:
        made.broker.expects("successor ended")
        made.broker.expects("gateway not replaced")
        made.broker.expects("process died")
        made.code.install("0.1.2")
        made.code.replace(HANDOFF, at, f"{at[: len(at) - len(at.lstrip())]}{KILL}{at}")
        follow(made, pids(gateway_of(made)), device, outcome)


@pytest.mark.parametrize("moment", PREDECESSOR)
def test_the_old_process_is_killed(tmp_path: Path, moment: str) -> None:
    at, outcome = PREDECESSOR[moment]
    made = Upgradable(tmp_path, GatewayBroker(1, {}, "mqttsn"))
    made.code.replace(HANDOFF, at, f"{at[: len(at) - len(at.lstrip())]}{KILL}{at}")
    made.broker.expects("process died")
    made.broker.expects("successor ends")
    made.broker.expects("successor ended")
    with made, one_device(gateway_of(made)) as device:
        made.code.restore(HANDOFF)
        made.code.install("0.1.2")
        follow(made, pids(gateway_of(made)), device, outcome)


def test_an_error_in_the_last_step_of_the_old_process_ends_it(tmp_path: Path) -> None:
    """It must not serve on beside the new one: the new process is not kept waiting, and has no process to kill."""
    made = Upgradable(tmp_path, GatewayBroker(1, {}, "mqttsn"))
    made.code.replace(HANDOFF, "        gateway.leave()", '        raise ValueError("in the last step")')
    with made, one_device(gateway_of(made)) as device:
        made.code.restore(HANDOFF)
        made.code.install("0.1.2")
        follow(made, pids(gateway_of(made)), device, NEW)
        until(lambda: "process replaced" in made.log)
        assert "in the last step" not in made.log


FAULTS = {
    "fails": '                raise ValueError("the fault")\n',
    "hangs": "                time.sleep(60)\n",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_new_process_that_cannot_take_over_leaves_the_old_one_as_it_was(tmp_path: Path, fault: str) -> None:
    """And with code that can, the next upgrade continues."""
    made = Upgradable(tmp_path, GatewayBroker(1, {}, "mqttsn"))
    made.code.replace(HANDOFF, "ADOPTED_S = 10.0", "ADOPTED_S = 1.0")
    for line in ("gateway not replaced", "successor end", "the fault"):
        made.broker.expects(line)
    with made, one_device(gateway_of(made)) as device:
        at = "                state = _from_memory"
        made.code.install("0.1.2")
        made.code.change(HANDOFF, at, FAULTS[fault] + at)
        follow(made, pids(gateway_of(made)), device, OLD)
        made.code.change(HANDOFF, FAULTS[fault], "")
        made.code.install("0.1.3")
        follow(made, pids(gateway_of(made)), device, NEW)


def test_a_format_that_the_new_code_does_not_read_is_a_restart_as_told(tmp_path: Path) -> None:
    with Upgradable(tmp_path, GatewayBroker(1, {}, "mqttsn")) as made, one_device(gateway_of(made)) as device:
        made.code.install("0.1.2")
        made.code.replace("shm/roles.py", "loads_late=True, moves=1)", "loads_late=True, moves=2)")
        (part,) = [one for one in made.check()["parts"] if one["part"] == "gateway-mqttsn-0"]
        assert (part["way"], part["reason"]) == ("drained", "the installed version has another format of the hand-over")
        follow(made, pids(gateway_of(made)), device, LOST)


def test_a_gateway_without_a_hand_over_is_restarted_as_told(tmp_path: Path) -> None:
    with Upgradable(tmp_path, GatewayBroker(1, {}, "stomp")) as made:
        (part,) = [one for one in made.check()["parts"] if one["part"].startswith("gateway-stomp")]
        assert part["way"] == "drained" and "no hand-over" in part["reason"]
        made.upgrade_to("0.1.2")
