"""Messages between nodes as typed values. The codec of the link processes turns each into one frame, or into several.

Names follow the frame types of the protocol. A message is immutable and holds nothing of the node that created it. Sizes of texts
and nonces are checked by the core that receives them; the codec bounds the size of a frame (FRAME_BYTES_MAX).
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple, Protocol

__all__ = [
    "FRAME_BYTES_MAX",
    "POSITION_MAX",
    "STREAMS_MAX",
    "Announce",
    "Bye",
    "Claim",
    "Data",
    "DataAck",
    "Decline",
    "Done",
    "End",
    "Ended",
    "Find",
    "Found",
    "Grant",
    "Held",
    "Hello",
    "Here",
    "Key",
    "Leaving",
    "Load",
    "Message",
    "Moved",
    "NoState",
    "OfTable",
    "Offer",
    "Ping",
    "Pong",
    "Queued",
    "Rebuild",
    "Records",
    "Refuse",
    "Release",
    "Resume",
    "RetainedAck",
    "RetainedBegin",
    "RetainedEnd",
    "RetainedMessages",
    "RetainedRange",
    "RetainedRows",
    "RetainedSummary",
    "RetainedWant",
    "Retry",
    "Revoke",
    "Route",
    "RouteAck",
    "RouteEntries",
    "RoutePartAck",
    "RoutesBegin",
    "RoutesEnd",
    "RoutesFrom",
    "RoutesPart",
    "RoutesResume",
    "SessionMessage",
    "Sessions",
    "Starting",
    "State",
    "StateAck",
    "StreamAck",
    "StreamOffer",
    "StreamResume",
    "Streams",
    "TableNumber",
    "Tail",
    "TailAck",
    "Take",
    "Wait",
    "Welcome",
    "Who",
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


class Load(NamedTuple):
    """What the sender's broker has and does. It decides which sessions move, and nothing about what is delivered."""

    connections: int
    sessions: int                  # with those of connected clients
    received: int                  # messages a second
    sent: int                      # messages a second
    uptime_s: int
    load1: int                     # of the machine over a minute, hundredths
    turns_away: bool               # new clients are turned away
    version: str


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


class Records(Protocol):
    """Records of one stream, in the order of their positions. A core knows only how far they reach; the driver knows what they are.

    The position of a record is that behind its last byte in the ring, so no two records share one.
    """

    @property
    def end(self) -> int:
        """Returns the position of the last record."""

    @property
    def size(self) -> int:
        """Returns their bytes in a message."""

    def counts(self) -> Mapping[int, int]:
        """Returns the number of records by QoS."""

    def behind(self, position: int) -> "Records | None":
        """Returns the records behind a position; None: all are before it."""

    def kept(self) -> "Records | None":
        """Returns the records without those of QoS 0, or None if there are no others."""


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
    records: Records


class StreamAck(NamedTuple):
    """Positions of a stream: everything up to `memory` is in rings of workers, everything up to `disk` on their disks."""

    stream: int
    memory: int
    disk: int


class DataAck(NamedTuple):
    """Positions that moved since the last acknowledgement."""

    positions: tuple[StreamAck, ...]


# --- retained messages -------------------------------------------------------------------------------------------------


class RetainedRows(NamedTuple):
    """The newest changes of topics. Batches are numbered from 1 over the whole connection."""

    number: int
    rows: tuple[bytes, ...]


class RetainedAck(NamedTuple):
    """Batches up to this one are stored."""

    number: int


class RetainedBegin(NamedTuple):
    """A comparison begins; `round` is the sender's number of it."""

    round: int
    sums: bytes                    # 8 bytes for each of 4096 buckets


class RetainedRange(NamedTuple):
    """What a node has of the topics with digests in a range."""

    first: bytes
    last: bytes
    entries: bytes                 # digest 16 bytes, id 16 bytes, state u8 for each, in the order of digests


class RetainedSummary(NamedTuple):
    """Ranges that differ, in their order."""

    round: int
    number: int
    ranges: tuple[RetainedRange, ...]


class RetainedWant(NamedTuple):
    """Answer to a summary: topics that are to be sent. What its sender has newer precedes it."""

    round: int
    number: int
    digests: bytes


class RetainedEnd(NamedTuple):
    """Everything that a comparison has found was sent."""

    round: int


class TableNumber(IntEnum):
    """Tables that are on all nodes. Numbers are part of the protocol and never change."""

    RETAINED = 0
    USERS = 1
    RULES = 2
    ACCOUNTS = 3


RetainedMessages = RetainedRows | RetainedAck | RetainedBegin | RetainedSummary | RetainedWant | RetainedEnd


class OfTable(NamedTuple):
    """One of these messages about another table than that of retained messages."""

    table: TableNumber
    message: RetainedMessages


# --- sessions ----------------------------------------------------------------------------------------------------------


class Key(NamedTuple):
    """A client id or an exclusive filter as the registry knows it."""

    partition: int                 # crc32 % PARTITIONS
    hash: int                      # keyed 64-bit hash


class Held(NamedTuple):
    """A session that a node holds."""

    key: Key
    generation: int                # stamp of the grant by which the node holds it
    stamp: int                     # of the last connect
    is_connected: bool
    is_moving: bool = False        # being given to another node, or created at this moment


class Queued(NamedTuple):
    """A message of a session's queue. Ids of messages begin with a stamp, so their order is that of publishing."""

    id: int
    topic: bytes
    qos: int
    body: bytes = b""


