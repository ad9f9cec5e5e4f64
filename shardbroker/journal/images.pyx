"""Sessions in bytes, for one that leaves its process: to another worker, to another node, to a successor.

    0      magic b1 0c 53 49            4    CRC-32 of all that follows
    8      version                    10   zero (2)               12   records
    16     time of the image, ms      24   time at which the session was created, ms
    32     the records, as in a block of the journal

The records are those of session/image.pxd: first SESSION_SAVED, each message before the first record that refers to it. After them may
follow records of later changes. Little-endian. A new kind of record or a new last field needs no new version.
"""

from libc.stdint cimport int64_t, uint64_t

from shardbroker.journal.buffer cimport RecordBuffer
from shardbroker.journal.recorder cimport BufferRecorder
from shardbroker.mqtt.spec cimport PUBACK
from shardbroker.pubsub.message cimport Message
from shardbroker.pubsub.subscriptions cimport ReplaySubscription, Subscriber
from shardbroker.session.context cimport WorkerContext
from shardbroker.session.image cimport SessionReader, save
from shardbroker.session.session cimport Session

from struct import Struct, error as StructError

from shardbroker.journal.checksum import crc32
from shardbroker.journal.schema import FIELDS, Kind, SchemaError, check_fields, decode_items
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter, check_topic_name, parse_subscription

__all__ = ["ImageError", "read_image", "write_image"]

_HEADER = Struct("<4sIHHIQQ")
_MAGIC = b"\xb1\x0cSI"
_VERSION = 1
_CHECKED_FROM = 8
"""The checksum covers what follows it."""
_ID_BYTES = 16
_HIGHEST_PRIORITY = 256
_LAST_PACKET_ID = 65535
_MOST_LEVELS = 65535
"""Of a topic: the limit of a listener applied when it was published."""
_OPTIONS = 0x7F
_CHANGES = frozenset((
    Kind.DISCONNECTED, Kind.SUBSCRIBED, Kind.UNSUBSCRIBED, Kind.QUEUED, Kind.DELIVERED, Kind.ACKNOWLEDGED, Kind.DROPPED, Kind.RECEIVED,
    Kind.RELEASED, Kind.WILL_SET, Kind.WILL_CLEARED, Kind.WILL_DELAYED,
))
"""Kinds that follow SESSION_SAVED, beside MESSAGE."""


class ImageError(ValueError):
    """The bytes are not the image of a session: damaged, foreign, or of a later version."""


cdef class StateRecorder(BufferRecorder):
    """Records of sessions; a message is written once, and the journal's marks of what it has are left alone."""

    def __cinit__(self):
        self.written = set()

    cdef int message(self, Message message) except -1:
        cdef object id = (message.id_high, message.id_low)
        if id in self.written:
            return 0
        self.written.add(id)
        return BufferRecorder.message(self, message)


cdef class ImageRecorder(StateRecorder):
    """Records of one session that moves to another node."""

    cdef int saved(self, Subscriber session, int version, uint64_t expiry_ms) except -1:
        cdef Session moved = <Session>session
        StateRecorder.saved(self, session, version, expiry_ms)
        if (moved.window is None or moved.window.count == 0) and moved.first_id != 1:
            # The packet id before the next one: with nothing in flight the session would begin with 1 again, see Place.to_release.
            self.packet_id_used(session, moved.first_id - 1, 1, PUBACK)
        return 0

    cdef int replayed(self, ReplaySubscription replay) except -1:
        return 0                           # positions are those of journals that stay behind


cdef class ImageReader(SessionReader):
    """One session, entered into no table of a worker."""
    cdef Session session

    cdef Session session_of(self, list item):
        return self.session


def write_image(Session session not None) -> bytes:
    """The whole session. It is not changed; its journal takes no notice."""
    cdef ImageRecorder recorder = ImageRecorder.__new__(ImageRecorder)
    recorder.buffer = RecordBuffer()
    save(session, recorder, True)
    body = bytes(recorder.buffer)
    header = _HEADER.pack(_MAGIC, 0, _VERSION, 0, len(recorder.buffer), session.context.now_ms, session.created_ms)
    checksum = crc32(body, crc32(header[_CHECKED_FROM:]))
    return header[:4] + checksum.to_bytes(4, "little") + header[8:] + body


