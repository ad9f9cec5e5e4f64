"""Metrics by OTLP: real brokers with two workers, and a receiver that decodes what they send (tests/servers/otlp.py says which)."""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

from shardbroker import __version__
from shardbroker.config import Settings
from shardbroker.config.opentelemetry import OpenTelemetry
from shardbroker.control import Control, ControlError
from shardbroker.logs.log import Log
from shardbroker.management.families import Family, plain
from shardbroker.management.telemetry import Telemetry
from tests.edge.certificates import Authority
from tests.harness import Broker, Client, Publish, client_id_on, free_port, until
from tests.harness.waiting import stopped
from tests.servers.otlp import Received, Receiver, receiver, server_context, values

SECRET = "Bearer not-for-the-log"
FILE = f"""
opentelemetry.exporter.service_name = "plant-7"
opentelemetry.exporter.headers = {{ authorization = "{SECRET}", "X-Scope" = "tenant" }}
"""
ON = """
opentelemetry.metrics.enable = true
opentelemetry.metrics.interval = "1s"
"""
PROMETHEUS = re.compile(r"^(shardbroker_\w+?)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
SAMPLE_LABEL = re.compile(r'(\w+)="([^"]*)"')
STILL = ("messages.received", "messages.sent", "packets.publish.received", "connections.count", "subscriptions.count")


@contextmanager
def exporting(tmp_path: Path, port: int, file: str = FILE + ON, secure: bool = False) -> Iterator[Broker]:
    """A broker that exports to a port. Settings are in a file: those of the command line cannot be changed while it runs."""
    path = tmp_path / "broker.toml"
    endpoint = f"http{'s' if secure else ''}://127.0.0.1:{port}"
    path.write_text(f'opentelemetry.exporter.endpoint = "{endpoint}"\n{file}')
    with Broker(2, arguments=("--config", str(path))) as broker:
        yield broker


def log(broker: Broker) -> str:
    return "".join(broker.output)


def exporters(broker: Broker) -> list[int]:
    """Processes that export."""
    assert broker.process is not None
    found = []
    for one in psutil.Process(broker.process.pid).children(recursive=True):
        try:
            if "shardbroker.telemetry" in one.cmdline() and one.status() != psutil.STATUS_ZOMBIE:
                found.append(one.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def later(collector: Receiver, count: int = 2) -> Received:
    """A request whose figures were gathered after this call."""
    before = len(collector.received)
    until(lambda: len(collector.received) >= before + count, timeout_s=30)
    return collector.received[-1]


def active(control: Control) -> dict[str, Any]:
    return {one["name"]: one for one in control.call("alarms list", activated=True)["data"]}


def test_figures_are_those_of_the_counters(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        collector = stack.enter_context(receiver(port))
        broker = stack.enter_context(exporting(tmp_path, port))
        control = stack.enter_context(Control(broker.data_dir))
        clients = [stack.enter_context(Client(broker.address, 5, client_id_on(worker, 2))) for worker in range(2)]
        clients[0].subscribe("a/#", 1)
        for number in range(30):
            clients[number % 2].publish("a/b", b"x", 1)
            clients[0].expect(Publish)
        sent = later(collector)
        wanted = control.call("metrics")
        assert wanted["messages.received"] == 30
        for name in STILL:
            assert sent.value(f"shardbroker.{name}") == wanted[name], name
            by_worker = [sent.value(f"shardbroker.worker.{name}", worker=worker) for worker in range(2)]
            assert by_worker == [control.call("metrics", worker=worker)[name] for worker in range(2)], name
        for name in ("messages.received", "messages_lost"):
            metric = sent.metrics[f"shardbroker.{name}"].sum
            assert metric.is_monotonic and metric.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
        point = sent.metrics["shardbroker.messages.received"].sum.data_points[0]
        assert 0 < point.start_time_unix_nano < collector.received[0].metrics["shardbroker.uptime_seconds"].gauge.data_points[
            0
        ].time_unix_nano <= point.time_unix_nano <= time.time_ns()
        passes = sent.metrics["shardbroker.pass_seconds"]
        (point,) = passes.histogram.data_points
        assert passes.unit == "s" and len(point.bucket_counts) == len(point.explicit_bounds) + 1
        assert sum(point.bucket_counts) == point.count > 0 and point.sum > 0 and not point.HasField("min")
        assert list(point.explicit_bounds)[:2] == [7e-06, 1.5e-05]
        assert sent.resource == {
            "service.name": "plant-7", "service.instance.id": control.call("status")["node"], "service.version": __version__,
        }  # fmt: skip
        assert sent.path == "/v1/metrics"
        assert (sent.headers["authorization"], sent.headers["x-scope"]) == (SECRET, "tenant")
        assert (sent.headers["content-type"], sent.headers["content-encoding"]) == ("application/x-protobuf", "gzip")
        assert sent.value("shardbroker.opentelemetry_exports", result="failure") == 0
        assert all("not-for-the-log" not in " ".join(psutil.Process(pid).cmdline()) for pid in exporters(broker))
        assert "not-for-the-log" not in log(broker) + str(control.call("config get", key="opentelemetry"))


def test_each_figure_of_prometheus_is_sent(tmp_path: Path) -> None:
    """With dots where Prometheus has underscores, of the same labels, and nothing else."""
    port = free_port()
    with receiver(port) as collector, exporting(tmp_path, port) as broker, Control(broker.data_dir) as control:
        later(collector)
        text, sent = control.call("prometheus"), later(collector)
        series: dict[str, set[tuple[tuple[str, str], ...]]] = {}
        for name, labels, _ in PROMETHEUS.findall(text):
            if not name.endswith("_bucket"):
                series.setdefault(name, set()).add((*sorted(SAMPLE_LABEL.findall(labels)),))
        assert len(series) > 200
        for name, metric in sent.metrics.items():
            shown = name.replace(".", "_")
            if metric.WhichOneof("data") == "histogram":
                assert series.pop(f"{shown}_sum") and series.pop(f"{shown}_count")
            else:
                assert series.pop(shown) == values(metric).keys(), name
        assert not series


def test_a_collector_that_is_down_costs_one_line_and_an_alarm(tmp_path: Path) -> None:
    port = free_port()
    with exporting(tmp_path, port) as broker, Control(broker.data_dir) as control:
        alarm = until(lambda: active(control).get("opentelemetry_failing"), lambda: log(broker), timeout_s=60)
        assert f"http://127.0.0.1:{port}/v1/metrics: Connection refused" in alarm["message"]
        until(lambda: 'exports{result="failure"} 5' in control.call("prometheus"), timeout_s=60)
        (line,) = until(lambda: [one for one in broker.output if "metrics not exported" in one])
        assert f'url=http://127.0.0.1:{port}/v1/metrics failures=1 reason="Connection refused"' in line
        with receiver(port) as collector:
            assert later(collector).value("shardbroker.opentelemetry_exports", result="failure") >= 5
            until(lambda: "opentelemetry_failing" not in active(control))
            until(lambda: sum("metrics exported again" in one for one in broker.output) == 1)
        assert SECRET not in log(broker)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error", "answered 500 Internal Server Error"),
        ("busy", "answered 503 Service Unavailable"),
        ("redirect", "answered 307 Temporary Redirect"),
        ("hang", "no answer within 1 s"),
        ("drip", "no outcome within 3 s; the process that exports was ended"),
    ],
)
def test_a_collector_that_fails_delays_nothing(fault: str, reason: str, tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        collector = stack.enter_context(receiver(port))
        collector.answer = fault
        broker = stack.enter_context(exporting(tmp_path, port))
        control = stack.enter_context(Control(broker.data_dir))
        client = stack.enter_context(Client(broker.address, 5))
        until(lambda: collector.refused, timeout_s=30)
        began_s = time.monotonic()
        for _ in range(20):
            client.ping()
            control.call("status")
        assert time.monotonic() - began_s < 1  # less than the least of these waits
        until(lambda: f'reason="{reason}"' in log(broker), lambda: log(broker), timeout_s=30)
        assert not collector.received
        collector.answer = "ok"
        assert later(collector, 1).value("shardbroker.opentelemetry_exports", result="failure") >= 1
        until(lambda: "metrics exported again" in log(broker))
        assert SECRET not in log(broker) and "Traceback" not in log(broker)


def test_an_answer_without_an_end_is_not_read(tmp_path: Path) -> None:
    port = free_port()
    with receiver(port) as collector, exporting(tmp_path, port) as broker:
        collector.answer = "endless"
        until(lambda: collector.refused >= 3, timeout_s=30)
        assert all(psutil.Process(pid).memory_info().rss < 200 << 20 for pid in exporters(broker))


def test_a_slow_collector_gets_each_export_once(tmp_path: Path) -> None:
    port = free_port()
    with receiver(port) as collector, exporting(tmp_path, port) as broker:
        collector.answer = "slow"
        later(collector, 4)
        assert "not exported" not in log(broker)
        times = [one.metrics["shardbroker.uptime_seconds"].gauge.data_points[0].time_unix_nano for one in collector.received]
        assert times == sorted(set(times))


def test_points_that_are_rejected_are_a_failure(tmp_path: Path) -> None:
    port = free_port()
    with receiver(port) as collector, exporting(tmp_path, port) as broker:
        collector.answer = "partial"
        until(lambda: 'reason="3 data points rejected: too old"' in log(broker), lambda: log(broker), timeout_s=30)


def test_settings_are_live(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    with ExitStack() as stack:
        one, other = (stack.enter_context(receiver(port)) for port in ports)
        broker = stack.enter_context(exporting(tmp_path, ports[0], FILE))
        control = stack.enter_context(Control(broker.data_dir))
        control.call("config set", key="opentelemetry.metrics.interval", value="1s")
        assert exporters(broker) == []
        assert "opentelemetry_exports" not in control.call("prometheus")
        done = control.call("config set", key="opentelemetry.metrics.enable", value="true")
        assert done["applied"] == ["opentelemetry.metrics.enable"]
        later(one)
        (pid,) = exporters(broker)
        control.call("config set", key="opentelemetry.exporter.endpoint", value=f"http://127.0.0.1:{ports[1]}/otlp/")
        assert later(other).path == "/otlp/v1/metrics"
        assert exporters(broker) != [pid]
        count = len(one.received)
        (tmp_path / "broker.toml").write_text((FILE + ON).replace("plant-7", "plant-8").replace("tenant", "other"))
        control.call("config reload")
        assert until(lambda: (found := later(other)).resource["service.name"] == "plant-8" and found).headers["x-scope"] == "other"
        control.call("config set", key="opentelemetry.metrics.enable", value="false")
        until(lambda: not exporters(broker))
        assert len(one.received) == count
        assert "not exported" not in log(broker)


def settings_to(port: int, **signals: dict[str, Any]) -> OpenTelemetry:
    """Settings by which signals are exported to a port."""
    exporter = {"endpoint": f"http://127.0.0.1:{port}"}
    return Settings.model_validate({"opentelemetry": {"exporter": exporter, **signals}}).opentelemetry


@asynccontextmanager
async def exported(settings: OpenTelemetry, figures: Any, spans: Any) -> AsyncIterator[Telemetry]:
    """Exports without a broker: what gathers figures, and what takes spans, is given."""
    topology: Any = SimpleNamespace(node_name="n@127.0.0.1", started_ms=time.time_ns() // 1_000_000, workers=1)
    telemetry = Telemetry(topology, settings, figures, Log(), spans)
    running = asyncio.create_task(telemetry.run())
    try:
        yield telemetry
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_an_export_under_way_is_given_up_for_other_settings() -> None:
    """Without a broker, whose check of the settings may take longer than the export on a busy machine."""
    ports = free_port(), free_port()
    intervals = zip(ports, ("5s", "1s"), strict=True)
    first, second = (settings_to(port, metrics={"enable": True, "interval": interval}) for port, interval in intervals)

    async def figures() -> list[dict[str, Any]]:
        return plain([Family("a", "gauge", "text", [({}, 1)])])

    async def no_spans(_: int) -> list[Any]:
        return []

    async def change(one: Receiver, other: Receiver) -> dict[str, int]:
        async with exported(first, figures, no_spans) as telemetry:
            while not one.refused:
                await asyncio.sleep(0.01)
            telemetry.configure(second)
            while not other.received:
                await asyncio.sleep(0.01)
        return telemetry.counts

    with receiver(ports[0]) as one, receiver(ports[1]) as other:
        one.answer = "hang"
        counts = asyncio.run(asyncio.wait_for(change(one, other), 60))
        assert counts["failure"] == 0
        assert other.received[0].value("shardbroker.a") == 1


def test_a_process_that_dies_or_stops_is_replaced(tmp_path: Path) -> None:
    port = free_port()
    with receiver(port) as collector, exporting(tmp_path, port) as broker:
        later(collector)
        (pid,) = exporters(broker)
        os.kill(pid, signal.SIGKILL)
        later(collector)
        assert 'reason="the process that exports has ended; see standard error"' in log(broker)
        (pid,) = exporters(broker)
        with stopped(pid):
            until(lambda: 'reason="no outcome within 3 s; the process that exports was ended"' in log(broker), timeout_s=30)
            later(collector)
        assert exporters(broker) not in ([], [pid])


def test_it_ends_with_the_broker_and_with_the_manager(tmp_path: Path) -> None:
    port = free_port()
    with receiver(port) as collector, exporting(tmp_path, port) as broker:
        later(collector)
        (first,) = exporters(broker)
        manager = psutil.Process(first).ppid()
        broker.kill_process(manager)
        until(lambda: not psutil.pid_exists(first), timeout_s=30)
        later(collector)
        (second,) = exporters(broker)
    until(lambda: not psutil.pid_exists(second))


def test_environment_variables_of_the_library_do_not_count(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    path = tmp_path / "broker.toml"
    path.write_text(f'opentelemetry.exporter.endpoint = "http://127.0.0.1:{ports[0]}"\n{ON}')
    broker = Broker(2, arguments=("--config", str(path)))
    elsewhere = f"http://127.0.0.1:{ports[1]}"
    broker.environment |= {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": elsewhere, "OTEL_EXPORTER_OTLP_HEADERS": "x-of=environment", "HTTP_PROXY": elsewhere,
        "http_proxy": elsewhere, "OTEL_RESOURCE_ATTRIBUTES": "service.name=other", "OTEL_SDK_DISABLED": "true",
    }  # fmt: skip
    with receiver(ports[0]) as collector, receiver(ports[1]) as other, broker:
        sent = later(collector)
        assert "x-of" not in sent.headers and sent.resource["service.name"] == "shardbroker"
        assert not other.received and not other.refused


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    port = free_port()
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "somebody else")
    context = server_context(authority.issue("collector", "collector", ("127.0.0.1",)), authority.cafile)
    own, foreign = authority.issue("broker", "broker"), stranger.issue("foreign", "foreign")
    key = "opentelemetry.exporter"
    file = f'{FILE}{ON}{key}.tls_ca = "{authority.cafile}"\n{key}.tls_cert = "{own}"\n'
    with receiver(port, context) as collector, exporting(tmp_path, port, file, True) as broker, Control(broker.data_dir) as control:
        later(collector)
        for number, (name, value) in enumerate((("tls_ca", stranger.cafile), ("tls_cert", foreign)), 1):
            control.call("config set", key=f"{key}.{name}", value=str(value))
            count = len(collector.received)
            until(lambda number=number: log(broker).count("metrics not exported") == number, lambda: log(broker), timeout_s=30)
            assert len(collector.received) == count
            control.call("config reset", key=f"{key}.{name}")
            later(collector)
        assert 'failures=1 reason="certificate not accepted: ' in log(broker)
        control.call("config update", values={f"{key}.tls_ca": f'"{stranger.cafile}"', f"{key}.tls_verify": "false"})
        later(collector)
        with pytest.raises(ControlError, match=r"exporter\.tls_ca: must be a PEM file of CA certificates, got '/nope'"):
            control.call("config set", key=f"{key}.tls_ca", value="/nope")


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("exporter.endpoint", "127.0.0.1:4318", "http://HOST:PORT or https://HOST:PORT"),
        ("exporter.endpoint", "grpc://127.0.0.1:4317", "http://HOST:PORT or https://HOST:PORT"),
        ("exporter.endpoint", "http://127.0.0.1:99999", "http://HOST:PORT or https://HOST:PORT"),
        ("exporter.endpoint", "http://ada:secret@127.0.0.1", "put those into headers"),
        ("exporter.endpoint", "http://127.0.0.1/?key=secret", "http://HOST:PORT or https://HOST:PORT"),
        ("exporter.service_name", "", "text of 1 to 255 characters"),
        ("exporter.headers", '{a = "b"}', "is a secret; set it in the configuration file"),
        ("exporter.port", "4317", "unknown key"),
        ("metrics.interval", "10ms", "from 1s to 1h"),
        ("metrics.interval", "infinity", "from 1s to 1h"),
        ("metrics.enable", "perhaps", "true or false"),
    ],
)
def test_wrong_settings_are_refused(shared: Control, key: str, value: str, text: str) -> None:
    with pytest.raises(ControlError) as refused:
        shared.call("config set", key=f"opentelemetry.{key}", value=value)
    assert f"opentelemetry.{key}" in str(refused.value) and text in str(refused.value)


@pytest.fixture(scope="module")
def shared() -> Iterator[Control]:
    with Broker(2) as broker, Control(broker.data_dir) as control:
        yield control


@pytest.mark.parametrize(
    ("header", "value"),
    [("a b", "x"), ("Content-Length", "7"), ("authorization", "a\\nb"), ("authorization", " a"), ("authorization", "\u00e4")],
)
def test_headers_that_cannot_be_sent_are_refused(header: str, value: str, tmp_path: Path) -> None:
    file = f'opentelemetry.exporter.headers = {{"{header}" = "{value}"}}\n'
    with pytest.raises(AssertionError, match="is not ready") as refused, exporting(tmp_path, 1, file=file):
        pass
    assert "opentelemetry.exporter.headers" in str(refused.value) and header in str(refused.value)
