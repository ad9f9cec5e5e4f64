"""Sessions of the CoAP gateway with the real protocol core of a worker, without I/O."""

import itertools
from typing import Any

import pytest

from shardbroker.config.gateways import CoapGateway
from shardbroker.gateways.coap.door import CoapDoor
from shardbroker.gateways.coap.session import FIGURES, GUESSES, QUEUE, CoapSession
from shardbroker.gateways.datagrams import Verdict
from shardbroker.mqtt import packets as mqtt
from tests.gateways import coap_client as norm
from tests.gateways.coap_client import (
    ACK,
    BLOCK1,
    BLOCK2,
    CON,
    CONTENT_FORMAT,
    DELETE,
    ETAG,
    GET,
    MAX_AGE,
    NON,
    OBSERVE,
    POST,
    PUT,
    RST,
    SIZE1,
    Got,
    block,
    options_of,
)  # fmt: skip
from tests.gateways.mqttsn_sim import Place, World
from tests.gateways.test_mqttsn_session import Mqtt, is_replaced  # noqa: F401 - a fixture for all tests

REGISTER, DEREGISTER = b"", b"\x01"
TOKEN = b"\x0a\x0b"


class CoapWorld(World):
    """A broker of one worker, a CoAP gateway, and the time."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.coap = CoapGateway(**settings)
        self.figures = dict.fromkeys(FIGURES, 0)


class CoapPlace(Place):
    """What the gateway has of one address; without a session, its door."""

    world: CoapWorld
    is_stalled = False
    """Whether the broker does not answer."""

    def receive(self, data: bytes) -> None:
        world = self.world
        if self.session is None:
            door = CoapDoor(lambda: world.coap, 128, "", world.figures)
            knock = door.knock(data)
            if knock.verdict is not Verdict.OPEN:
                self.answers = [knock.answer] if knock.answer else []
                return
            self.session = self.fresh()
        assert self.session is not None
        self.session.from_device(data, world.now_s)

    def fresh(self) -> Any:
        return CoapSession(self.world.coap, 128, "random", "", self.world.figures, self.world.now_s)

    answers: list[bytes] = []  # noqa: RUF012

    def _step(self, session: Any) -> bool:
        if self.is_stalled:
            return bool(session.to_device) or session.is_over
        return super()._step(session)

    def work(self) -> list[bytes]:
        found, self.answers = self.answers, []
        return found + super().work()


class Device:
    """An endpoint on a network that loses nothing."""

    def __init__(self, world: CoapWorld, name: str = "", **queries: Any) -> None:
        self.world, self.place = world, CoapPlace(world)
        self.mids = itertools.count(1000)
        self.auth: dict[str, Any] = {}
        self.sent = self.got_bytes = 0
        if name:
            (got,) = self.request(POST, "mqtt/connection", clientid=name, **queries)
            assert got.text == "2.01", got
            self.auth = {"clientid": name, "token": got.payload.decode()}

    @property
    def is_over(self) -> bool:
        return self.place.session is None

    def work(self) -> list[Got]:
        found = self.place.work()
        self.world.advance()
        while more := self.place.work():
            found += more
            self.world.advance()
        self.got_bytes += sum(map(len, found))
        return [norm.parsed(one) for one in found]

    def raw(self, data: bytes) -> list[Got]:
        self.sent += len(data)
        self.place.receive(data)
        return self.work()

    def send(
        self, method: int, path: str, payload: bytes = b"", kind: int = CON, mid: int | None = None, token: bytes = TOKEN,
        more: dict[str, bytes] | None = None, **queries: Any,
    ) -> bytes:  # fmt: skip
        options = options_of(path, self.auth | queries, **(more or {}))
        return norm.message(kind, method, next(self.mids) if mid is None else mid, token, options, payload)

    def request(self, *args: Any, **more: Any) -> list[Got]:
        return self.raw(self.send(*args, **more))

    def observe(self, path: str = "ps/t", token: bytes = b"obs", prove: bool = True, **more: Any) -> list[Got]:
        """Observes; a ping that follows is answered."""
        found = self.request(GET, path, token=token, more={"observe": REGISTER} | more.pop("more", {}), **more)
        assert found[0].text == "2.05" and found[0].option(OBSERVE) is not None, found
        rest = []
        for got in found[1:]:
            if got.kind == CON and not got.code and prove:
                rest += self.reset(got)
            else:
                rest.append(got)
        return rest

    def ack(self, got: Got) -> list[Got]:
        assert got.kind == CON
        return self.raw(norm.message(ACK, 0, got.mid))

    def reset(self, got: Got) -> list[Got]:
        return self.raw(norm.message(RST, 0, got.mid))

    def passes(self, seconds: float) -> list[Got]:
        found = []
        end_s = self.world.now_s + seconds
        while self.world.now_s < end_s:
            self.world.now_s = min(end_s, self.world.now_s + 0.25)
            self.world.advance()
            self.place.tick()
            found += self.work()
        return found


@pytest.fixture
def world() -> CoapWorld:
    return CoapWorld()


@pytest.fixture
def device(world: CoapWorld) -> Device:
    return Device(world, "d1")


@pytest.fixture
def watcher(world: CoapWorld) -> Mqtt:
    return Mqtt(world, "watcher", b"#")


def texts(found: list[Got]) -> list[str]:
    return [one.text for one in found]


# --- messages (RFC 7252 §4, §5) ---------------------------------------------------------------------------------------------------


def test_a_confirmable_request_gets_a_piggybacked_response(device: Device, watcher: Mqtt) -> None:
    (got,) = device.request(POST, "ps/a/b", b"x", mid=77, token=b"12345678")
    assert got == Got(ACK, norm.code("2.04"), 77, b"12345678", [], b"")
    assert watcher.payloads() == [b"x"]


@pytest.mark.parametrize("token", [b"", b"1", b"12345678"])
def test_tokens_are_echoed(device: Device, token: bytes) -> None:
    for found in (device.request(POST, "ps/a", token=token), device.request(POST, "ps/a", token=token, kind=NON)):
        assert [one.token for one in found] == [token]
    assert [one.token for one in device.request(GET, "nowhere", token=token)] == [token]


def test_a_non_confirmable_request_gets_a_non_confirmable_response(device: Device, watcher: Mqtt) -> None:
    (got,) = device.request(POST, "ps/a", b"x", kind=NON, mid=5)
    assert (got.kind, got.text, got.token) == (NON, "2.04", TOKEN)
    (packet,) = [one for one in watcher.take() if isinstance(one, mqtt.Publish)]
    assert packet.qos == 0


def test_a_late_response_is_a_separate_one(device: Device, watcher: Mqtt) -> None:
    device.place.is_stalled = True
    data = device.send(POST, "ps/a", b"x", mid=50)
    assert device.raw(data) == []
    assert device.raw(data) == []  # a copy
    found = device.passes(1.0)
    assert found == [Got(ACK, 0, 50, b"", [], b"")]
    assert device.raw(data) == [Got(ACK, 0, 50, b"", [], b"")], "a copy gets the Empty ACK again"
    device.place.is_stalled = False
    (got,) = device.work()
    assert (got.kind, got.text, got.token) == (CON, "2.04", TOKEN) and got.mid != 50
    assert device.raw(data) == [Got(ACK, 0, 50, b"", [], b"")], "the response is in no ACK any more"
    assert [one.mid for one in device.passes(3.0)] == [got.mid], "it is sent again"
    assert device.ack(got) == [] and device.passes(20.0) == []
    assert watcher.payloads() == [b"x"]


def test_a_late_response_to_a_non_confirmable_request_is_not_acknowledged_before(device: Device) -> None:
    device.place.is_stalled = True
    assert device.request(POST, "ps/a", b"x", kind=NON, qos=1) == [] and device.passes(2.0) == []
    device.place.is_stalled = False
    assert [(one.kind, one.text) for one in device.work()] == [(NON, "2.04")]


def test_copies_are_handled_once(device: Device, watcher: Mqtt) -> None:
    for kind in (CON, NON):
        data = device.send(POST, "ps/a", b"x", kind=kind)
        first = device.raw(data)
        again = device.raw(data) + device.raw(data)
        assert again == (first * 2 if kind == CON else [])
    assert watcher.payloads() == [b"x"] * 2
    assert device.world.figures["duplicates"] == 4


def test_a_message_id_may_come_again_after_its_lifetime(world: CoapWorld, watcher: Mqtt) -> None:
    world.coap = CoapGateway(heartbeat="1h")
    device = Device(world, "d2")
    data = device.send(POST, "ps/a", b"x")
    device.raw(data)
    device.passes(247.5)
    assert texts(device.raw(data)) == ["2.04"] and watcher.payloads() == [b"x"] * 2


def test_pings_get_a_reset(device: Device) -> None:
    assert device.raw(norm.message(CON, 0, 9)) == [Got(RST, 0, 9, b"", [], b"")]
    assert device.raw(norm.message(NON, 0, 9)) == []


def test_responses_to_nothing_are_rejected(device: Device) -> None:
    assert device.raw(norm.message(CON, norm.code("2.05"), 9, b"t")) == [Got(RST, 0, 9, b"", [], b"")]
    assert device.raw(norm.message(NON, norm.code("2.05"), 9, b"t")) == []


def test_acknowledgements_and_resets_are_never_answered(device: Device) -> None:
    for kind, code in ((ACK, 0), (RST, 0), (ACK, norm.code("2.05")), (ACK, POST), (RST, POST), (ACK, 0x20)):
        assert device.raw(norm.message(kind, code, 9)) == []


def test_only_a_fitting_acknowledgement_ends_a_transmission(device: Device, world: CoapWorld) -> None:
    device.observe()
    Mqtt(world, "m").publish("t", b"x")
    (got,) = device.work()
    assert got.kind == CON
    for wrong in (
        norm.message(ACK, 0, (got.mid + 1) % 65536), norm.message(RST, POST, got.mid), norm.message(ACK, POST, got.mid),
    ):  # fmt: skip
        device.raw(wrong)
        assert device.place.session._out is not None  # type: ignore[union-attr]
    device.ack(got)
    assert device.passes(40.0) == []


def test_malformed_messages_get_a_reset_if_confirmable(device: Device) -> None:
    assert device.raw(b"\x40\x02\x00\x09\xff") == [Got(RST, 0, 9, b"", [], b"")]
    assert device.raw(b"\x50\x02\x00\x09\xff") == []
    assert device.raw(b"\x80\x02\x00\x09") == []
    assert device.world.figures["malformed"] == 3


def test_unknown_critical_options_are_bad_option_or_no_answer(device: Device) -> None:
    data = norm.message(CON, POST, 3, TOKEN, [(1, b"etag"), *options_of("ps/a", device.auth)])
    (got,) = device.raw(data)
    assert got.text == "4.02" and got.payload == b"option 1"
    assert device.raw(bytes([data[0] | NON << 4]) + data[1:3] + b"\x09" + data[4:]) == []
    elective = norm.message(CON, POST, 4, TOKEN, [(2048, b"x"), *options_of("ps/a", device.auth)])
    assert texts(device.raw(elective)) == ["2.04"]


def test_proxying_is_not_supported(device: Device) -> None:
    assert texts(device.raw(norm.message(CON, GET, 3, TOKEN, [(35, b"coap://other/")]))) == ["5.05"]


def test_methods_that_are_not_allowed(device: Device) -> None:
    for method, path in ((DELETE, "ps/a"), (5, "ps/a"), (31, "ps/a"), (GET, "mqtt/connection"), (POST, ".well-known/core")):
        (got,) = device.request(method, path)
        assert (got.kind, got.text) == (ACK, "4.05")


def test_unknown_paths(device: Device) -> None:
    for path in ("", "mqtt", "psx/a", "mqtt/connection/x"):
        assert texts(device.request(POST, path)) == ["4.04"]


def test_accept(device: Device) -> None:
    assert texts(device.request(GET, "ps/a", more={"observe": REGISTER, "accept": b"\x32"})) == ["4.06"]
    assert texts(device.request(GET, ".well-known/core", more={"accept": b""})) == ["4.06"]


def test_discovery(device: Device) -> None:
    (got,) = device.request(GET, ".well-known/core", more={"accept": b"\x28"})
    assert got.uint(CONTENT_FORMAT) == 40 and b"</ps>" in got.payload


def test_one_confirmable_message_at_a_time(device: Device, world: CoapWorld) -> None:
    device.observe()
    mqtt = Mqtt(world, "m")
    for n in range(4):
        mqtt.publish("t", b"%d" % n, packet_id=n + 1)
    seen = []
    found = device.work()
    while found:
        (got,) = found
        seen.append(got.payload)
        found = device.ack(got)
    assert seen == [b"0", b"1", b"2", b"3"]


def test_confirmable_messages_are_sent_again_with_growing_intervals(device: Device, world: CoapWorld) -> None:
    world.coap = CoapGateway(heartbeat="1h")
    device = Device(world, "d3")
    device.observe()
    Mqtt(world, "m").publish("t", b"x")
    start_s = world.now_s
    (first,) = device.work()
    times = []
    while not device.is_over:
        times += [world.now_s - start_s for one in device.passes(0.25) if one == first]
    assert len(times) == 4 and 2.0 <= times[0] <= 3.25
    assert times == pytest.approx([times[0] * factor for factor in (1, 3, 7, 15)], rel=0.15)
    assert 62 <= world.now_s - start_s <= 94
    assert "not acknowledged" in device.place.reason


def test_requests_beyond_max_inflight_are_unavailable(world: CoapWorld) -> None:
    world.coap = CoapGateway(max_inflight=3)
    device = Device(world, "d4")
    device.place.is_stalled = True
    for _ in range(3):
        assert device.request(POST, "ps/a", b"x") == []
    (got,) = device.request(POST, "ps/a", b"x")
    assert got.text == "5.03" and got.uint(MAX_AGE) == 2
    assert texts(device.request(GET, "ps/a", more={"observe": REGISTER})) == ["5.03"]
    device.place.is_stalled = False
    assert texts(device.work()) == ["2.04"] * 3


# --- publish ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("kind", [CON, NON])
def test_qos_and_retain_of_queries(device: Device, world: CoapWorld, qos: int, kind: int) -> None:
    client = Mqtt(world, "m")
    client.send(mqtt.Subscribe(1, [(b"#", 2 | 8)]))  # Retain As Published
    client.take()
    (got,) = device.request(PUT, "ps/a/b", b"x", kind=kind, qos=qos, retain="true", expiry=100, more={"content_format": b"\x32"})
    assert got.text == "2.04"
    (packet,) = [one for one in client.take() if isinstance(one, mqtt.Publish)]
    assert (packet.topic, packet.payload, packet.qos, packet.retain) == (b"a/b", b"x", qos, True)
    assert packet.properties == {2: 100, 3: b"application/json"}


@pytest.mark.parametrize(
    ("setting", "kind", "qos"), [("coap", CON, 1), ("coap", NON, 0), ("qos0", CON, 0), ("qos1", NON, 1), ("qos2", CON, 2)]
)
def test_publish_qos(setting: str, kind: int, qos: int) -> None:
    world = CoapWorld(publish_qos=setting)
    watcher = Mqtt(world, "w", b"#")
    Device(world, "d").request(POST, "ps/a", b"x", kind=kind)
    assert [one.qos for one in watcher.take() if isinstance(one, mqtt.Publish)] == [qos]


def test_wrong_queries_and_topics(device: Device) -> None:
    for queries in ({"qos": 3}, {"qos": ""}, {"retain": "maybe"}, {"expiry": "soon"}, {"expiry": "-1"}, {"expiry": "9" * 10}):
        assert texts(device.request(POST, "ps/a", **queries)) == ["4.00"]
    for path in ("ps", "ps/a/+", "ps/#", "ps/" + "/".join("x" * 200)):
        assert texts(device.request(POST, path)) == ["4.00"]
    for queries in ({"qos": 3}, {"nl": 2}, {"rh": 3}):
        assert texts(device.request(GET, "ps/a", more={"observe": REGISTER}, **queries)) == ["4.00"]
    assert texts(device.request(GET, "ps/a#", more={"observe": REGISTER})) == ["4.00"]
    assert texts(device.request(GET, "ps/a")) == ["4.00"]
    assert texts(device.request(GET, "ps/a", more={"observe": b"\x02"})) == ["4.00"]


# --- connections ------------------------------------------------------------------------------------------------------------------


def test_a_connection_has_a_token(world: CoapWorld, watcher: Mqtt) -> None:
    world.coap = CoapGateway(connection_required=True)
    device = Device(world, "d5", username="u", password="p")
    assert len(device.auth["token"]) == 16
    assert texts(device.request(POST, "ps/a", b"x")) == ["2.04"]
    assert texts(device.request(PUT, "mqtt/connection")) == ["2.04"]
    good = device.auth
    for wrong in ({}, {"clientid": "d5"}, {"token": good["token"]}):
        device.auth = wrong
        assert texts(device.request(POST, "ps/a", b"x")) == ["4.00"]
    for wrong in ({"clientid": "d5", "token": "0" * 16}, {"clientid": "d6", "token": good["token"]}):
        device.auth = wrong
        for method, path in ((POST, "ps/a"), (PUT, "mqtt/connection"), (DELETE, "mqtt/connection")):
            assert texts(device.request(method, path)) == ["4.01"]
    device.auth = good
    assert texts(device.request(DELETE, "mqtt/connection")) == ["2.02"]
    assert device.is_over and watcher.payloads() == [b"x"]


def test_without_connection_required_the_address_is_enough(device: Device) -> None:
    device.auth = {}
    assert texts(device.request(POST, "ps/a")) == ["2.04"]


def test_a_connection_without_requests_ends(world: CoapWorld) -> None:
    world.coap = CoapGateway(heartbeat="10s")
    device = Device(world, "d6")
    for _ in range(3):
        assert device.passes(14) == [] and texts(device.request(PUT, "mqtt/connection")) == ["2.04"]
    device.passes(15.5)
    assert device.is_over and "heartbeat" in device.place.reason


def test_the_session_of_a_connection_outlives_it(world: CoapWorld) -> None:
    first = Device(world, "d7")
    first.observe("ps/t/+")
    first.passes(46)
    assert first.is_over
    mqtt = Mqtt(world, "m")
    mqtt.publish("t/1", b"kept")
    again = Device(world, "d7")
    assert again.passes(1) == [], "nothing before it observes"
    assert again.observe("ps/other") == []
    (got,) = again.observe("ps/t/+", token=b"new")
    assert (got.payload, got.token, got.kind) == (b"kept", b"new", CON)
    again.ack(got)
    mqtt.publish("t/2", b"more")
    assert [one.payload for one in again.work()] == [b"more"]


def test_messages_that_no_observation_is_for_are_given_up_after_idle_timeout(world: CoapWorld) -> None:
    first = Device(world, "d8")
    first.observe("ps/t")
    first.passes(46)
    Mqtt(world, "m").publish("t", b"x")
    again = Device(world, "d8")
    again.request(PUT, "mqtt/connection")
    again.passes(31)
    assert world.figures["messages_dropped"] == 1
    assert again.observe("ps/t") == []


@pytest.mark.parametrize("how", ["delete", "clean_start"])
def test_a_session_can_be_ended(world: CoapWorld, how: str) -> None:
    first = Device(world, "d9")
    first.observe("ps/t")
    if how == "delete":
        first.request(DELETE, "mqtt/connection")
    else:
        first.passes(46)
    Mqtt(world, "m").publish("t", b"x")
    again = Device(world, "d9", **({"clean_start": "true"} if how == "clean_start" else {}))
    assert again.observe("ps/t") == []


def test_a_device_that_starts_again_gets_another_token(device: Device, world: CoapWorld) -> None:
    device.observe()
    before = device.auth
    device.auth = {}
    (got,) = device.request(POST, "mqtt/connection", clientid="d1")
    assert got.text == "2.01" and got.payload.decode() != before["token"]
    device.auth = before
    assert texts(device.request(POST, "ps/t", b"x")) == ["4.01"]
    device.auth = {"clientid": "d1", "token": got.payload.decode()}
    assert texts(device.request(POST, "ps/t", b"x")) == ["2.04"]


def test_requests_while_the_broker_answers_wait(world: CoapWorld, watcher: Mqtt) -> None:
    device = Device(world)
    device.place.is_stalled = True
    for n in range(5):
        assert device.request(POST, "ps/a", b"%d" % n) == []
    device.place.is_stalled = False
    assert texts(device.work()) == ["2.04"] * 5
    assert watcher.payloads() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_broker_that_does_not_answer(world: CoapWorld) -> None:
    device = Device(world)
    device.place.is_stalled = True
    device.request(POST, "mqtt/connection", clientid="d")
    found = device.passes(31)
    assert texts(found) == ["0.00", "5.03"] and device.is_over


def test_a_rejected_client(world: CoapWorld) -> None:
    world.coap = CoapGateway()
    device = Device(world)
    assert texts(device.request(POST, "mqtt/connection", clientid="")) == ["4.00"] and device.is_over
    data = norm.message(CON, POST, 4, TOKEN, [*options_of("mqtt/connection", {}), (15, b"clientid=\xff")])
    assert texts(device.raw(data)) == ["4.00"] and device.is_over


# --- without a connection ---------------------------------------------------------------------------------------------------------


def test_a_client_id_is_not_needed(world: CoapWorld, watcher: Mqtt) -> None:
    device = Device(world)
    assert texts(device.request(POST, "ps/a", b"x")) == ["2.04"] and watcher.payloads() == [b"x"]
    device.passes(29)
    assert not device.is_over
    assert device.passes(2) == [] and device.is_over and not device.place.reason


def test_an_address_has_one_client(world: CoapWorld) -> None:
    device = Device(world)
    assert texts(device.request(POST, "ps/a", clientid="a", username="u", password="p")) == ["2.04"]
    assert texts(device.request(POST, "ps/b", clientid="a", username="u", password="p")) == ["2.04"]
    assert texts(device.request(POST, "ps/a", clientid="a")) == ["4.01"]
    assert texts(device.request(POST, "ps/a", clientid="b", username="u", password="p")) == ["4.01"]


def test_a_silent_observer_is_pinged(world: CoapWorld) -> None:
    device = Device(world)
    device.observe()
    for _ in range(3):
        (got,) = device.passes(30.25)
        assert (got.kind, got.code) == (CON, 0)
        assert device.reset(got) == []
    found = device.passes(130)
    assert {one.code for one in found} == {0} and len(found) == 5 and device.is_over


# --- observe (RFC 7641) -----------------------------------------------------------------------------------------------------------


def test_notifications(device: Device, world: CoapWorld) -> None:
    (got,) = device.request(GET, "ps/t/+", token=b"obs", more={"observe": REGISTER})
    assert got.text == "2.05" and got.payload == b""
    numbers = [got.uint(OBSERVE)]
    mqtt = Mqtt(world, "m")
    for qos in (0, 1):
        mqtt.publish(f"t/{qos}", b"m%d" % qos, qos)
        (got,) = device.work()
        assert (got.kind, got.text, got.token, got.payload) == ((NON, CON)[qos], "2.05", b"obs", b"m%d" % qos)
        numbers.append(got.uint(OBSERVE))
        assert got.option(CONTENT_FORMAT) is None
    assert numbers == sorted(set(numbers)) and numbers[-1] < 1 << 24  # type: ignore[type-var, operator]


def test_the_content_format_is_that_of_the_first_response(device: Device, world: CoapWorld) -> None:
    (first,) = device.request(GET, "ps/t", token=b"obs", more={"observe": REGISTER, "accept": b"\x2a"})
    client = Mqtt(world, "m")
    client.send(mqtt.Publish(b"t", b"x", properties={3: b"text/plain", 2: 9}))
    (got,) = device.work()
    assert first.uint(CONTENT_FORMAT) == got.uint(CONTENT_FORMAT) == 42 and got.uint(MAX_AGE) == 9


def test_a_registration_again_replaces_the_one_before(device: Device, world: CoapWorld) -> None:
    device.observe()
    device.observe()
    device.observe(qos=0)
    Mqtt(world, "m").publish("t", b"x", 0)
    assert [one.token for one in device.work()] == [b"obs"]


def test_two_tokens_are_two_registrations(device: Device, world: CoapWorld) -> None:
    device.observe(token=b"1")
    device.observe(token=b"2")
    Mqtt(world, "m").publish("t", b"x", 0)
    assert [one.token for one in device.work()] == [b"1", b"2"]
    for n in range(10):
        device.observe(token=b"t%d" % n)
    Mqtt(world, "m").publish("t", b"x", 0)
    assert [one.token for one in device.work()] == [b"t6", b"t7", b"t8", b"t9"], "at most four"


def test_the_end_of_an_observation(device: Device, world: CoapWorld) -> None:
    mqtt = Mqtt(world, "m")
    device.observe(token=b"1")
    device.observe(token=b"2")
    (got,) = device.request(GET, "ps/t", token=b"1", more={"observe": DEREGISTER})
    assert got.text == "2.07" and got.option(OBSERVE) is None
    mqtt.publish("t", b"x", 0)
    assert [one.token for one in device.work()] == [b"2"]
    assert texts(device.request(GET, "ps/t", token=b"another", more={"observe": DEREGISTER})) == ["2.07"]
    mqtt.publish("t", b"x", 0)
    assert device.work() == []
    assert texts(device.request(GET, "ps/t", token=b"2", more={"observe": DEREGISTER})) == ["2.07"]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_reset_ends_an_observation(device: Device, world: CoapWorld, qos: int) -> None:
    device.observe()
    mqtt = Mqtt(world, "m")
    mqtt.publish("t", b"x", qos)
    (got,) = device.work()
    assert got.kind == (CON if qos else NON)
    assert device.reset(got) == []
    mqtt.publish("t", b"y", qos)
    assert device.work() == [] and device.passes(10) == []
    assert not device.is_over


@pytest.mark.parametrize(("setting", "kinds"), [("non", [NON, NON]), ("con", [CON, CON]), ("qos", [NON, CON])])
def test_notify_type(setting: str, kinds: list[int]) -> None:
    world = CoapWorld(notify_type=setting)
    device = Device(world, "d")
    device.observe()
    mqtt = Mqtt(world, "m")
    for qos in (0, 1):
        mqtt.publish("t", b"x", qos)
        (got,) = device.work()
        assert got.kind == kinds[qos]
        if got.kind == CON:
            device.ack(got)


@pytest.mark.parametrize(("setting", "kind", "qos"), [("coap", NON, 0), ("coap", CON, 1), ("qos0", CON, 0), ("qos2", NON, 2)])
def test_subscribe_qos(setting: str, kind: int, qos: int) -> None:
    world = CoapWorld(subscribe_qos=setting)
    device = Device(world, "d")
    device.observe(kind=kind)
    Mqtt(world, "m").publish("t", b"x", 2)
    (got,) = device.work()
    assert got.kind == (CON if qos else NON)


def test_a_message_is_acknowledged_when_the_device_has_it(world: CoapWorld) -> None:
    """What a device has not acknowledged is delivered again in its next connection, with QoS 1 and 2."""
    for qos in (1, 2):
        device = Device(world, "d")
        device.observe(qos=2)
        mqtt = Mqtt(world, f"m{qos}")
        mqtt.publish("t", b"one", qos)
        mqtt.publish("t", b"two", qos, packet_id=2)
        (got,) = device.work()
        (lost,) = device.ack(got)
        assert (got.payload, lost.payload) == (b"one", b"two")
        device.passes(100)
        assert device.is_over
        device = Device(world, "d")
        (got,) = device.observe(qos=2)
        assert got.payload == b"two", (qos, got)
        assert device.ack(got) == [] and device.passes(5) == []
        device.request(DELETE, "mqtt/connection")


def test_now_and_then_a_notification_is_confirmable(device: Device, world: CoapWorld) -> None:
    device.observe()
    mqtt = Mqtt(world, "m")
    found = []
    for _ in range(34):
        mqtt.publish("t", b"x", 0)
        found += device.work()
    assert [one.kind for one in found] == [NON] * 32 + [CON]
    assert [one.kind for one in device.ack(found[-1])] == [NON]


def test_a_confirmable_notification_at_least_every_24_hours() -> None:
    world = CoapWorld(heartbeat="1d")
    device = Device(world, "d")
    device.observe()
    mqtt = Mqtt(world, "m")
    mqtt.publish("t", b"x", 0)
    assert [one.kind for one in device.work()] == [NON]
    world.now_s += 24 * 3600
    mqtt.publish("t", b"x", 0)
    assert [one.kind for one in device.work()] == [CON]


def test_qos_0_that_waits_is_bounded(device: Device, world: CoapWorld) -> None:
    device.observe()
    mqtt = Mqtt(world, "m")
    mqtt.publish("t", b"first", 1)
    (got,) = device.work()
    for n in range(100):
        mqtt.publish("t", b"%d" % n, 0)
    assert device.work() == [] and world.figures["messages_dropped"] == 100 - QUEUE
    assert [one.payload for one in device.ack(got)] == [b"%d" % n for n in range(QUEUE)]


def test_observations_are_bounded() -> None:
    world = CoapWorld(max_observations=2)
    device = Device(world, "d")
    device.observe("ps/1")
    device.observe("ps/2")
    assert texts(device.request(GET, "ps/3", more={"observe": REGISTER})) == ["5.03"]


def test_the_end_of_the_session_ends_observations(device: Device) -> None:
    device.observe()
    assert device.place.session is not None
    device.place.session.end("the server shuts down")
    (got,) = device.work()
    assert (got.text, got.token, got.option(OBSERVE)) == ("5.03", b"obs", None) and device.is_over


# --- blocks (RFC 7959) ------------------------------------------------------------------------------------------------------------


def blocks_of(device: Device, body: bytes, exponent: int = 2, path: str = "ps/t", **more: Any) -> list[Got]:
    size, found = 1 << exponent + 4, []
    for number in range((len(body) + size - 1) // size):
        part = body[number * size : (number + 1) * size]
        is_more = (number + 1) * size < len(body)
        found += device.request(POST, path, part, more={"block1": block(number, is_more, exponent)}, **more)
    return found


@pytest.mark.parametrize("exponent", [0, 2, 6])
def test_a_body_in_blocks(device: Device, watcher: Mqtt, exponent: int) -> None:
    body = bytes(range(256)) * 5
    found = blocks_of(device, body, exponent)
    count = (len(body) + (16 << exponent) - 1) // (16 << exponent)
    assert texts(found) == ["2.31"] * (count - 1) + ["2.04"]
    assert [one.uint(BLOCK1) for one in found] == [n << 4 | (n < count - 1) << 3 | exponent for n in range(count)]
    assert watcher.payloads() == [body]


def test_a_block_that_is_missing(device: Device, watcher: Mqtt) -> None:
    device.request(POST, "ps/t", b"x" * 64, more={"block1": block(0, True, 2)})
    for options in ({"block1": block(2, True, 2)}, {"block1": block(1, False, 3)}):
        assert texts(device.request(POST, "ps/t", b"x" * 64, more=options)) == ["4.08"]
    assert texts(device.request(POST, "ps/other", b"x" * 64, more={"block1": block(1, False, 2)})) == ["4.08"]
    assert texts(device.request(POST, "ps/t", b"x", more={"block1": block(1, False, 2)})) == ["2.04"]
    assert texts(device.request(POST, "ps/t", b"x", more={"block1": block(1, False, 2)})) == ["4.08"], "it is complete"
    assert watcher.payloads() == [b"x" * 65]


def test_a_block_that_is_too_short_or_of_a_reserved_size(device: Device) -> None:
    assert texts(device.request(POST, "ps/t", b"x" * 63, more={"block1": block(0, True, 2)})) == ["4.08"]
    assert texts(device.request(POST, "ps/t", b"x" * 64, more={"block1": block(0, True, 7)})) == ["4.00"]


def test_a_body_that_is_too_large() -> None:
    world = CoapWorld(max_body_size=150)
    device = Device(world, "d")
    found = blocks_of(device, b"x" * 192)
    assert texts(found) == ["2.31", "2.31", "4.13"] and found[-1].uint(SIZE1) == 150


def test_a_new_first_block_begins_again(device: Device, watcher: Mqtt) -> None:
    device.request(POST, "ps/t", b"a" * 64, more={"block1": block(0, True, 2)})
    assert texts(blocks_of(device, b"b" * 80)) == ["2.31", "2.04"] and watcher.payloads() == [b"b" * 80]


def test_blocks_that_do_not_go_on_are_forgotten(world: CoapWorld) -> None:
    world.coap = CoapGateway(heartbeat="1h")
    device = Device(world, "d")
    device.request(POST, "ps/t", b"a" * 64, more={"block1": block(0, True, 2)})
    device.passes(248)
    assert texts(device.request(POST, "ps/t", b"x", more={"block1": block(1, False, 2)})) == ["4.08"]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_long_notification_is_fetched_in_blocks(device: Device, world: CoapWorld, qos: int) -> None:
    device.observe()
    mqtt, body = Mqtt(world, "m"), bytes(range(256)) * 10
    mqtt.publish("t", body, qos)
    mqtt.publish("t", b"next", qos, packet_id=2)
    (got,) = device.work()
    assert got.uint(BLOCK2) == 0x0E and got.option(OBSERVE) is not None and len(got.payload) == 1024
    if qos:
        assert device.ack(got) == []
    found, etag = got.payload, got.option(ETAG)
    for number in (1, 2):
        got, *rest = device.request(GET, "ps/t", token=b"b%d" % number, more={"block2": block(number, False, 6)})
        assert got.text == "2.05" and got.option(OBSERVE) is None and got.option(ETAG) == etag
        assert got.uint(BLOCK2) == number << 4 | (number < 2) << 3 | 6
        found += got.payload
    assert found == body
    assert [one.payload for one in rest] == [b"next"], "it waits until the body is fetched"


def test_smaller_blocks_on_demand(device: Device, world: CoapWorld) -> None:
    device.observe(more={"block2": block(0, False, 1)})
    Mqtt(world, "m").publish("t", b"x" * 40, 0)
    (got,) = device.work()
    assert got.uint(BLOCK2) == 0x09 and len(got.payload) == 32
    (got,) = device.request(GET, "ps/t", more={"block2": block(2, False, 0)})
    assert got.uint(BLOCK2) == 0x20 and got.payload == b"x" * 8
    assert texts(device.request(GET, "ps/t", more={"block2": block(1, False, 0)})) == ["4.00"], "it has been fetched"


def test_a_body_that_is_not_fetched_is_given_up(device: Device, world: CoapWorld) -> None:
    device.observe()
    mqtt = Mqtt(world, "m")
    mqtt.publish("t", b"x" * 2000, 1)
    mqtt.publish("t", b"next", 1, packet_id=2)
    (got,) = device.work()
    device.ack(got)
    assert texts(device.request(GET, "ps/t", more={"block2": block(5, False, 6)})) == ["4.02"]
    assert [one.payload for one in device.passes(31)] == [b"next"]
    assert world.figures["messages_dropped"] == 1


# --- addresses that are not proven ------------------------------------------------------------------------------------------------


def test_no_notifications_before_the_address_is_proven(world: CoapWorld) -> None:
    device = Device(world)
    (ping,) = device.observe(prove=False)
    assert (ping.kind, ping.code) == (CON, 0)
    mqtt = Mqtt(world, "m")
    mqtt.publish("t", b"x" * 500, 1)
    assert [one.code for one in device.passes(10)] == [0, 0]
    (got,) = device.reset(ping)
    assert got.payload == b"x" * 500


def test_a_forged_address_gets_at_most_three_times_what_it_has_sent(world: CoapWorld) -> None:
    """It never answers. Requests with all paths, shortest tokens, copies, blocks."""
    mqtt = Mqtt(world, "m")
    paths = "ps/t", "ps/t/+", "mqtt/connection", "", ".well-known/core"
    for method, path in itertools.product((GET, POST, PUT, DELETE, 5), paths):
        for kind in (CON, NON):
            for more in ({}, {"observe": REGISTER}, {"block1": block(0, True, 0)}, {"accept": b"\x01"}):
                device = Device(world)
                data = device.send(method, path, b"x" * (16 if "block1" in more else 0), kind=kind, token=b"", more=more)
                found = device.raw(data)
                for _ in range(3):
                    mqtt.publish("t", b"y" * 1000, 1)
                    found += device.passes(1)
                device.raw(data)
                device.passes(100)
                assert device.got_bytes <= 3 * device.sent, (method, path, kind, more, found)
                assert device.is_over


def test_a_connection_that_never_shows_its_token_ends_early(world: CoapWorld) -> None:
    world.coap = CoapGateway(heartbeat="1h", idle_timeout="5s")
    device = Device(world, "d")
    device.passes(6)
    assert device.is_over and "token" in device.place.reason


def test_message_ids_cannot_be_guessed_for_long(world: CoapWorld) -> None:
    device = Device(world)
    (ping,) = device.observe(prove=False)
    for n in range(1, GUESSES + 2):
        device.raw(norm.message(RST, 0, (ping.mid + n) % 65536))
    assert device.is_over


def test_withheld_responses_are_counted(world: CoapWorld) -> None:
    device = Device(world)
    device.request(POST, "ps/t", b"")
    assert device.place.session is not None
    device.place.session._credit = 0  # type: ignore[attr-defined]
    device.place.session._send(b"x" * 100)
    assert world.figures["withheld"] == 1


# --- the door ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def door(world: CoapWorld) -> CoapDoor:
    return CoapDoor(lambda: world.coap, 128, "", world.figures)


def knocked(door: CoapDoor, *args: Any, **more: Any) -> tuple[Verdict, Got | None]:
    device = Device(CoapWorld())
    data = device.send(*args, **more)
    knock = door.knock(data)
    assert len(knock.answer) <= 3 * len(data)
    return knock.verdict, norm.parsed(knock.answer) if knock.answer else None


def test_what_opens_a_session(door: CoapDoor, world: CoapWorld) -> None:
    assert knocked(door, POST, "mqtt/connection", clientid="a") == (Verdict.OPEN, None)
    assert knocked(door, POST, "ps/a")[0] is knocked(door, GET, "ps/a", more={"observe": REGISTER})[0] is Verdict.OPEN
    world.coap = CoapGateway(connection_required=True)
    for found in (knocked(door, POST, "ps/a"), knocked(door, GET, "ps/a", more={"observe": REGISTER})):
        assert found[0] is Verdict.DROP and found[1] is not None and found[1].text == "4.00"
    assert knocked(door, POST, "mqtt/connection", clientid="a")[0] is Verdict.OPEN


@pytest.mark.parametrize(
    ("method", "path", "more", "text"),
    [
        (POST, "mqtt/connection", {}, "4.00"),
        (GET, "mqtt/connection", {}, "4.05"),
        (PUT, "mqtt/connection", {}, "4.00"),
        (GET, "ps/a", {}, "4.00"),
        (GET, "ps/a", {"more": {"observe": DEREGISTER}}, "2.07"),
        (DELETE, "ps/a", {}, "4.05"),
        (GET, "", {}, "4.04"),
        (GET, ".well-known/core", {}, "2.05"),
        (PUT, ".well-known/core", {}, "4.05"),
        (POST, "ps/a", {"more": {"accept": b"123"}}, "4.02"),
    ],
)
def test_answers_without_a_session(door: CoapDoor, method: int, path: str, more: dict[str, Any], text: str) -> None:
    for kind in (CON, NON):
        verdict, got = knocked(door, method, path, kind=kind, mid=9, **more)
        assert verdict is Verdict.DROP
        if kind == NON and text == "4.02":
            assert got is None
        else:
            assert got is not None and (got.kind, got.text, got.token) == (ACK if kind == CON else NON, text, TOKEN)


def test_unknown_messages_without_a_session(door: CoapDoor) -> None:
    assert door.knock(norm.message(CON, 0, 7)).answer == norm.message(RST, 0, 7)
    assert door.knock(norm.message(CON, norm.code("2.05"), 7)).answer == norm.message(RST, 0, 7)
    ignored = [norm.message(kind, code, 7) for kind, code in ((ACK, 0), (RST, 0), (NON, 0), (NON, norm.code("2.05")))]
    for data in (*ignored, b"\x80\0\0\0", b""):
        assert door.knock(data) == (Verdict.DROP, b"", ("", b""))
    assert door.knock(b"\x40\x01\0\7\xff").answer == norm.message(RST, 0, 7)


def test_tokens_at_another_address(door: CoapDoor) -> None:
    for method, path, text in ((POST, "ps/a", "4.01"), (PUT, "mqtt/connection", "4.01"), (DELETE, "mqtt/connection", "2.02")):
        device = Device(CoapWorld())
        knock = door.knock(_with_token(device, method, path))
        assert knock.verdict is Verdict.MOVE and knock.claim == ("a", b"secret") and norm.parsed(knock.answer).text == text


def _with_token(device: Device, method: int, path: str) -> bytes:
    device.auth = {"clientid": "a", "token": "secret"}
    return device.send(method, path)


@pytest.mark.parametrize("processes", [1, 2])
def test_an_observer_whose_session_was_taken_over_is_told_unless_it_may_be_the_same_device(processes: int) -> None:
    """An error would end the observation that the device has at another process of the gateway, with the same token."""
    world = CoapWorld(processes=processes)
    device = Device(world, "d1")
    device.observe()
    Device(world, "d1")
    assert [got.text for got in device.work()] == (["5.03"] if processes == 1 else [])
    assert device.is_over


def test_no_part_of_a_session_is_forgotten_in_its_image() -> None:
    from shardbroker.gateways.coap.session import PARTS
    from shardbroker.gateways.session import GatewaySession

    process = {"_figures", "_settings", "_levels", "is_over", "_state"}
    found_out_again = {"_checked", "_decoder", "_options", "_plan", "_planned", "_request"}
    known = {*CoapSession.MOVES, *PARTS, *process, *found_out_again}
    assert {*GatewaySession.__slots__, *CoapSession.__slots__} == known
    assert {one for one in CoapSession.MOVES if one.endswith("_s")} == {*CoapSession.TIMES, "_ping_s"}, "a time that stays"
