"""Log lines of the management plane: written in batches to standard error, never waiting for it."""

import os
import sys
from datetime import UTC, datetime

from shardbroker.mqtt.spec import REASON_CODES
from shm.events import SIDES, ClientEvent

__all__ = ["ClientLog", "format_gone"]

PENDING_MAX = 1 << 20
"""Bytes of lines that wait for a slow standard error; further ones are dropped and counted."""


def format_gone(event: ClientEvent) -> str:
    """One line for a client that went: who, from where, why, and which side ended it."""
    at = datetime.fromtimestamp(event.at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    reason = REASON_CODES.get(event.reason_code, ("unknown",))[0] if event.reason_code else "normal_disconnection"
    line = (
        f"{at} client gone client_id={_plain(event.client_id)} peer={event.peer} "
        f"reason=0x{event.reason_code:02x} {reason} side={SIDES[event.side]}"
    )
    return f"{line} detail={_plain(event.detail.encode())}" if event.detail else line


def _plain(text: bytes) -> str:
    """Quoted if need be; control characters escaped, so that no client can write log lines of its own."""
    shown = text.decode(errors="backslashreplace")
    if shown.isprintable() and " " not in shown and '"' not in shown and shown:
        return shown
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else c.encode("unicode_escape").decode() for c in shown) + '"'


class ClientLog:
    """Gathers lines; flush() writes what standard error takes."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stderr.fileno() if descriptor is None else descriptor
        self._pending = bytearray()
        self._dropped = 0

    def add(self, line: str) -> None:
        """Adds a line, or counts it as dropped if too many wait."""
        if len(self._pending) > PENDING_MAX:
            self._dropped += 1
            return
        if self._dropped:
            self._pending += f"{self._dropped} log lines dropped: standard error is too slow\n".encode()
            self._dropped = 0
        self._pending += line.encode(errors="backslashreplace") + b"\n"

    def flush(self) -> None:
        """Writes once; what is not taken stays for the next time."""
        if self._pending:
            try:
                written = os.write(self._descriptor, self._pending)
            except BlockingIOError:
                return
            del self._pending[:written]
