"""The exporters of the library, over a session that bounds what a server answers and keeps the reason of a failure."""

import logging
import ssl
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

__all__ = ["Exporter", "SpanExporter", "silence"]

ANSWER_MAX = 65536
"""Most bytes of an answer that are read: a collector answers with a few."""
POINTS_MAX = 10_000
"""Most data points in a request, some 2 MB: collectors accept 20 MB."""
SHOWN_MAX = 300
"""Most characters of a reason."""
CAUSES_MAX = 10
"""Errors behind an error that are searched for a reason."""


class Exporter:
    """Sends metrics to one URL. settings: url, headers, timeout_s, tls_ca, tls_cert, tls_key, tls_verify."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._timeout_s = settings["timeout_s"]
        self._session = _Session(settings, ExportMetricsServiceResponse, "data points")
        self._exporter = OTLPMetricExporter(**_options(settings, self._session), max_export_batch_size=POINTS_MAX)

    def export(self, data: MetricsData) -> str:
        """Sends data, with retries until the timeout. Returns what went wrong; empty if all was accepted."""
        self._session.begin()
        result = self._exporter.export(data, timeout_millis=self._timeout_s * 1000)
        return self._session.outcome(result is MetricExportResult.SUCCESS, "figures could not be encoded")


class SpanExporter:
    """Sends spans to one URL. settings: as those of an Exporter."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._session = _Session(settings, ExportTraceServiceResponse, "spans")
        self._exporter = OTLPSpanExporter(**_options(settings, self._session))

    def export(self, spans: Sequence[ReadableSpan]) -> str:
        """Sends spans in one request, with retries until the timeout. Returns what went wrong; empty if all were accepted."""
        self._session.begin()
        return self._session.outcome(self._exporter.export(spans) is SpanExportResult.SUCCESS, "spans could not be encoded")


def silence() -> None:
    """Drops what the libraries log: it is in the reason, or is about a tracestate of a client."""
    warnings.simplefilter("ignore")  # of tls_verify = false, with each request
    for name in ("opentelemetry", "urllib3"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False


def _options(settings: Mapping[str, Any], session: "_Session") -> dict[str, Any]:
    """Returns what both exporters of the library are made with."""
    known = {"headers": settings["headers"], "timeout": settings["timeout_s"], "compression": Compression.Gzip}
    return {"endpoint": settings["url"], "session": session, **known}


class _Session(requests.Session):
    """Follows no redirect, reads no more of an answer than it has to, and takes neither proxies nor passwords from the environment.
    answer: the message that a collector answers with; sent: what that counts, such as `data points`."""

    def __init__(self, settings: Mapping[str, Any], answer: Any, sent: str) -> None:
        super().__init__()
        self._answer, self._sent = answer, sent
        self.trust_env = False
        self._problem = self._rejected = ""
        """What was wrong with the last request, and what the collector has rejected of data that it accepted."""
        self._timeout_s = settings["timeout_s"]
        self._tls = {
            "verify": (settings["tls_ca"] or _system_certificates()) if settings["tls_verify"] else False,
            "cert": (settings["tls_cert"], settings["tls_key"] or settings["tls_cert"]) if settings["tls_cert"] else None,
        }

    def begin(self) -> None:
        """Forgets the last export."""
        self._problem = self._rejected = ""

    def outcome(self, is_sent: bool, unsent: str) -> str:
        """Returns what went wrong with an export; empty if all was accepted. unsent: if there was no request."""
        return self._rejected if is_sent else self._problem or unsent

    def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs |= {"stream": True, "allow_redirects": False, **self._tls}
        try:
            response = super().request(method, url, *args, **kwargs)
            body = response.raw.read(ANSWER_MAX + 1)
        except Exception as error:
            if not (self._problem and isinstance(error, ValueError)):  # of a retry of the library without any time left
                self._problem = self._reason(error)
            raise
        if len(body) > ANSWER_MAX:
            response.close()
        if 200 <= response.status_code < 300:
            self._rejected = self._rejected or self._rejected_in(body)
            return response
        self._problem = f"answered {response.status_code} {response.reason or ''}".rstrip()[:SHOWN_MAX]
        if response.status_code < 400:  # the library would take it for a success
            raise requests.RequestException(self._problem)
        return response

    def _rejected_in(self, body: bytes) -> str:
        """Returns what a collector has rejected; empty if all was accepted."""
        try:
            partial = self._answer.FromString(body).partial_success
        except DecodeError:
            return ""  # collectors need not answer with more than the status
        count = getattr(partial, f"rejected_{self._sent.replace(' ', '_')}")
        return f"{count} {self._sent} rejected: {partial.error_message}"[:SHOWN_MAX] if count else ""

    def _reason(self, error: Exception) -> str:
        """Returns the cause of a failure without the request, whose headers are secret."""
        causes = [*_causes(error)]
        for cause in causes:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return f"certificate not accepted: {cause.verify_message}"[:SHOWN_MAX]
            if isinstance(cause, ssl.SSLError):
                text = getattr(cause, "reason", None) or (cause.strerror or "failed").partition(" (_ssl")[0]
                return f"TLS: {text.replace('_', ' ')}"[:SHOWN_MAX]
        for cause in causes:
            if isinstance(cause, OSError) and cause.strerror:
                return cause.strerror[:SHOWN_MAX]
        if isinstance(error, requests.Timeout | TimeoutError):
            return f"no answer within {self._timeout_s:g} s"
        return f"no usable answer: {type(causes[-1]).__name__}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and those behind it."""
    found: list[BaseException] = [error]
    for one in found:
        behind = (one.__cause__, one.__context__, getattr(one, "reason", None), *one.args)
        found += [other for other in behind if isinstance(other, BaseException) and other not in found]
        if len(found) > CAUSES_MAX:
            break
    yield from found


def _system_certificates() -> str | bool:
    """Returns where the certificates of the system are; True, which means those of the library, if it has no such place."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or True
