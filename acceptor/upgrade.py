"""The HTTP request that upgrades a connection to a WebSocket (RFC 6455 §4). The `websockets` library parses and answers it."""

import logging
from http import HTTPStatus
from typing import Any

from websockets.http11 import Request
from websockets.server import ServerProtocol

from acceptor.refusal import Refused
from shm.counters import Counter

__all__ = ["UPGRADE_MAX", "Upgrade"]

UPGRADE_MAX = 16384
"""Longest request, bytes: browsers send cookies of up to several KB."""

END = b"\r\n\r\n"

_silent = logging.getLogger("acceptor.upgrade")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class Upgrade:
    """One request. `settings`: `shardbroker.config.listeners.WebSocket`."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings
        self._head = bytearray()

    def receive(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Returns (the answer, the bytes after the request) once the request is complete, else None. Raises Refused."""
        if not self._head and data[:1] and not data[:1].isalpha():
            raise _refused("not an HTTP request", b"")  # MQTT or TLS, at the wrong port
        searched = max(0, len(self._head) - len(END) + 1)
        self._head += data
        end = self._head.find(END, searched)
        if end < 0 and len(self._head) <= UPGRADE_MAX:
            return None
        if end < 0 or end + len(END) > UPGRADE_MAX:
            raise _refused(f"a request of more than {UPGRADE_MAX} bytes", _plain_answer(431, "Request Header Fields Too Large"))
        size = end + len(END)
        return self._answer(bytes(self._head[:size])), bytes(self._head[size:])

    def _answer(self, head: bytes) -> bytes:
        settings = self._settings
        protocol = ServerProtocol(
            origins=settings.check_origins or None,
            subprotocols=settings.supported_subprotocols,
            # By default the library requires a subprotocol and selects the first of ours that matches, in their order; `mqtt` is
            # the one that the standard requires [MQTT-6.0.0-3] [MQTT-6.0.0-4].
            select_subprotocol=None if settings.fail_if_no_subprotocol else _choose_if_any,
            logger=_silent,
        )
        protocol.receive_data(head)
        events = protocol.events_received()
        if not events or not isinstance(events[0], Request):
            answer = b"".join(protocol.data_to_send()) or _plain_answer(400, "Bad Request")
            raise _refused(f"not an HTTP request: {protocol.handshake_exc}", answer)
        request = events[0]
        if request.path.partition("?")[0] != settings.path:
            response = protocol.reject(HTTPStatus.NOT_FOUND, "MQTT is served at another path.\n")
            text = f"path: must be {settings.path}, got {request.path!r}"
        else:
            response = protocol.accept(request)
            text = str(protocol.handshake_exc)
        protocol.send_response(response)
        answer = b"".join(protocol.data_to_send())
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            raise _refused(f"{text} ({response.status_code})", answer)
        return answer


def _choose_if_any(protocol: ServerProtocol, offered: Any) -> Any:
    return next((name for name in protocol.available_subprotocols or () if name in offered), None)


def _plain_answer(status: int, reason: str) -> bytes:
    return f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()


def _refused(text: str, answer: bytes) -> Refused:
    return Refused(text, Counter.CLIENT_CLOSED_UPGRADE, "websocket", answer)
