"""A receiver of OTLP over HTTP, which decodes requests by the messages of opentelemetry-proto.

It takes the place of a collector, which is written in Go and is in no registry as a program: a test has to see each data point, and
faults that no collector can be configured to make.
"""

import gzip
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

DRIP_S = 0.3
"""Between two bytes of an answer that does not end: below each limit of a read."""


@dataclass(frozen=True)
class Request:
    """One request."""

    path: str
    headers: dict[str, str]


def resource_of(one: Any) -> dict[str, str]:
    """Attributes of what a part of a request is about."""
    return {pair.key: pair.value.string_value for pair in one.resource.attributes}


@dataclass(frozen=True)
class Received(Request):
    """One request with figures."""

    data: ExportMetricsServiceRequest

    @property
    def resource(self) -> dict[str, str]:
        (one,) = self.data.resource_metrics
        return resource_of(one)

    @property
    def metrics(self) -> dict[str, Metric]:
        """By name, each of which must be there once."""
        found = [metric for one in self.data.resource_metrics[0].scope_metrics for metric in one.metrics]
        named = {metric.name: metric for metric in found}
        assert len(named) == len(found)
        return named

    def value(self, name: str, **labels: Any) -> float:
        """The value of one data point of a counter or gauge."""
        return values(self.metrics[name])[(*sorted((label, str(one)) for label, one in labels.items()),)]


@dataclass(frozen=True)
class ReceivedSpans(Request):
    """One request with spans."""

    data: ExportTraceServiceRequest

    @property
    def resource(self) -> dict[str, str]:
        (one,) = self.data.resource_spans
        return resource_of(one)

    @property
    def spans(self) -> list[Span]:
        (one,) = self.data.resource_spans
        return [span for scope in one.scope_spans for span in scope.spans]


def attributes(span: Span) -> dict[str, Any]:
    """Attributes of a span by name."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}


def values(metric: Metric) -> dict[tuple[tuple[str, str], ...], float]:
    """Values of a counter or gauge by labels."""
    points = getattr(metric, metric.WhichOneof("data")).data_points
    found = {}
    for point in points:
        labels = ((pair.key, str(getattr(pair.value, pair.value.WhichOneof("value")))) for pair in point.attributes)
        found[(*sorted(labels),)] = getattr(point, point.WhichOneof("value"))
    assert len(found) == len(points)
    return found


class Receiver:
    """`received`: requests that were accepted; `traces`: those with spans. `answer`: what becomes of further
    ones, `ok` or the name of a method of `Faults`."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self.received: list[Received] = []
        self.traces: list[ReceivedSpans] = []
        self.refused = 0
        self.answer = "ok"
        self.done = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def spans(self) -> list[Span]:
        """All that have arrived, in the order of requests."""
        return [span for one in self.traces for span in one.spans]

    def close(self) -> None:
        self.done.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def receiver(port: int, context: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """A receiver at a port of this machine."""
    one = Receiver(port, context)
    try:
        yield one
    finally:
        one.close()


def server_context(certificate: Path, clients: Path | None = None) -> ssl.SSLContext:
    """TLS with a certificate. clients: the authority of certificates that clients must have."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
    context.load_cert_chain(certificate)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _handler(owner: Receiver) -> type[BaseHTTPRequestHandler]:
    class Faults(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            owner.refused += 1
            self._send(404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if owner.answer not in ("ok", "slow", "partial"):
                owner.refused += 1
                with suppress(OSError):
                    getattr(self, owner.answer)()
                return
            if self.headers["Content-Encoding"] == "gzip":
                body = gzip.decompress(body)
            headers = {name.lower(): value for name, value in self.headers.items()}
            if owner.answer == "slow":
                owner.done.wait(0.5)
            if self.path.endswith("/v1/traces"):
                spans = ExportTraceServiceResponse()
                if owner.answer == "partial":
                    spans.partial_success.rejected_spans = 3
                    spans.partial_success.error_message = "too old"
                owner.traces.append(ReceivedSpans(self.path, headers, ExportTraceServiceRequest.FromString(body)))
                self._send(200, spans.SerializeToString())
                return
            answer = ExportMetricsServiceResponse()
            if owner.answer == "partial":
                answer.partial_success.rejected_data_points = 3
                answer.partial_success.error_message = "too old"
            owner.received.append(Received(self.path, headers, ExportMetricsServiceRequest.FromString(body)))
            self._send(200, answer.SerializeToString())

        def error(self) -> None:
            self._send(500, b"no")

        def busy(self) -> None:
            self._send(503, b"", {"Retry-After": "86400"})

        def redirect(self) -> None:
            self._send(307, b"", {"Location": f"http://127.0.0.1:{owner._server.server_address[1]}/elsewhere"})

        def hang(self) -> None:
            owner.done.wait()

        def drip(self) -> None:
            """An answer that comes byte by byte, without an end."""
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not owner.done.is_set():
                self.wfile.write(b"x")
                time.sleep(DRIP_S)

        def endless(self) -> None:
            """A body without an end, as fast as it is read."""
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\r\n")
            while not owner.done.is_set():
                self.wfile.write(b"x" * 65536)

        def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: a broken connection is part of the tests."""

    return Faults
