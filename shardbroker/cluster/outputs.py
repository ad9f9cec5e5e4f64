"""What a core asks its driver to do: values in the list that a call returns, to be carried out in that order."""

from typing import NamedTuple

from shardbroker.cluster.faults import ByeReason
from shardbroker.cluster.messages import Key, Message, RetainedMessages, SessionMessage, TableNumber, Tail

__all__ = [
    "Absorb",
    "Accepted",
    "Arrived",
    "Close",
    "Create",
    "Dial",
    "EndSession",
    "Established",
    "Export",
    "Flow",
    "Forget",
    "Gone",
    "Import",
    "Kick",
    "Merge",
    "MovedAway",
    "Output",
    "Refused",
    "Rejected",
    "Restore",
    "RetainedArrived",
    "Send",
    "SessionOutput",
    "SubackDue",
    "Taken",
    "ToNode",
]


class Dial(NamedTuple):
    """Open a connection to an address; the result is reported by `opened` or `failed`."""

    address: str
    channel: int


class Send(NamedTuple):
    """Send a message on a connection."""

    connection: int
    message: Message


class Close(NamedTuple):
    """Send BYE with a reason, if the connection still takes it, and close the connection. `closed` is not called for it."""

    connection: int
    reason: ByeReason
    text: str


class Refused(NamedTuple):
    """The peer at an address has ended the connection with a reason: for the log and an alarm."""

    address: str
    reason: int
    text: str


class Established(NamedTuple):
    """A peer has proved who it is. `is_new`: nothing that is known of this node id holds any more."""

    node_id: int
    incarnation: int
    address: str
    is_new: bool


class Gone(NamedTuple):
    """A node has left, or is no member any more: its routes, its spool and its positions are dropped."""

    node_id: int


class SubackDue(NamedTuple):
    """A SUBACK is to be sent. `is_late`: the limit was reached before all peers had the routes."""

    ticket: int
    is_late: bool


class Arrived(NamedTuple):
    """A message of sessions has arrived from a node."""

    node_id: int
    message: SessionMessage


class RetainedArrived(NamedTuple):
    """A message about a table that is on all nodes has arrived on a connection."""

    connection: int
    message: RetainedMessages
    table: TableNumber = TableNumber.RETAINED


Output = Dial | Send | Close | Refused | Established | Gone | SubackDue | Arrived | RetainedArrived


# --- sessions; `uid` is the driver's number of a session, never used twice ------------------------------------------------


class ToNode(NamedTuple):
    """Send a message of sessions to a node; to this node itself by `received`. Without a link it is dropped."""

    node_id: int
    message: SessionMessage


class Accepted(NamedTuple):
    """A client is served. `present`: its session existed."""

    ticket: int
    uid: int
    present: bool


class Rejected(NamedTuple):
    """A client is not served: CONNACK with a reason code."""

    ticket: int
    reason: int


class Create(NamedTuple):
    """Create a session in the journal, then call `created`."""

    key: Key
    name: str
    generation: int
    base: int                      # stamp: of `SeenIds`; 0: there is no other session of the key
    clean: bool


class Export(NamedTuple):
    """Disconnect the client (0x8E), and call `exported` with the parts of the session. Messages delivered from now on are late."""

    uid: int
    generation: int


class Import(NamedTuple):
    """Put a session into the journal as one block, then call `imported`."""

    key: Key
    name: str
    generation: int
    parts: tuple[bytes, ...]


class MovedAway(NamedTuple):
    """Note in the journal that a session is at another node, and remove from its queue what was exported. What arrives for it
    later is queued; then, and after each change of the queue, call `arrived`."""

    uid: int


class Restore(NamedTuple):
    """The session is served here again."""

    uid: int


class Kick(NamedTuple):
    """Disconnect the client of a session (0x8E), and note in the journal that it is stale: after a restart its client must not
    find it before it is merged."""

    uid: int


class Bind(NamedTuple):
    """Note in the journal, before anything that follows is sent, that a node may merge a stale session from now on: `heir` of its
    holding after a restart."""

    uid: int
    node_id: int


class EndSession(NamedTuple):
    """Disconnect the client (0x8E) and end the session: another node has begun a new one for its client, with clean start. Of an
    exclusive subscription: another node has it."""

    uid: int


class Merge(NamedTuple):
    """Append to a session what is new of the messages, in one journal block, then call `merged`."""

    uid: int
    node_id: int
    tail: Tail


class Taken(NamedTuple):
    """The holder has these messages: remove them from the queue of a session that has moved."""

    uid: int
    ids: tuple[int, ...]


class Flow(NamedTuple):
    """Direct deliveries of an imported session need not be held any more."""

    uid: int


class Forget(NamedTuple):
    """Remove what was kept of a session that has moved, its routes included."""

    uid: int


class Absorb(NamedTuple):
    """Remove what was kept of a session that has moved, as Forget does: a later one of its client has moved from here too, and
    takes from now on what it would have taken."""

    uid: int
    later: int


SessionOutput = (
    ToNode
    | Accepted
    | Rejected
    | Create
    | Export
    | Import
    | MovedAway
    | Restore
    | Kick
    | Bind
    | EndSession
    | Merge
    | Taken
    | Flow
    | Forget
    | Absorb
)