def read_image(bytes data not None, WorkerContext context not None, key: int | None = None, foreign_clock: bool = False) -> Session:
    """A session as it was when the image was written. Raises ImageError.

    context: whose settings, clock and counters the session is to use; nothing else of a worker is touched. The caller enters the session
    and its subscriptions into the worker's tables, and records it. key: its number here; None: the one of the image. foreign_clock: the
    image is of another machine, and was written at this moment: its times are moved by the difference of the clocks, so that what is
    left until the session expires and its will is due stays the same.
    """
    time_ms, created_ms, items = _records(data)
    cdef int64_t moved_ms = <int64_t>context.now_ms - <int64_t>time_ms if foreign_clock else 0
    cdef ImageReader reader = ImageReader.__new__(ImageReader)
    cdef Session session
    reader.context = context
    reader.time_ms = <uint64_t>(<int64_t>time_ms + moved_ms)
    try:
        _check(items)
        saved = items[0]
        session = reader.session = Session(context, saved[1] if key is None else key, saved[2])
        session.created_ms = <uint64_t>(<int64_t>created_ms + moved_ms)
    except (MqttError, OverflowError, SchemaError) as error:
        raise ImageError(str(error)) from None
    try:
        reader.connected(session, saved)
        _apply(reader, items)
        if reader.end_lost(session):
            raise ImageError("a delivery without its message")
        if session.expires_at_ms:
            session.expires_at_ms = <uint64_t>(<int64_t>session.expires_at_ms + moved_ms)
        if session.will_at_ms:
            session.will_at_ms = <uint64_t>(<int64_t>session.will_at_ms + moved_ms)
    except ImageError:
        session.end()                      # gauges go back
        raise
    except (MqttError, OverflowError, RecursionError, TypeError, ValueError) as error:
        session.end()
        raise ImageError(f"{type(error).__name__}: {error}") from None
    return session


def _records(bytes data) -> tuple:
    """(time of the image, time of the session's creation, records)."""
    try:
        magic, checksum, version, _, count, time_ms, created_ms = _HEADER.unpack_from(data)
    except StructError:
        raise ImageError(f"{len(data)} bytes are less than a header") from None
    if magic != _MAGIC:
        raise ImageError("not an image of a session")
    if crc32(memoryview(data)[_CHECKED_FROM:]) != checksum:
        raise ImageError("the checksum is wrong")
    if version != _VERSION:
        raise ImageError(f"version {version}; this broker reads {_VERSION}")
    try:
        return time_ms, created_ms, decode_items(data[_HEADER.size:], count)
    except SchemaError as error:
        raise ImageError(str(error)) from None


cdef int _check(list items) except -1:
    """Everything that the reader takes for granted, as does the session afterwards. Raises SchemaError, MqttError."""
    if not items or items[0][0] != Kind.SESSION_SAVED:
        raise SchemaError("the first record is not SESSION_SAVED")
    key = None
    for item in items:
        if item[0] not in FIELDS:
            continue                       # of a later version
        kind = Kind(item[0])
        check_fields(item)
        if kind == Kind.SESSION_SAVED:
            if key is not None:
                raise SchemaError("two sessions in one image")
            key = item[1]
            _check_range("protocol version", item[3], 0, 5)
        elif kind == Kind.MESSAGE:
            _check_id(item[1])
            _check_qos(item[4])
            check_topic_name(item[2], _MOST_LEVELS)
        elif kind not in _CHANGES:
            raise SchemaError(f"{kind.name} is not of a session")
        elif item[1] != key:
            raise SchemaError(f"{kind.name} of another session")
        elif kind == Kind.SUBSCRIBED:
            _check_range("options", item[3], 0, _OPTIONS)
            _check_qos(item[3])
            check_topic_filter(parse_subscription(item[2])[1], _MOST_LEVELS)
        elif kind == Kind.QUEUED:
            _check_id(item[2])
            _check_qos(item[3])
            _check_range("priority", item[4], 0, _HIGHEST_PRIORITY)
        elif kind == Kind.DELIVERED:
            _check_range("packet id", item[2], 0, _LAST_PACKET_ID)
            _check_id(item[3])
            _check_qos(item[4])
        elif kind in (Kind.ACKNOWLEDGED, Kind.RECEIVED, Kind.RELEASED):
            _check_range("packet id", item[2], 1, _LAST_PACKET_ID)
        elif kind == Kind.DROPPED:
            _check_id(item[2])
        elif kind == Kind.WILL_SET:
            _check_qos(item[4])
            check_topic_name(item[2], _MOST_LEVELS)
    return 0


cdef int _apply(ImageReader reader, list items) except -1:
    for item in items:
        kind = item[0]
        if kind == Kind.DELIVERED and item[4] & 3:
            if item[2] == 0 or reader.session.in_window(item[2]) != NULL:
                raise ImageError(f"packet id {item[2]} is not free")
        if kind == Kind.QUEUED and item[2] not in reader.messages:
            raise ImageError("a queue entry without its message")
        if kind == Kind.MESSAGE or kind in _CHANGES:
            getattr(reader, _METHODS[kind])(item)
    return 0


_METHODS = {kind: f"on_{kind.name.lower()}" for kind in (Kind.MESSAGE, *_CHANGES)}


def _check_range(str what, value, int lowest, int highest) -> None:
    if not lowest <= value <= highest:
        raise SchemaError(f"{what} {value}")


def _check_qos(flags) -> None:
    if flags & 3 == 3:
        raise SchemaError("QoS 3")


def _check_id(id) -> None:
    if len(id) != _ID_BYTES:
        raise SchemaError(f"a message id of {len(id)} bytes")
