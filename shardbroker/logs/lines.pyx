"""Log lines about clients: one for each connect, at a level of its own, and one for each disconnect or refusal.

Compiled, because thousands of clients may disconnect in a second, with a line each.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from shm.address cimport ADDRESS_TEXT_MAX, write_address
from shm.events cimport EVENT_CONNECTED, EVENT_DENIED, EVENT_FLAPPING, EventHeader, check

from datetime import UTC, datetime

from shardbroker.mqtt.spec import REASON_CODES
from shm.events import SIDES

__all__ = ["client_line", "escaped", "is_connected", "stamp"]

cdef enum:
    CODES = 256
    STAMP_SIZE = 29                        # 2026-11-21T06:46:15.547+00:00
    USERNAME_MAX = 256                     # bytes of a user name in a line; it may have 64 KiB

cdef uint64_t STAMP_MAX_MS = 253402300799999  # 9999-12-31T23:59:59.999: later years do not fit into STAMP_SIZE


def _reason(int code) -> bytes:
    if code == 0:
        name = "normal_disconnection"      # 0x00 has a name for each packet that uses it; MQTT 5.0 §3.14.2.1
    else:
        name = REASON_CODES[code][0] if code in REASON_CODES else "unknown"
    return f" reason=0x{code:02x} {name} side=".encode()


cdef list REASONS = [_reason(code) for code in range(CODES)]
cdef list SIDE_NAMES = [(SIDES[side] if side < len(SIDES) else str(side)).encode() for side in range(CODES)]
cdef dict WORDS = {
    int(EVENT_DENIED): b" INFO authorization denied client_id=", int(EVENT_FLAPPING): b" WARNING client flapping client_id=",
}
cdef uint64_t stamped_s = 0
cdef bytes stamped = b""


def stamp(uint64_t at_ms) -> str:
    """Formats Unix milliseconds as ISO 8601, UTC."""
    return stamp_of(at_ms).decode("ascii")


cdef bytes stamp_of(uint64_t at_ms):
    """Formats only the milliseconds while the second is unchanged. A time beyond STAMP_MAX_MS becomes that time."""
    global stamped, stamped_s
    cdef uint64_t at = min(at_ms, STAMP_MAX_MS), seconds = at // 1000, rest = at % 1000
    cdef bytes text
    cdef char* digits
    if seconds != stamped_s or not stamped:
        stamped = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").encode()
        stamped_s = seconds
    text = PyBytes_FromStringAndSize(PyBytes_AS_STRING(stamped), STAMP_SIZE)
    digits = PyBytes_AS_STRING(text) + 20
    digits[0] = <char>(c"0" + rest // 100)
    digits[1] = <char>(c"0" + rest // 10 % 10)
    digits[2] = <char>(c"0" + rest % 10)
    return text


cdef bint plain(const uint8_t* text, size_t size) noexcept:
    """Returns whether text is printable ASCII that needs neither quotes nor escapes."""
    cdef size_t i
    cdef uint8_t c
    for i in range(size):
        c = text[i]
        if c <= c" " or c > c"~" or c == c'"' or c == c"\\" or c == c"=":
            return False
    return size > 0


def escaped(bytes text not None, bint always_quoted=False) -> bytes:
    """Returns text, quoted if necessary; unprintable characters are escaped, so that no client can forge log lines."""
    if not always_quoted and plain(<const uint8_t*>PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text)):
        return text
    shown = text.decode(errors="backslashreplace")
    if shown and shown.isprintable() and not always_quoted and not any(c in shown for c in ' "\\='):
        return shown.encode()
    return b'"' + "".join([_escape(c) for c in shown]).encode() + b'"'


def _escape(str c) -> str:
    if c in '"\\':
        return "\\" + c
    return c if c.isprintable() else c.encode("unicode_escape").decode()


def client_line(bytes event not None, bytes connected_level not None=b"DEBUG") -> bytes:
    """Returns the whole line of an event (shm.events), with time, level and line end. Raises EventError."""
    cdef EventHeader header
    cdef const uint8_t* start = <const uint8_t*>PyBytes_AS_STRING(event)
    cdef bytes client_id, detail, who
    cdef size_t username_at
    cdef char peer[ADDRESS_TEXT_MAX]
    cdef size_t peer_size
    check(start, PyBytes_GET_SIZE(event), &header)
    client_id = escaped(event[sizeof(header):sizeof(header) + header.client_size])
    peer_size = write_address(peer, &header.peer)
    who = join((client_id, b" peer=", peer[:peer_size] if peer_size else b'""'))
    if header.username_size:
        username_at = sizeof(header) + header.client_size + header.detail_size
        who = join((who, b" username=", escaped(event[username_at:username_at + min(header.username_size, <int>USERNAME_MAX)])))
    if header.kind == EVENT_CONNECTED:
        return b"%b %b client connected client_id=%b version=%d keepalive=%ds\n" % (
            stamp_of(header.at_ms), connected_level, who, header.version, header.keepalive_s)
    if header.kind == EVENT_DENIED or header.kind == EVENT_FLAPPING:
        detail = event[sizeof(header) + header.client_size:sizeof(header) + header.client_size + header.detail_size]
        return join((stamp_of(header.at_ms), WORDS[header.kind], who, b" detail=", escaped(detail, True), b"\n"))
    if header.detail_size:
        detail = event[sizeof(header) + header.client_size:sizeof(header) + header.client_size + header.detail_size]
        return join((stamp_of(header.at_ms), b" INFO client disconnected client_id=", who,
                     REASONS[header.reason_code], SIDE_NAMES[header.side], b" detail=", escaped(detail, True), b"\n"))
    return join((stamp_of(header.at_ms), b" INFO client disconnected client_id=", who,
                 REASONS[header.reason_code], SIDE_NAMES[header.side], b"\n"))


cdef bytes join(tuple parts):
    """Joins bytes objects. It is cheaper than b"".join, which requests the buffer of each part."""
    cdef Py_ssize_t size = 0
    cdef bytes part, whole
    cdef char* target
    for part in parts:
        size += PyBytes_GET_SIZE(part)
    whole = PyBytes_FromStringAndSize(NULL, size)
    target = PyBytes_AS_STRING(whole)
    for part in parts:
        memcpy(target, PyBytes_AS_STRING(part), PyBytes_GET_SIZE(part))
        target += PyBytes_GET_SIZE(part)
    return whole


def is_connected(bytes event not None) -> bool:
    """Returns whether an event is a connect. Raises EventError for a malformed event."""
    cdef EventHeader header
    check(<const uint8_t*>PyBytes_AS_STRING(event), PyBytes_GET_SIZE(event), &header)
    return header.kind == EVENT_CONNECTED
