"""The way of a session from its holder to the node of its client: TAKE, STATE, STATE_ACK, TAIL, END, DONE.

    A, node of the client                    B, holder
    TAKE(generation)        ->               client disconnected, session MOVING
                            <-  STATE...     parts of the session
    one journal block
    STATE_ACK               ->               journal: MOVED; the session is GONE
    routes                  <-  TAIL...      what publishers without the routes of A still send to B
    END                     ->               all peers that are up have the routes of A
                            <-  DONE         direct deliveries at A need not be held any more

B has MOVED only after A's block is in its journal, so a death at any moment leaves the session at B or at both, and what is at both
is merged.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import State

__all__ = ["PART_BYTES_MAX", "STATE_BYTES_MAX", "Parts", "TakeFault"]

PART_BYTES_MAX = 1 << 20
"""Bytes of one STATE."""
STATE_BYTES_MAX = 64 << 20
"""Bytes of a session that moves: a larger one stays, and its client gets a new one that is merged."""


class TakeFault(IntEnum):
    """Reason in NoState. Numbers are part of the protocol and never change."""

    ABSENT = 1                     # the node does not hold the session
    STALE = 2                      # a later grant has been carried out
    BUSY = 3                       # the session is on its way to another node
    TOO_LARGE = 4
    HELD = 5                       # an exclusive subscription of another client


@dataclass
class Parts:
    """The parts of a session that is being imported."""

    bodies: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, state: State) -> bool:
        """Takes a part; returns False if one is missing before it. Raises PeerFault if the session is too large."""
        if state.number != len(self.bodies) + 1:
            return False
        self.size += len(state.body)
        if self.size > STATE_BYTES_MAX:
            raise PeerFault(ByeReason.LIMIT, f"STATE: must have at most {STATE_BYTES_MAX} bytes, got {self.size}")
        self.bodies.append(state.body)
        return True
