"""Messages between nodes as typed values. The codec of the link processes turns each into one frame, or into several.

Names follow the frame types of the protocol. A message is immutable and holds nothing of the node that created it. Sizes of texts
and nonces are checked by the core that receives them; the codec bounds the size of a frame (FRAME_BYTES_MAX).
"""

from typing import NamedTuple

__all__ = [
    "FRAME_BYTES_MAX",
    "POSITION_MAX",
    "STREAMS_MAX",
    "Bye",
    "Data",
    "DataAck",
    "Hello",
    "Leaving",
    "Message",
    "Ping",
    "Pong",
    "Record",
    "Resume",
    "Route",
    "RouteAck",
    "RouteEntries",
    "RoutePartAck",
    "RoutesBegin",
    "RoutesEnd",
    "RoutesFrom",
    "RoutesPart",
    "RoutesResume",
    "StreamAck",
    "StreamOffer",
    "StreamResume",
    "Streams",
    "Welcome",
]

FRAME_BYTES_MAX = 2 << 20
"""Bytes of a frame: a batch of 1 MB and the filter that crosses its limit."""
POSITION_MAX = (1 << 63) - 1
"""Largest position, incarnation or identity: it fits a signed and an unsigned 64-bit field."""
STREAMS_MAX = 1_024
"""Streams of a peer: 64 workers, and 15 more rings of each that a killed broker left."""


class Hello(NamedTuple):
    """First message of each side of a connection."""

    channel: int                   # 0: signals; 1 and above: data
    node_id: int
    name: str
    address: str                   # as in `cluster.static.seeds`
    cluster: bytes                 # 16 bytes, digest of the cluster's name
    node_uuid: bytes               # 16 bytes, of the data directory
    incarnation: int
    proto_min: int
    proto_max: int
    features: int
    nonce: bytes                   # 16 random bytes, of this connection


class Welcome(NamedTuple):
    """Proof that the sender knows the cookie."""

    proof: bytes


class Bye(NamedTuple):
    """Last message of a connection."""

    reason: int
    text: str


class Ping(NamedTuple):
    """Liveness and the sender's view."""

    number: int
    clock_ms: int                  # Unix ms
    digest: bytes                  # of the member set
    state: int                     # NodeState


class Pong(NamedTuple):
    """Answer to the ping of the same number."""

    number: int
    clock_ms: int                  # Unix ms


class Leaving(NamedTuple):
    """The sender leaves the cluster: its routes and what is spooled for it are dropped."""


class Route(NamedTuple):
    """A node-level route, or its removal in a log (members 0). With `group`, the number of members that the node has in that
    shared group."""

    filter: bytes
    group: bytes = b""
    members: int = 1
    flags: int = 0


class RoutesFrom(NamedTuple):
    """Position in the route log of the peer at which the sender's table ends; log_id 0: no table."""

    log_id: int
    position: int


class RoutesResume(NamedTuple):
    """The log continues behind `position`; `head` is its end at this moment."""

    log_id: int
    position: int
    head: int


class RoutesBegin(NamedTuple):
    """A dump of all routes begins; the log continues behind `position`."""

    log_id: int
    position: int


class RoutesPart(NamedTuple):
    """Rows of a dump, in the order of their keys. Parts are numbered from 1 over the whole connection."""

    number: int
    rows: tuple[Route, ...]


class RoutesEnd(NamedTuple):
    """The dump is complete; once the log is applied up to `head`, the table is as current as the log."""

    parts: int
    head: int


class RouteEntries(NamedTuple):
    """Entries of the route log, the first one at position `first`."""

    log_id: int
    first: int
    entries: tuple[Route, ...]


class RoutePartAck(NamedTuple):
    """Parts of dumps that are stored, counted over the whole connection."""

    parts: int


class RouteAck(NamedTuple):
    """The log is stored up to `position`."""

    position: int


class Record(NamedTuple):
    """A message in a stream. Its position is that behind its last byte in the ring, so no two records share one."""

    position: int
    qos: int
    body: bytes


class StreamOffer(NamedTuple):
    """A stream of the sender: `stream` names it on this connection, `identity` is that of its ring."""

    stream: int
    lane: int
    identity: int
    start: int                     # first position that the sender can still send


class Streams(NamedTuple):
    """Streams of the sender. `complete`: streams of any other identity are over."""

    offers: tuple[StreamOffer, ...]
    complete: bool


class StreamResume(NamedTuple):
    """Position from which a stream is to be sent."""

    stream: int
    position: int


class Resume(NamedTuple):
    """Answer to Streams, with a position for each of its offers."""

    positions: tuple[StreamResume, ...]


class Data(NamedTuple):
    """A range of a stream and the records in it. What the range has besides was dropped by the sender, and counted there."""

    stream: int
    start: int
    end: int
    records: tuple[Record, ...]


class StreamAck(NamedTuple):
    """Positions of a stream: everything up to `memory` is in rings of workers, everything up to `disk` on their disks."""

    stream: int
    memory: int
    disk: int


class DataAck(NamedTuple):
    """Positions that moved since the last acknowledgement."""

    positions: tuple[StreamAck, ...]


Message = (
    Hello
    | Welcome
    | Bye
    | Ping
    | Pong
    | Leaving
    | RoutesFrom
    | RoutesResume
    | RoutesBegin
    | RoutesPart
    | RoutesEnd
    | RouteEntries
    | RoutePartAck
    | RouteAck
    | Streams
    | Resume
    | Data
    | DataAck
)
