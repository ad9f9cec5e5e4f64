"""The lines of a trace: one for each event, as text or as JSON."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from shardbroker.mqtt.spec import REASON_CODES

__all__ = ["FORMATTERS", "json_line", "text_line"]

HIDDEN = "******"
"""Replaces a payload that a trace hides."""

Event = list[Any]
"""[numbers of traces, Unix µs, event, client id, user name, peer, details]: worker/observers/traces.pxd."""


def text_line(event: Event, payload_encode: str, payload_limit: int) -> str:
    """Returns `time event [packet] name=value ...`."""
    _, at_us, what, client_id, username, peer, details = event
    fields = _fields(details, payload_encode, payload_limit)
    packet = fields.pop("packet", "")
    known = {"clientid": _text(client_id), "username": _text(username), "peer": peer}
    words = [f"{name}={_word(value)}" for name, value in {**known, **fields}.items() if value not in ("", None)]
    return " ".join([_moment(at_us), what, *([packet] if packet else []), *words])


def json_line(event: Event, payload_encode: str, payload_limit: int) -> str:
    """Returns one JSON object."""
    _, at_us, what, client_id, username, peer, details = event
    known = {"time": _moment(at_us), "event": what, "clientid": _text(client_id), "username": _text(username), "peername": peer}
    fields = {**known, **_fields(details, payload_encode, payload_limit)}
    return json.dumps({name: value for name, value in fields.items() if value not in ("", None)}, ensure_ascii=False)


FORMATTERS: dict[str, Callable[[Event, str, int], str]] = {"text": text_line, "json": json_line}


def _fields(details: dict[str, Any], payload_encode: str, payload_limit: int) -> dict[str, Any]:
    """Returns details as text and numbers, with the payload in the form set by the trace."""
    fields: dict[str, Any] = {}
    for name, value in details.items():
        if name == "payload":
            fields[name] = _payload(value, details["size"], payload_encode, payload_limit)
        elif name == "reason_code":
            fields[name] = value
            fields["reason"] = _reason(value, "side" in details or details.get("packet") == "DISCONNECT")
        elif isinstance(value, list):
            fields[name] = [_text(one) if isinstance(one, bytes) else one for one in value]
        else:
            fields[name] = _text(value) if isinstance(value, bytes) else value
    return fields


def _reason(code: int, goes: bool) -> str | None:
    """Returns the name of a reason code. 0x00 has a name for each packet that uses it; MQTT 5.0 §3.14.2.1."""
    if code == 0 and goes:
        return "normal_disconnection"
    return REASON_CODES[code][0] if code in REASON_CODES else None


def _payload(payload: bytes | None, size: int, encode: str, limit: int) -> str:
    if encode == "hidden" or payload is None:
        return HIDDEN
    shown = payload[:limit]
    text = shown.hex() if encode == "hex" else shown.decode(errors="replace")
    return text if len(shown) == size else f"{text}... ({size} bytes)"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _word(value: Any) -> str:
    """Returns a value as text, in quotes if it could be mistaken for another one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(_word(one) for one in value)
    text = str(value)
    plain = text.isprintable() and not any(letter in ' "=,' for letter in text)
    return text if plain else json.dumps(text, ensure_ascii=False)


def _moment(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
