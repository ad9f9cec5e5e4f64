"""What is logged of a failure: its cause, and nothing of the request, whose headers are secret."""

import ssl
from typing import Any

import pytest
import requests
from opentelemetry.sdk.metrics.export import MetricsData

from shardbroker.telemetry.exporter import SHOWN_MAX, Exporter
from shardbroker.telemetry.points import Points

SECRET = "Bearer not-for-the-log"
SETTINGS: dict[str, Any] = {
    "url": "http://127.0.0.1:1/v1/metrics", "headers": {"authorization": SECRET}, "timeout_s": 1.0, "tls_ca": "", "tls_cert": "",
    "tls_key": "", "tls_verify": True,
}  # fmt: skip


def behind(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (behind(requests.ConnectionError(SECRET), ConnectionRefusedError(111, "Connection refused")), "Connection refused"),
        (requests.ReadTimeout(SECRET), "no answer within 1 s"),
        (requests.exceptions.InvalidHeader(SECRET), "no usable answer: InvalidHeader"),
        (requests.ConnectionError(ssl.SSLEOFError(8, "EOF occurred (_ssl.c:2427)")), "TLS: EOF occurred"),
        (behind(requests.ConnectionError(SECRET), OSError(5, "x" * 1000)), "x" * SHOWN_MAX),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_cause_is_the_reason(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> requests.Response:
        raise error

    monkeypatch.setattr(requests.Session, "request", fail)
    assert Exporter(SETTINGS).export(data()) == reason


def test_a_retry_without_time_left_does_not_hide_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library then makes a request with a time limit of 0 seconds."""
    errors = [requests.ConnectionError(ConnectionResetError(104, "Connection reset by peer")), ValueError("timeout <= 0")]

    def fail(*_: Any, **__: Any) -> requests.Response:
        raise errors.pop(0)

    monkeypatch.setattr(requests.Session, "request", fail)
    assert Exporter(SETTINGS).export(data()) == "Connection reset by peer"
    assert not errors


def data() -> MetricsData:
    return Points({}, 1).data([{"name": "a", "kind": "gauge", "text": "", "samples": [({}, 1)]}], 2)
