"""Keys of OpenTelemetry, named as in EMQX."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator

from shardbroker.config.base import Live, Section
from shardbroker.config.connectors import File, Secrets
from shardbroker.config.packages import missing_packages
from shardbroker.config.units import Allowed, Duration, Number, Whole
from shm.roles import MANAGER, WORKER

__all__ = ["ENDPOINT", "OpenTelemetry", "OtlpExporter", "OtlpMetrics", "OtlpTraces", "TraceFilter"]

PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
"""Packages of the extra `opentelemetry`."""
ENDPOINT = "http://127.0.0.1:4318"
"""A collector on the same machine, at the port of OTLP over HTTP."""
HEADERS_MAX = 32
HEADER_MAX = 8192
"""Most headers, and characters of the value of one: servers take little more."""
NAME_MAX = 255
"""Most characters of the name of the service, which each request has."""
TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}"
"""Name of a header, RFC 9110."""
OWN_HEADERS = ("content-type", "content-encoding", "content-length", "transfer-encoding", "host", "connection")
"""Headers that the exporter sets."""
PATHS = {"metrics": "/v1/metrics", "traces": "/v1/traces"}
"""Signal -> its path, OTLP 1.0."""
QUEUE_MAX = 16384
"""Most spans that wait in a worker: 30 MB with the longest texts."""
SPANS_MAX = 100_000
"""Most spans in a second: as many as a process encodes in three."""
LONGEST_S = 3600.0
"""Longest interval, seconds: a counter that is sent less often shows nothing."""
HELP = "http://HOST:PORT or https://HOST:PORT, a path allowed"


def _endpoint(value: str) -> str:
    parts = urlsplit(value)
    try:
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port
        is_whole = False
    if not is_whole or not value.isascii() or not value.isprintable() or " " in value or parts.query or parts.fragment:
        raise ValueError(f"allowed is {HELP}, not {value[:200]!r}")
    if parts.username is not None or parts.password is not None:
        raise ValueError("allowed is a URL without user name and password; put those into headers")
    return value


Endpoint = Annotated[str, AfterValidator(_endpoint), Allowed(HELP)]


class OtlpExporter(Section):
    """The collector, or the service, that receives metrics and traces."""

    endpoint: Endpoint = Field(
        ENDPOINT,
        max_length=2048,
        description="URL of OTLP over HTTP. `/v1/metrics` and `/v1/traces` are added; one of them at the end is replaced.",
    )
    headers: Secrets = Field(
        {},
        max_length=HEADERS_MAX,
        description="Headers of each request, such as authorization. `file:PATH` reads a value from a file.",
    )
    service_name: Annotated[str, Allowed(f"text of 1 to {NAME_MAX} characters")] = Field(
        "shardbroker", min_length=1, max_length=NAME_MAX, description="The attribute `service.name` of all that is sent."
    )
    tls_ca: File = Field("", description="PEM file of CA certificates; empty: those of the system.")
    tls_cert: File = Field(
        "", description="PEM file of the client certificate, with those that sign it, for servers that ask for one."
    )
    tls_key: File = Field("", description="PEM file of its private key, without a passphrase; empty: it is in `tls_cert`.")
    tls_verify: bool = Field(
        True, description="Whether the certificate of the server is verified; else anyone in between can read along."
    )

    @field_validator("headers")
    @classmethod
    def _sendable(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not re.fullmatch(TOKEN, name) or name.lower() in OWN_HEADERS:
                own = ", ".join(OWN_HEADERS)
                raise ValueError(f"allowed are names of headers other than {own}, not {name[:100]!r}")
            if len(text) > HEADER_MAX or not re.fullmatch(r"([!-~]([ -~]*[!-~])?)?", text):
                allowed = f"up to {HEADER_MAX} printable ASCII characters without spaces around them"
                raise ValueError(f"allowed are values of {allowed}, unlike that of {name[:100]!r}")
        return value

    def url(self, signal: str) -> str:
        """Returns the URL that `metrics` or `traces` are sent to."""
        base = self.endpoint.rstrip("/")
        for path in PATHS.values():
            base = base.removesuffix(path)
        return base + PATHS[signal]


class OtlpMetrics(Section):
    """The figures that Prometheus gets, sent by OTLP. They need `pip install 'shardbroker[opentelemetry]'`."""

    enable: bool = Field(False, description="Whether metrics are sent.")
    interval: Duration = Field(10.0, ge=1, le=LONGEST_S, description="Time between two exports.")


class TraceFilter(Section):
    """Which messages have spans."""

    trace_all: bool = Field(
        False,
        description="Whether a trace begins with each message that a client publishes without `traceparent`; else such messages "
        "have no spans.",
    )
    sample_ratio: Annotated[Number, Field(ge=0, le=1)] = Field(
        1.0, description="With `trace_all`, the part of those messages that is traced, 0 to 1."
    )


class OtlpTraces(Section):
    """Spans of messages, sent by OTLP. They need `pip install 'shardbroker[opentelemetry]'`."""

    enable: bool = Field(False, description="Whether messages whose `traceparent` has the flag sampled have spans.")
    max_queue_size: Whole = Field(
        2048,
        ge=1,
        le=QUEUE_MAX,
        description="Most spans that wait in a worker for an export; further ones are dropped and counted.",
    )
    scheduled_delay: Duration = Field(
        5.0, ge=0.1, le=LONGEST_S, description="Time between two exports; the next one follows at once if more spans wait than fit."
    )
    max_spans_per_second: Whole = Field(
        1000,
        ge=1,
        le=SPANS_MAX,
        description="Most spans of this node in a second, an equal part for each worker; further ones are dropped and counted.",
    )
    filter: TraceFilter = TraceFilter()


class OpenTelemetry(Section):
    """Metrics and traces for a collector of OpenTelemetry, sent by OTLP over HTTP; docs/opentelemetry.md."""

    exporter: OtlpExporter = OtlpExporter()
    metrics: OtlpMetrics = OtlpMetrics()
    traces: Annotated[OtlpTraces, Live(WORKER, MANAGER)] = OtlpTraces()

    @property
    def enabled(self) -> tuple[str, ...]:
        """The signals that are sent: metrics, traces."""
        return tuple(name for name in PATHS if getattr(self, name).enable)

    @property
    def missing(self) -> dict[str, str]:
        """Key that switches a signal on -> an error message that names missing packages; empty if all are there."""
        keys = [f"opentelemetry.{name}.enable" for name in self.enabled]
        found = {key: missing_packages(key, PACKAGES, "opentelemetry") for key in keys}
        return {key: text for key, text in found.items() if text is not None}
