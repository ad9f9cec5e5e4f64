"""Log lines about clients: one for each that goes, and at level debug one for each that comes."""

from collections.abc import Iterator
from datetime import UTC, datetime

from shardbroker.mqtt.spec import REASON_CODES
from shm.events import KIND_DISCONNECTED, SIDES, ClientEvent

__all__ = ["client_come", "client_gone", "escaped", "stamp"]


def client_gone(event: ClientEvent) -> str:
    """Who went, from where, why, and which side ended it; without time and level."""
    side = SIDES[event.side] if event.side < len(SIDES) else str(event.side)
    line = f"client gone client_id={escaped(event.client_id)} peer={escaped(event.peer.encode())} {_reason(event)} side={side}"
    return f"{line} detail={escaped(event.detail.encode(), always_quoted=True)}" if event.detail else line


def client_come(event: ClientEvent) -> str:
    """Who came, from where and with what; without time and level."""
    return (
        f"client connected client_id={escaped(event.client_id)} peer={escaped(event.peer.encode())} "
        f"version={event.version} keepalive={event.keepalive_s}s"
    )


def stamp(at_ms: int) -> str:
    """A time in Unix milliseconds as ISO 8601, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def escaped(text: bytes, always_quoted: bool = False) -> str:
    """Quoted if need be; whatever is not printable is escaped, so that no client can write log lines of its own."""
    shown = text.decode(errors="backslashreplace")
    if shown and shown.isprintable() and not always_quoted and not any(c in shown for c in ' "\\='):
        return shown
    return '"' + "".join(_escapes(shown)) + '"'


def _escapes(text: str) -> Iterator[str]:
    for c in text:
        if c in '"\\':
            yield "\\" + c
        else:
            yield c if c.isprintable() else c.encode("unicode_escape").decode()


def _reason(event: ClientEvent) -> str:
    code = event.reason_code
    if code == 0 and event.kind == KIND_DISCONNECTED:
        name = "normal_disconnection"  # 0x00 has a name for each packet that it stands in; MQTT 5.0 §3.14.2.1
    else:
        name = REASON_CODES[code][0] if code in REASON_CODES else "unknown"
    return f"reason=0x{code:02x} {name}"