class Claim(NamedTuple):
    """Asks the registrar for the right to a session. `is_provisional`: whatever the member sets are."""

    number: int
    key: Key
    digest: bytes                  # of the claimant's member set
    is_provisional: bool


class Wait(NamedTuple):
    """The claim is in the queue of its key."""

    number: int
    key: Key


class Retry(NamedTuple):
    """The claim is void, since the member sets differ or another node is the registrar."""

    number: int
    key: Key


class Refuse(NamedTuple):
    """The claim has waited too long, or too many wait."""

    number: int
    key: Key


class Grant(NamedTuple):
    """The claimant may take the session from its holder, or create it."""

    number: int
    key: Key
    generation: int
    holder: int                    # node id; 0: none
    is_provisional: bool


class Done(NamedTuple):
    """A granted claim has ended; with `held` the claimant now holds the session. `was_taken`: the holder has given it up."""

    key: Key
    generation: int
    held: Held | None
    was_taken: bool


class Announce(NamedTuple):
    """A session that the sender holds without a grant of this registrar."""

    held: Held


class Release(NamedTuple):
    """A session has ended."""

    key: Key
    generation: int


class Revoke(NamedTuple):
    """Another node holds the session: the receiver's one is stale, and is merged."""

    key: Key
    generation: int                # of the session that is revoked
    winner: int


class Rebuild(NamedTuple):
    """Asks for the sessions of partitions."""

    number: int
    digest: bytes
    partitions: bytes              # bitmap


class Sessions(NamedTuple):
    """Part of the answer to Rebuild, numbered from 1. Each worker of a node answers for partitions of its own."""

    number: int
    part: int
    partitions: bytes              # bitmap of those that are answered by these parts
    held: tuple[Held, ...]
    is_last: bool


class Moved(NamedTuple):
    """The receiver has become the registrar of partitions in the sender's view, so what it knows of the sender is out of date."""

    partitions: bytes              # bitmap
    number: int = 0                # claims of the sender up to this number are those of a process that has ended


class Who(NamedTuple):
    """Asks whether a node holds a session. `ends`: generation of an import that the answer None ends; 0: no import."""

    number: int
    key: Key
    digest: bytes                  # b"": whatever the member sets are
    ends: int = 0


class Here(NamedTuple):
    """Answer to Who."""

    number: int
    key: Key
    held: Held | None
    ends: int = 0


class Find(NamedTuple):
    """Asks the registrar where a session is. `denied`: a node that does not hold it; 0: none."""

    key: Key
    denied: int = 0


class Found(NamedTuple):
    """Answer to Find; node 0: no member holds it."""

    key: Key
    node: int


class Starting(NamedTuple):
    """Answer to Who and Take in place of a worker that is being started: ask again."""

    number: int                    # of WHO; of TAKE its generation
    key: Key


class Take(NamedTuple):
    """Takes a session from its holder."""

    key: Key
    generation: int
    name: str                      # client id, also of the claimant of an exclusive subscription
    clean: bool


class Offer(NamedTuple):
    """The sender, which is evacuated, asks the receiver to claim a session of an absent client."""

    key: Key
    generation: int
    name: str                      # client id


class Decline(NamedTuple):
    """Answer to an offer that the receiver does not follow."""

    key: Key
    generation: int


class NoState(NamedTuple):
    """The session is not given: TakeFault."""

    key: Key
    generation: int
    fault: int


class State(NamedTuple):
    """Part of a session, numbered from 1."""

    key: Key
    generation: int
    number: int
    body: bytes
    is_last: bool


class StateAck(NamedTuple):
    """The whole session is in the journal of the receiver, which holds it from now on."""

    key: Key
    generation: int


class Tail(NamedTuple):
    """Messages of a session that has moved or is stale, in the order of ids, for its holder. The last part of a stale one has the
    ids that it has delivered."""

    key: Key
    number: int
    clean_stamp: int               # with which the session began clean, 0: it did not
    queued: tuple[Queued, ...]
    uid: int                       # of the sender's session
    is_stale: bool = False
    is_last: bool = False
    base: int = 0                  # `SeenIds.base` of a stale session
    delivered: tuple[int, ...] = ()


class TailAck(NamedTuple):
    """The messages are in the journal of the holder, less those that it had. `is_holder` False: to be sent elsewhere.
    `is_merged`: another session of the node has had the last part of the stale session before, so this one is merged."""

    key: Key
    number: int
    uid: int
    is_holder: bool
    is_merged: bool = False


class End(NamedTuple):
    """All peers have the routes of the new holder: the old one drops its own."""

    key: Key
    generation: int


class Ended(NamedTuple):
    """DONE of the protocol: the old holder had nothing left to send at this moment."""

    key: Key
    generation: int

SessionMessage = (
    Claim
    | Wait
    | Retry
    | Refuse
    | Grant
    | Done
    | Announce
    | Release
    | Revoke
    | Rebuild
    | Sessions
    | Moved
    | Who
    | Here
    | Find
    | Found
    | Take
    | Offer
    | Decline
    | NoState
    | State
    | StateAck
    | Tail
    | TailAck
    | End
    | Ended
    | Starting
)
"""Messages of sessions, which `Signals` passes on: `sessions.checked` bounds their fields."""

Message = (
    Hello
    | Welcome
    | Bye
    | Ping
    | Pong
    | Leaving
    | Load
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
    | SessionMessage
    | RetainedMessages
    | OfTable
)
