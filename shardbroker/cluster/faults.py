"""Reasons for which a connection between nodes ends, and the exception that carries one."""

from enum import IntEnum

__all__ = ["ByeReason", "PeerFault"]


class ByeReason(IntEnum):
    """Reason in a BYE frame. Numbers are part of the protocol and never change."""

    WRONG_CLUSTER = 1
    NO_COMMON_PROTOCOL = 2
    NOT_A_MEMBER = 3
    DUPLICATE_ID = 4
    SELF = 5                       # the node has reached itself, through a seed that is its own address
    NOT_AUTHENTICATED = 6
    PROTOCOL_ERROR = 7             # a frame that this state does not allow, or a field out of range
    LIMIT = 8                      # a size or count above a limit
    TIMEOUT = 9
    REPLACED = 10                  # by a newer connection of the same node
    LEAVING = 11
    STALLED = 12
    UNKNOWN_PEER = 13              # data channel of a node without a signal link: to be dialled again


class PeerFault(Exception):
    """A peer has sent something that ends its connection. The text names the field, the limit and the value."""

    def __init__(self, reason: ByeReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
