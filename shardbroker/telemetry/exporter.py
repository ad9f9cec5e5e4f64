"""The exporter of the library, over a session that bounds what a server answers and keeps the reason of a failure."""

import logging
import ssl
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

__all__ = ["Exporter"]

ANSWER_MAX = 65536
"""Most bytes of an answer that are read: a collector answers with a few."""
POINTS_MAX = 10_000
"""Most data points in a request, some 2 MB: collectors accept 20 MB."""
SHOWN_MAX = 300
"""Most characters of a reason."""
CAUSES_MAX = 10
"""Errors behind an error that are searched for a reason."""


class Exporter:
    """Sends data to one URL. settings: url, headers, timeout_s, tls_ca, tls_cert, tls_key, tls_verify."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        warnings.simplefilter("ignore")  # of tls_verify = false, with each request
        for name in ("opentelemetry", "urllib3"):  # what they log is in the reason
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
        self._timeout_s = settings["timeout_s"]
        self._session = _Session(settings)
        self._exporter = OTLPMetricExporter(
            settings["url"],
            headers=settings["headers"],
            timeout=self._timeout_s,
            compression=Compression.Gzip,
            session=self._session,
            max_export_batch_size=POINTS_MAX,
        )

    def export(self, data: MetricsData) -> str:
        """Sends data, with retries until the timeout. Returns what went wrong; empty if all was accepted."""
        self._session.problem = self._session.rejected = ""
        result = self._exporter.export(data, timeout_millis=self._timeout_s * 1000)
        if result is not MetricExportResult.SUCCESS:
            return self._session.problem or "figures could not be encoded"
        return self._session.rejected


class _Session(requests.Session):
    """Follows no redirect, reads no more of an answer than it has to, and takes neither proxies nor passwords from the environment.
    `problem`: what was wrong with the last request; `rejected`: what the collector has rejected of data that it accepted."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.trust_env = False
        self.problem = self.rejected = ""
        self._timeout_s = settings["timeout_s"]
        self._tls = {
            "verify": (settings["tls_ca"] or _system_certificates()) if settings["tls_verify"] else False,
            "cert": (settings["tls_cert"], settings["tls_key"] or settings["tls_cert"]) if settings["tls_cert"] else None,
        }

    def request(self, method: Any, url: Any, *args: Any, **kwargs: Any) -> requests.Response:
        kwargs |= {"stream": True, "allow_redirects": False, **self._tls}
        try:
            response = super().request(method, url, *args, **kwargs)
            body = response.raw.read(ANSWER_MAX + 1)
        except Exception as error:
            if not (self.problem and isinstance(error, ValueError)):  # of a retry of the library without any time left
                self.problem = self._reason(error)
            raise
        if len(body) > ANSWER_MAX:
            response.close()
        if 200 <= response.status_code < 300:
            self.rejected = self.rejected or _rejected(body)
            return response
        self.problem = f"answered {response.status_code} {response.reason or ''}".rstrip()[:SHOWN_MAX]
        if response.status_code < 400:  # the library would take it for a success
            raise requests.RequestException(self.problem)
        return response

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


def _rejected(body: bytes) -> str:
    """Returns what a collector has rejected; empty if all was accepted."""
    try:
        partial = ExportMetricsServiceResponse.FromString(body).partial_success
    except DecodeError:
        return ""  # collectors need not answer with more than the status
    if not partial.rejected_data_points:
        return ""
    return f"{partial.rejected_data_points} data points rejected: {partial.error_message}"[:SHOWN_MAX]


def _system_certificates() -> str | bool:
    """Returns where the certificates of the system are; True, which means those of the library, if it has no such place."""
    paths = ssl.get_default_verify_paths()
    return paths.cafile or paths.capath or True
