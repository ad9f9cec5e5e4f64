"""What is left to clients while memory is short: above overload.memory_high_water."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.access.guarded import Answers, http_server
from tests.harness import Broker, Client, Puback, wire
from tests.overload.scenarios import overloaded_broker

pytestmark = [pytest.mark.own_broker, pytest.mark.timeout(120)]

QUOTA_EXCEEDED = 0x97
LIMIT_MB = 128
MESSAGE_BYTES, MESSAGES_MAX = 500_000, 600
PARTIAL_MAX = 4096
"""Bytes of a CONNECT whose end is waited for."""
ALIASES_BYTES, ALIAS_BYTES = 65_536, 100
"""Of all topic aliases of a connection, and of each beside its topic."""
LASTS = {"session_expiry_interval": 600}
WITH_ALIASES = [f"aliases{number}" for number in range(5)]
"""Clients with a session: they may connect."""
WAITING_MAX = 4000


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    with http_server() as served:
        served.answer = lambda path, fields: (200, b'{"result": "allow"}')
        yield served


@pytest.fixture(scope="module")
def short(answers: Answers) -> Iterator[Broker]:
    """A broker whose memory is taken by the queue of a client that is away."""
    settings: dict[str, object] = {
        "mqtt.max_mqueue_len": "infinity", "auth.chain": "http", "auth.http.url": answers.url, "auth.http.timeout": "1m",
        "mqtt.idle_timeout": "1m",
    }  # fmt: skip
    with overloaded_broker(settings, LIMIT_MB, workers=1) as broker:
        for name in ("away", "known", "long", *WITH_ALIASES):
            with Client(broker.address, 5, name, properties=LASTS) as client:
                client.subscribe(f"for/{name}", 1)
        for number in itertools.count():
            assert number < MESSAGES_MAX, "memory is never short"
            with Client(broker.address, 5, f"fills{number}", connect=False, timeout=20) as client:
                client.send_raw(client._connect_packet)
                if client.expect(wire.Connack).code == QUOTA_EXCEEDED:
                    break
                client.publish("for/away", bytes(MESSAGE_BYTES), 1)
        yield broker


def test_a_login_is_refused_before_a_back_end_is_asked(short: Broker, answers: Answers) -> None:
    for version, code in ((5, QUOTA_EXCEEDED), (4, 3)):
        with Client(short.address, version, "newcomer", connect=False, username=f"late{version}", password="x") as client:
            client.send_raw(client._connect_packet)
            assert client.expect(wire.Connack).code == code
            client.expect_close()
    with Client(short.address, 5, "known", clean=False, username="known", password="x", properties=LASTS):
        pass
    names = [fields.get("username") for _, _, fields in answers.asked]
    assert "known" in names, "a client with a session comes to empty its queue"
    assert not {"late5", "late4"} & {*names}


@pytest.mark.parametrize("size", [PARTIAL_MAX, PARTIAL_MAX + 1])
@pytest.mark.parametrize("version", [5, 4])
def test_the_end_of_a_long_connect_is_not_waited_for(short: Broker, version: int, size: int) -> None:
    """Of a client with a session, which may connect."""

    def packet(password: int) -> bytes:
        properties = LASTS if version == 5 else None
        return wire.connect("long", version, clean=False, username="long", password="x" * password, properties=properties)

    whole = packet(1000 + size - len(packet(1000)))
    assert len(whole) == size
    with Client(short.address, version, "long", connect=False, timeout=20) as client:
        client.send_raw(whole[:1000])
        if size > PARTIAL_MAX:
            if version == 5:
                assert client.expect(wire.Connack).code == QUOTA_EXCEEDED
            client.expect_close()
        else:
            assert client.recv(0.2) is None
            client.send_raw(whole[1000:])
            assert client.expect(wire.Connack).code == 0


def test_topic_aliases_are_few(short: Broker) -> None:
    """Of a client that has just connected: who adds to memory is not read any more from the next look at memory on."""
    topic = 900
    allowed = ALIASES_BYTES // (topic + ALIAS_BYTES)
    packets = b"".join(
        wire.publish("a" * topic, b"", qos=1, packet_id=alias, properties={"topic_alias": alias}) for alias in range(1, allowed + 2)
    )
    for name in WITH_ALIASES:
        with Client(short.address, 5, name, clean=False, properties=LASTS, keepalive=0, timeout=5) as client:
            client.send_raw(packets)
            acknowledged = 0
            while acknowledged < allowed and (answer := client.recv()) is not None:
                assert isinstance(answer, Puback), answer
                acknowledged += 1
            if acknowledged == allowed:
                ended = client.expect_close()
                assert ended is not None and ended.code == QUOTA_EXCEEDED
                return
    raise AssertionError(f"memory was looked at between the packets of each of {len(WITH_ALIASES)} clients")


def test_logins_that_wait_count_as_memory(answers: Answers) -> None:
    """No client is connected, and no message is kept: what waits alone has filled the memory when a login is refused."""
    answers.answer = lambda path, fields: None
    settings: dict[str, object] = {"auth.chain": "http", "auth.http.url": answers.url, "auth.timeout": "1m"}
    settings["auth.http.timeout"] = "1m"
    will = wire.Will("will", bytes(60_000))
    try:
        with overloaded_broker(settings, LIMIT_MB, workers=1) as broker, ExitStack() as stack:
            for number in itertools.count():
                assert number < WAITING_MAX, "they take no memory"
                client = Client(broker.address, 5, f"waits{number}", will=will, username="a", password="b", connect=False)
                stack.enter_context(client).send_raw(client._connect_packet)
                refusal = client.recv(0 if number % 20 else 0.05)
                if refusal is not None:
                    break
            assert isinstance(refusal, wire.Connack) and refusal.code == QUOTA_EXCEEDED, refusal
    finally:
        answers.answer = lambda path, fields: (200, b'{"result": "allow"}')
