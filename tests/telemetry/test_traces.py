"""Spans of messages by OTLP: real brokers with two workers, the library of OpenTelemetry as publisher and subscriber, and a
receiver that decodes what brokers send (tests/servers/otlp.py)."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shardbroker import __version__
from shardbroker.control import Control, ControlError
from shardbroker.telemetry.spans import HEAD
from tests.cluster.real.nodes import running
from tests.flows.broker import RulesBroker, rule
from tests.harness import Broker, Client, Publish, Will, client_id_on, free_port, until
from tests.harness.waiting import stopped
from tests.hooks.plugged import Plugged
from tests.servers.otlp import Receiver, attributes, receiver
from tests.telemetry.test_export import active, exported, exporters, log, settings_to

ON = """
opentelemetry.traces.enable = true
opentelemetry.traces.scheduled_delay = "200ms"
"""
ALL = ON + "opentelemetry.traces.filter.trace_all = true\n"
PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-0([01])")
SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE, PUBLISHER = SAMPLED.split("-")[1:3]


@contextmanager
def tracing(tmp_path: Path, port: int, file: str = ON, workers: int = 2) -> Iterator[Broker]:
    """A broker that exports spans to a port."""
    path = tmp_path / "broker.toml"
    path.write_text(f'opentelemetry.exporter.endpoint = "http://127.0.0.1:{port}"\n{file}')
    with Broker(workers, arguments=("--config", str(path))) as broker:
        yield broker


def traced(parent: str = SAMPLED, *more: tuple[str, str]) -> list[tuple[str, Any]]:
    """Properties with a context."""
    pairs = [("first", "1"), ("traceparent", parent), *more]
    return [("user_property", pair) for pair in pairs]


def pairs_of(packet: Publish) -> list[tuple[str, str]]:
    return list(packet.properties.get("user_property", []))


def parent_of(packet: Publish) -> str:
    """The span that a message names."""
    (text,) = [value for name, value in pairs_of(packet) if name == "traceparent"]
    match = PARENT.fullmatch(text)
    assert match, text
    return match[2]


def spans_of(collector: Receiver, count: int, trace: str = TRACE) -> list[Span]:
    """Spans of a trace, the only ones that there are: exactly so many."""

    def found() -> list[Span]:
        return [one for one in collector.spans if one.trace_id.hex() == trace]

    until(lambda: len(found()) >= count, lambda: str(collector.spans), timeout_s=30)
    assert len(found()) == count, found()
    return found()


def split(spans: list[Span]) -> tuple[Span, list[Span]]:
    """The span of the receipt, and those of deliveries."""
    (received,) = [one for one in spans if one.name == "process_message"]
    sent = [one for one in spans if one.name == "send_published_message"]
    assert len(sent) == len(spans) - 1
    return received, sent


def figure(control: Control, result: str) -> int:
    (found,) = re.findall(rf'opentelemetry_spans{{result="{result}"}} (\d+)', control.call("prometheus"))
    return int(found)


def test_a_trace_leads_from_the_publisher_to_each_subscriber(tmp_path: Path) -> None:
    """Publisher and subscribers use the library; each span of a subscriber hangs below that of its delivery."""
    port, own = free_port(), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(own))
    tracer, propagator = provider.get_tracer("test"), TraceContextTextMapPropagator()
    with ExitStack() as stack:
        collector = stack.enter_context(receiver(port))
        broker = stack.enter_context(tracing(tmp_path, port))
        publisher, here, there = (
            stack.enter_context(Client(broker.address, 5, client_id_on(worker, 2, name)))
            for worker, name in ((0, "pub"), (0, "here"), (1, "there"))
        )
        old = stack.enter_context(Client(broker.address, 4, client_id_on(1, 2, "old")))
        for client, qos in ((here, 1), (there, 2), (old, 0)):
            client.subscribe("a/+", qos)
        with tracer.start_as_current_span("publish", kind=SpanKind.PRODUCER) as span:
            carrier: dict[str, str] = {"tracestate": "vendor=x"}
            propagator.inject(carrier)
        carrier = {"a": "1", **carrier, "tracestate": "vendor=x", "z": "2"}
        began_ns = time.time_ns()
        publisher.publish("a/b", b"21.5", 2, properties=[
            ("content_type", "text"), *(("user_property", pair) for pair in carrier.items()), ("correlation_data", b"\0\x26\0"),
        ])  # fmt: skip
        packets = {client.client_id: client.expect(Publish, payload=b"21.5") for client in (here, there, old)}
        assert packets[old.client_id].properties == {}
        for client in (here, there):
            packet = packets[client.client_id]
            given = pairs_of(packet)
            assert [name for name, _ in given] == [*carrier] and packet.properties["correlation_data"] == b"\0\x26\0"
            assert {name: value for name, value in given if name != "traceparent"} == {
                name: value for name, value in carrier.items() if name != "traceparent"
            }
            context: Context = propagator.extract(dict(given))
            with tracer.start_as_current_span("process", context, kind=SpanKind.CONSUMER):
                assert get_current_span().get_span_context().trace_id == span.get_span_context().trace_id
        received, sent = split(spans_of(collector, 4, f"{span.get_span_context().trace_id:032x}"))
        assert int.from_bytes(received.parent_span_id, "big") == span.get_span_context().span_id
        assert {one.parent_span_id for one in sent} == {received.span_id} and len({one.span_id for one in sent}) == 3
        by_client = {attributes(one)["messaging.client.id"]: one for one in sent}
        assert by_client.keys() == {here.client_id, there.client_id, old.client_id}
        consumers = [one for one in own.get_finished_spans() if one.name == "process"]
        assert [one.parent.span_id for one in consumers if one.parent] == [
            int.from_bytes(by_client[client.client_id].span_id, "big") for client in (here, there)
        ]
        common = {
            "messaging.system": "mqtt", "messaging.destination.name": "a/b", "messaging.message.body.size": 4,
            "messaging.mqtt.retain": False, "messaging.mqtt.dup": False,
        }  # fmt: skip
        identity = attributes(received)["messaging.message.id"]
        assert re.fullmatch(r"[0-9A-F]{32}", identity)
        for one, kind, operation, client, qos in (
            (received, Span.SPAN_KIND_CONSUMER, "process", publisher, 2),
            (by_client[here.client_id], Span.SPAN_KIND_PRODUCER, "send", here, 1),
            (by_client[there.client_id], Span.SPAN_KIND_PRODUCER, "send", there, 2),
            (by_client[old.client_id], Span.SPAN_KIND_PRODUCER, "send", old, 0),
        ):
            assert one.kind == kind and one.trace_state == "vendor=x"
            # Whether the parent is remote, which the library adds: bits 8 and 9.
            assert one.flags == (0x300 if one is received else 0x100)
            assert began_ns <= one.start_time_unix_nano <= one.end_time_unix_nano <= time.time_ns()
            assert attributes(one) == common | {
                "messaging.operation.name": operation, "messaging.operation.type": operation, "messaging.mqtt.qos": qos,
                "messaging.client.id": client.client_id, "messaging.client_id": client.client_id, "messaging.message.id": identity,
            }  # fmt: skip
        with Control(broker.data_dir) as control:
            assert collector.traces[0].resource == {
                "service.name": "shardbroker", "service.version": __version__,
                "service.instance.id": control.call("status")["node"],
            }  # fmt: skip
            assert figure(control, "success") == 4
        assert collector.traces[0].path == "/v1/traces" and not collector.received


@pytest.mark.parametrize(
    "parent",
    [
        pytest.param("", id="empty"),
        pytest.param(SAMPLED[:-1] + "0", id="not sampled"),
        pytest.param(SAMPLED.upper(), id="upper case"),
        pytest.param("ff" + SAMPLED[2:], id="version"),
        pytest.param(SAMPLED + "-more", id="longer"),
        pytest.param(SAMPLED.replace(TRACE, "0" * 32), id="zeros"),
        pytest.param("x" * 65535, id="long"),
    ],
)
def test_others_are_forwarded_as_they_were(parent: str, traces: tuple[Receiver, Broker]) -> None:
    collector, broker = traces
    before = len(collector.spans)
    with Client(broker.address, 5) as publisher, Client(broker.address, 5) as subscriber:
        subscriber.subscribe("a")
        for properties in (traced(parent, ("tracestate", "a=1")), traced(SAMPLED, ("traceparent", parent or SAMPLED)), None):
            publisher.publish("a", b"x", properties=properties)
            packet = subscriber.expect(Publish)
            assert pairs_of(packet) == [value for name, value in properties or () if name == "user_property"]
        publisher.publish("a", b"x", properties=traced())
        assert parent_of(subscriber.expect(Publish)) != PUBLISHER
        until(lambda: len(collector.spans) >= before + 2, timeout_s=30)
        assert len(collector.spans) == before + 2


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Receiver, Broker]]:
    port = free_port()
    with receiver(port) as collector, tracing(tmp_path_factory.mktemp("traces"), port) as broker:
        yield collector, broker


def test_texts_of_clients_are_bounded(traces: tuple[Receiver, Broker]) -> None:
    collector, broker = traces
    before = len(collector.spans)
    topic, client_id = "\u00e9" * 5000, "\u00e9" * 1000
    with Client(broker.address, 5, client_id) as publisher, Client(broker.address, 5) as subscriber:
        subscriber.subscribe("#")
        for state in ("a=" + "b" * 600, "not, a \u00e9 state ==,,", ",".join(f"k{n}=v" for n in range(90))):
            publisher.publish(topic, b"x", properties=traced(SAMPLED, ("tracestate", state)))
            packet = subscriber.expect(Publish, topic=topic)
            assert parent_of(packet) != PUBLISHER and ("tracestate", state) in pairs_of(packet)
    until(lambda: len(collector.spans) >= before + 6, timeout_s=30)
    for span in collector.spans[before:]:
        found = attributes(span)
        name = found["messaging.destination.name"]
        assert topic.startswith(name) and 1000 < len(name.encode()) <= 1024
        assert len(found["messaging.client.id"].encode()) <= 256 and len(span.trace_state) <= 512
    assert "Traceback" not in log(broker)


def test_a_context_survives_where_a_message_waits(traces: tuple[Receiver, Broker]) -> None:
    """Retained, delayed, in the queue of an absent client, in a shared group of another worker, and in a will."""
    collector, broker = traces
    before = len(collector.spans)
    absent, publisher_id = client_id_on(1, 2, "absent"), client_id_on(0, 2, "from")
    with Client(broker.address, 5, absent, clean=False, properties={"session_expiry_interval": 60}) as client:
        client.subscribe("wait/#", 1)
    with ExitStack() as stack:
        publisher = stack.enter_context(Client(broker.address, 5, publisher_id))
        member = stack.enter_context(Client(broker.address, 5, client_id_on(1, 2, "member")))
        member.subscribe("$share/g/one/#", 1)
        late = stack.enter_context(Client(broker.address, 5, client_id_on(1, 2, "late")))
        late.subscribe("late", 1)
        late.subscribe("last", 0)
        publisher.publish("wait/a", b"queued", 1, properties=traced())
        publisher.publish("kept", b"retained", 1, True, properties=traced())
        publisher.publish("one/a", b"shared", 1, properties=traced())
        publisher.publish("$delayed/1/late", b"delayed", 1, properties=traced())
        parents = {b"shared": parent_of(member.expect(Publish, payload=b"shared"))}
        parents[b"delayed"] = parent_of(late.expect(Publish, payload=b"delayed", timeout=10))
        late.subscribe("kept", 1)
        parents[b"retained"] = parent_of(late.expect(Publish, payload=b"retained"))
        back = stack.enter_context(Client(broker.address, 5, absent, clean=False, properties={"session_expiry_interval": 0}))
        parents[b"queued"] = parent_of(back.expect(Publish, payload=b"queued"))
        doomed = Client(broker.address, 5, will=Will("last", b"will", properties=traced()))
        doomed.drop()
        parents[b"will"] = parent_of(late.expect(Publish, payload=b"will", timeout=10))
        publisher.publish("kept", b"", 1, True)
    until(lambda: len(collector.spans) >= before + 9, timeout_s=30)
    found = collector.spans[before:]
    by_id = {one.span_id.hex(): one for one in found}
    assert len(by_id) == 9 and {one.trace_id.hex() for one in found} == {TRACE}
    for payload, parent in parents.items():
        sent = by_id[parent]
        assert sent.name == "send_published_message"
        if payload == b"will":  # it is no PUBLISH of a client: the delivery hangs below the client's span
            assert sent.parent_span_id.hex() == PUBLISHER
            continue
        received = by_id[sent.parent_span_id.hex()]
        assert received.name == "process_message" and received.parent_span_id.hex() == PUBLISHER
        assert attributes(received)["messaging.client.id"] == publisher_id
        assert attributes(sent)["messaging.mqtt.retain"] == (payload == b"retained")


def test_a_repeated_delivery_has_a_span_of_its_own(traces: tuple[Receiver, Broker]) -> None:
    collector, broker = traces
    before = len(collector.spans)
    with ExitStack() as stack:
        publisher = stack.enter_context(Client(broker.address, 5))
        first = Client(broker.address, 5, "again", clean=False, properties={"session_expiry_interval": 60}, auto_ack=False)
        first.subscribe("a", 1)
        publisher.publish("a", b"x", 1, properties=traced())
        one = parent_of(first.expect(Publish))
        first.drop()
        second = stack.enter_context(Client(broker.address, 5, "again", clean=False, properties={"session_expiry_interval": 0}))
        packet = second.expect(Publish)
        assert packet.dup and parent_of(packet) != one
    until(lambda: len(collector.spans) >= before + 3, timeout_s=30)
    _, sent = split(collector.spans[before:])
    found = [(span.span_id.hex(), attributes(span)["messaging.mqtt.dup"]) for span in sent]
    assert found == [(one, False), (parent_of(packet), True)]


def test_what_a_rule_republishes_belongs_to_the_trace(tmp_path: Path) -> None:
    port = free_port()
    on = {"opentelemetry.traces.enable": True, "opentelemetry.traces.scheduled_delay": "200ms"}
    with ExitStack() as stack:
        collector = stack.enter_context(receiver(port))
        broker = stack.enter_context(
            RulesBroker(2, tmp_path / "data", {"opentelemetry.exporter.endpoint": f"http://127.0.0.1:{port}", **on})
        )
        sql = "SELECT payload, pub_props.'User-Property' as user_properties FROM \"in\""
        broker.define(rule("again", sql, {"function": "republish", "args": {"topic": "out", "qos": 1}}))
        subscriber = stack.enter_context(Client(broker.address, 5))
        subscriber.subscribe("out", 1)
        stack.enter_context(Client(broker.address, 5)).publish("in", b"x", 1, properties=traced())
        packet = subscriber.expect(Publish, timeout=20)
        received, (sent,) = split(spans_of(collector, 2))
        assert parent_of(packet) == sent.span_id.hex() and sent.parent_span_id == received.span_id
        assert [attributes(one)["messaging.destination.name"] for one in (received, sent)] == ["in", "out"]


def test_a_trace_goes_over_nodes(tmp_path: Path) -> None:
    """The span of the delivery is of the node that delivers; a node without traces forwards the context as it has arrived."""
    ports = free_port(), free_port()
    each = {
        number: {
            "opentelemetry.traces.enable": True, "opentelemetry.traces.scheduled_delay": "200ms",
            "opentelemetry.exporter.endpoint": f"http://127.0.0.1:{port}",
        } for number, port in enumerate(ports, 1)
    }  # fmt: skip
    with receiver(ports[0]) as one, receiver(ports[1]) as other, running(3, workers=2, each=each) as nodes, ExitStack() as stack:
        clients = {number: stack.enter_context(Client(broker.address, 5)) for number, broker in nodes.brokers.items()}
        for number in (2, 3):
            clients[number].subscribe("a", 1)
        publisher = clients[1]

        def through() -> bool:
            publisher.publish("a", b"early", 1)
            return all(any(packet.payload == b"early" for packet in clients[number].messages_from(publisher)) for number in (2, 3))

        until(through, timeout_s=30)
        publisher.publish("a", b"x", 1, properties=traced())
        packets = {number: clients[number].expect(Publish, payload=b"x") for number in (2, 3)}
        (received,), (sent,) = spans_of(one, 1), spans_of(other, 1)
        assert received.name == "process_message" and received.parent_span_id.hex() == PUBLISHER
        assert sent.name == "send_published_message" and sent.parent_span_id == received.span_id
        assert parent_of(packets[2]) == sent.span_id.hex() and parent_of(packets[3]) == received.span_id.hex()
        assert one.traces[0].resource["service.instance.id"] != other.traces[0].resource["service.instance.id"]


def test_traces_begin_at_the_broker(tmp_path: Path) -> None:
    """With trace_all, also for publishers of MQTT 3.1.1; what says that it is not sampled, is not."""
    port = free_port()
    with ExitStack() as stack:
        collector = stack.enter_context(receiver(port))
        broker = stack.enter_context(tracing(tmp_path, port, ALL))
        control = stack.enter_context(Control(broker.data_dir))
        old = stack.enter_context(Client(broker.address, 4, client_id_on(0, 2)))
        subscriber = stack.enter_context(Client(broker.address, 5, client_id_on(1, 2)))
        subscriber.subscribe("#", 1)
        own = stack.enter_context(Client(broker.address, 5))
        own.subscribe("$SYS/#", 0)
        assert not own.expect(Publish).properties
        other = stack.enter_context(Client(broker.address, 5))
        for parent in (SAMPLED[:-1] + "0", "broken"):
            other.publish("a", b"other", properties=traced(parent))
            assert dict(pairs_of(subscriber.expect(Publish, payload=b"other")))["traceparent"] == parent
        other.publish("a", b"second", properties=[("user_property", ("x", "y")), ("content_type", "text")])
        packet = subscriber.expect(Publish, payload=b"second")
        assert [name for name, _ in pairs_of(packet)] == ["traceparent", "x"] and packet.properties["content_type"] == "text"
        old.publish("a", b"third", 1)
        packet = subscriber.expect(Publish, payload=b"third")
        match = PARENT.fullmatch(dict(pairs_of(packet))["traceparent"])
        assert match is not None and match[3] == "1"
        received, (sent,) = split(spans_of(collector, 2, match[1]))
        assert received.parent_span_id == b"" and sent.parent_span_id == received.span_id and sent.span_id.hex() == match[2]
        assert len(collector.spans) == 4 and len({one.trace_id for one in collector.spans}) == 2
        control.call("config set", key="opentelemetry.traces.filter.sample_ratio", value="0.5")
        for _ in range(200):
            old.publish("a", b"half", 1)
        subscribed = [subscriber.expect(Publish, payload=b"half") for _ in range(200)]
        assert 50 < sum(bool(pairs_of(one)) for one in subscribed) < 150
        control.call("config set", key="opentelemetry.traces.filter.sample_ratio", value="0")
        old.publish("a", b"none", 1)
        assert not pairs_of(subscriber.expect(Publish, payload=b"none"))


@contextmanager
def bounded(tmp_path: Path, port: int, bound: str) -> Iterator[tuple[Receiver, Broker, Control, Client, Client]]:
    """A receiver, a broker with a bound on spans, and a publisher and a subscriber of one worker."""
    with receiver(port) as collector, tracing(tmp_path, port, ON + bound) as broker, Control(broker.data_dir) as control:
        publisher, subscriber = (Client(broker.address, 5, client_id_on(0, 2, name)) for name in ("p", "s"))
        with publisher, subscriber:
            subscriber.subscribe("a", 1)
            yield collector, broker, control, publisher, subscriber


def test_spans_above_the_limit_are_counted_and_told(tmp_path: Path) -> None:
    """The messages arrive, as they were; those with a span name it."""
    port, limit = free_port(), "opentelemetry.traces.max_spans_per_second = 20\n"
    with bounded(tmp_path, port, limit) as (collector, broker, control, publisher, subscriber):
        for _ in range(500):
            publisher.publish("a", b"x", 1, properties=traced(), wait=False)
        packets = [subscriber.expect(Publish, timeout=30) for _ in range(500)]
        named = {parent_of(packet) for packet in packets} - {PUBLISHER}
        assert 0 < len(named) < 500
        until(lambda: figure(control, "over_limit") + figure(control, "success") >= 1000 - 500, timeout_s=30)
        until(lambda: "spans dropped over_limit=" in log(broker), lambda: log(broker), timeout_s=30)
        assert log(broker).count("spans dropped") == 1 and figure(control, "queue_full") == 0
        until(lambda: named <= {one.span_id.hex() for one in collector.spans}, timeout_s=30)
        assert len(collector.spans) < 500


@pytest.mark.parametrize("fault", ["hang", "error", "gone"])
def test_a_collector_that_fails_delays_nothing(fault: str, tmp_path: Path) -> None:
    port, queue = free_port(), "opentelemetry.traces.max_queue_size = 20\n"
    with bounded(tmp_path, port, queue) as (collector, broker, control, publisher, subscriber):
        if fault == "gone":
            collector.close()
        else:
            collector.answer = fault
        publisher.publish("a", b"x", 1, properties=traced())
        subscriber.expect(Publish)
        reasons = {"hang": "no answer within 10 s", "error": "answered 500 Internal Server Error", "gone": "Connection refused"}
        reason = reasons[fault]
        began_s = time.monotonic()
        for _ in range(100):
            publisher.publish("a", b"x", 1, properties=traced())
            subscriber.expect(Publish)
            control.call("status")
        assert time.monotonic() - began_s < 9  # less than the wait for the collector
        until(lambda: f'reason="{reason}"' in log(broker), lambda: log(broker), timeout_s=60)
        assert figure(control, "failure") >= 2 and "spans not exported url=" in log(broker)
        if fault == "hang":
            until(lambda: figure(control, "queue_full") >= 100, timeout_s=60)
            assert "spans dropped over_limit=0 queue_full=" in log(broker)
        if fault == "gone":
            for _ in range(3):
                publisher.publish("a", b"x", 1, properties=traced())
                count = figure(control, "failure")
                until(lambda count=count: figure(control, "failure") > count, timeout_s=60)
            alarm = until(lambda: active(control).get("opentelemetry_failing"), timeout_s=30)
            assert f"traces are not exported to http://127.0.0.1:{port}/v1/traces: Connection refused" in alarm["message"]
        else:
            collector.answer = "ok"
            publisher.publish("a", b"x", 1, properties=traced())
            until(lambda: "spans exported again" in log(broker), lambda: log(broker), timeout_s=60)


def test_spans_that_are_rejected_are_a_failure(tmp_path: Path) -> None:
    port = free_port()
    with receiver(port) as collector, tracing(tmp_path, port) as broker, Client(broker.address, 5) as client:
        collector.answer = "partial"
        client.publish("a", b"x", 1, properties=traced())
        until(lambda: 'reason="3 spans rejected: too old"' in log(broker), lambda: log(broker), timeout_s=30)


def test_settings_are_live(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    with ExitStack() as stack:
        one, other = (stack.enter_context(receiver(port)) for port in ports)
        broker = stack.enter_context(tracing(tmp_path, ports[0], 'opentelemetry.traces.scheduled_delay = "200ms"\n'))
        control = stack.enter_context(Control(broker.data_dir))
        client = stack.enter_context(Client(broker.address, 5))
        client.subscribe("a", 1)

        def sent(**changed: str) -> Publish:
            for key, value in changed.items():
                done = control.call("config set", key=f"opentelemetry.{key.replace('__', '.')}", value=value)
                assert done["applied"]
            client.publish("a", b"x", 1, properties=traced())
            return client.expect(Publish)

        assert parent_of(sent()) == PUBLISHER
        assert exporters(broker) == [] and "opentelemetry_spans" not in control.call("prometheus")
        assert parent_of(sent(traces__enable="true")) != PUBLISHER
        spans_of(one, 2)
        (pid,) = exporters(broker)
        assert parent_of(sent(exporter__endpoint=f"http://127.0.0.1:{ports[1]}/otlp/v1/metrics")) != PUBLISHER
        spans_of(other, 2)
        assert other.traces[0].path == "/otlp/v1/traces" and exporters(broker) != [pid]
        (pid,) = exporters(broker)
        assert parent_of(sent(metrics__enable="true", metrics__interval="1s")) != PUBLISHER
        until(lambda: other.received, timeout_s=30)
        assert pid in exporters(broker) and len(exporters(broker)) == 2  # metrics have a process of their own
        spans_of(other, 4)
        assert parent_of(sent(traces__enable="false")) == PUBLISHER
        until(lambda: len(exporters(broker)) == 1)
        assert parent_of(sent(traces__filter__trace_all="true")) == PUBLISHER
        assert len(other.spans) == 4 and len(one.spans) == 2 and "not exported" not in log(broker)


def test_spans_that_workers_are_giving_when_settings_change_are_exported() -> None:
    """Without a broker: its workers answer within a millisecond if they have a core."""
    ports = free_port(), free_port()
    first, second = (settings_to(port, traces={"enable": True, "scheduled_delay": "100ms"}) for port in ports)
    span = HEAD.pack(1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 2, bytes.fromhex(TRACE), b"12345678", bytes(8), 1, 2)

    async def figures() -> list[dict[str, Any]]:
        return []

    async def change(other: Receiver) -> dict[str, int]:
        asked, answered = asyncio.Event(), asyncio.Event()
        spans = [span]

        async def take(_: int) -> list[Any]:
            given = [(spans.pop(), 1, False, 0, 0)] if spans else []
            asked.set()
            await answered.wait()
            return given

        async with exported(first, figures, take) as telemetry:
            await asked.wait()
            telemetry.configure(second)
            for _ in range(10):  # turns of the loop, in which the export before ends
                await asyncio.sleep(0)
            answered.set()
            while not other.traces:
                await asyncio.sleep(0.01)
        return telemetry.spans

    with receiver(ports[0]) as one, receiver(ports[1]) as other:
        counts = asyncio.run(asyncio.wait_for(change(other), 60))
        assert (len(other.spans), one.traces) == (1, []) and counts["failure"] == 0


def test_a_worker_and_an_exporter_that_die_are_replaced(tmp_path: Path) -> None:
    port = free_port()
    with receiver(port) as collector, tracing(tmp_path, port) as broker, Control(broker.data_dir) as control:

        def again() -> None:
            before = len(collector.spans)
            with Client(broker.address, 5, client_id_on(0, 2)) as client:
                client.subscribe("a", 1)
                client.publish("a", b"x", 1, properties=traced())
                assert parent_of(client.expect(Publish)) != PUBLISHER
            until(lambda: len(collector.spans) >= before + 2, timeout_s=30)

        again()
        (worker,) = broker.child_pids("worker-0")
        broker.kill_process(worker)
        until(lambda: broker.child_pids("worker-0") not in ([], [worker]), timeout_s=30)
        again()
        (pid,) = exporters(broker)
        os.kill(pid, signal.SIGKILL)
        with Client(broker.address, 5) as client:
            client.publish("a", b"x", 1, properties=traced())
        until(lambda: "the process that exports has ended" in log(broker), lambda: log(broker), timeout_s=30)
        again()
        (pid,) = exporters(broker)
        with stopped(pid):
            with Client(broker.address, 5) as client:
                client.publish("a", b"x", 1, properties=traced())
            until(lambda: "no outcome within 12 s" in control.call("prometheus") or figure(control, "failure") >= 2, timeout_s=60)
        again()


HOOK = """
from shardbroker.hooks import ok

