"""What a core asks its driver to do: values in the list that a call returns, to be carried out in that order."""

from typing import NamedTuple

from shardbroker.cluster.faults import ByeReason
from shardbroker.cluster.messages import Message

__all__ = ["Close", "Dial", "Established", "Gone", "Output", "Refused", "Send", "SubackDue"]


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


Output = Dial | Send | Close | Refused | Established | Gone | SubackDue
