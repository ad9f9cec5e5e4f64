"""Causes of errors of libraries, without their texts."""

import socket
import ssl

import aiohttp
import pytest
import redis.exceptions

from shardbroker.connectors.reasons import CAUSES_MAX, causes, network_reason


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "s3cret"), "connection refused"),
        (caused(redis.exceptions.ConnectionError("s3cret"), ConnectionResetError(104, "x")), "connection reset by peer"),
        (caused(RuntimeError("s3cret"), socket.gaierror(-2, "x")), "the name of the server cannot be resolved"),
        (caused(RuntimeError("s3cret"), ssl.SSLError("s3cret")), "TLS fails: no handshake"),
        (TimeoutError(), "no response in time"),
        (caused(redis.exceptions.TimeoutError("s3cret"), TimeoutError()), "no response in time"),
        (redis.exceptions.ConnectionError("s3cret"), "the connection was closed"),
        (aiohttp.ServerDisconnectedError("s3cret"), "the connection was closed"),
        (EOFError("s3cret"), "the connection was closed"),
        (ValueError("s3cret"), "ValueError"),
    ],
)
def test_the_cause_is_named_without_its_text(error: Exception, reason: str) -> None:
    assert network_reason(error) == reason


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert len(causes(first)) == CAUSES_MAX