def load(plugin):
    plugin.hook("message.publish", lambda message: ok(message.replace(payload=message.payload + b"!")))
"""


def test_messages_that_hooks_change_keep_their_trace() -> None:
    port = free_port()
    on = {"opentelemetry.traces.enable": True, "opentelemetry.traces.scheduled_delay": "200ms"}
    with ExitStack() as stack:
        collector = stack.enter_context(receiver(port))
        broker = stack.enter_context(Plugged({"opentelemetry.exporter.endpoint": f"http://127.0.0.1:{port}", **on}))
        broker.write("mark", HOOK)
        broker.load("mark")
        publisher, subscriber = (stack.enter_context(Client(broker.address, 5, client_id_on(n, 3))) for n in range(2))
        subscriber.subscribe("a", 1)
        publisher.publish("a", b"x", 1, properties=traced())
        packet = subscriber.expect(Publish, payload=b"x!")
        received, (sent,) = split(spans_of(collector, 2))
        assert parent_of(packet) == sent.span_id.hex() and sent.parent_span_id == received.span_id


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("traces.enable", "perhaps", "true or false"),
        ("traces.max_queue_size", "0", "from 1 to 16384"),
        ("traces.scheduled_delay", "1ms", "from 100ms to 1h"),
        ("traces.max_spans_per_second", "1000000", "from 1 to 100000"),
        ("traces.filter.sample_ratio", "1.5", "from 0 to 1"),
        ("traces.filter.sample_ratio", "nan", "from 0 to 1"),
        ("traces.filter.trace_mode", "e2e", "unknown key"),
    ],
)
def test_wrong_settings_are_refused(traces: tuple[Receiver, Broker], key: str, value: str, text: str) -> None:
    with Control(traces[1].data_dir) as control, pytest.raises(ControlError) as refused:
        control.call("config set", key=f"opentelemetry.{key}", value=value)
    assert f"opentelemetry.{key}" in str(refused.value) and text in str(refused.value)
