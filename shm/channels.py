"""Pairs of connected descriptors between processes, a row for each channel: sending role, receiving role, socket, format.

A channel has a pair for each process of the sender and each of the receiver. The supervisor makes all pairs before the first fork
and keeps both ends open, so that messages to a process that has died remain for its successor. Publications of workers use rings
instead (ring.pxd).
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cbor2

__all__ = ["CHANNELS", "SUPERVISOR", "Channel", "Pairs", "dump_plain"]

SUPERVISOR = "supervisor"
"""The parent of all processes, which has no row among the roles."""


@dataclass(frozen=True)
class Channel:
    """A kind of descriptor pair. Sockets are non-blocking and preserve message boundaries."""

    name: str
    sender: str
    """A role (roles.py) or SUPERVISOR."""
    receiver: str
    """Likewise. The receiver may answer over the same pair."""
    format: str
    """The module that encodes and decodes the messages."""
    kind: int = socket.SOCK_SEQPACKET
    shared: bool = False
    """All processes of the sender share one pair."""


CHANNELS = (
    Channel("handover", "acceptor", "worker", "acceptor.handover"),  # a packed header, with the socket of a client
    Channel("control", SUPERVISOR, "acceptor", "acceptor.control"),  # CBOR, with a listening socket; answered
    Channel("successions", SUPERVISOR, "worker", "shardbroker.worker.handoff.protocol"),  # a mark, with the pair to a successor
    Channel("requests", "manager", SUPERVISOR, "shm.requests"),  # CBOR; answered
    Channel("notices", "acceptor", "manager", "acceptor.notices", socket.SOCK_DGRAM, shared=True),  # CBOR
    Channel("access", "worker", "integrations", "shardbroker.access.wire"),  # CBOR; answered
    Channel("events", "worker", "integrations", "shardbroker.hooks.exhook"),  # CBOR
    Channel("subacks", "worker", "link", "shardbroker.link.subacks"),  # 16 bytes, to link-0 only; answered
    Channel("sessions", "worker", "link", "shardbroker.link.session_channel"),  # packets of up to 64 KB, to link-0 only; answered
    Channel("sockets", "link", "link", "shardbroker.link.sockets"),  # a mark, with the socket of a peer; from link-0 only
    Channel("calls", "link", "manager", "shardbroker.link.sockets"),  # the same for verbs of another node and joins; from link-0
    Channel("flows", "manager", "flows", "shardbroker.flows.wire"),  # CBOR; answered
    Channel("core", "manager", "cluster", "shardbroker.cluster.core"),  # CBOR; answered
    Channel("replays", "worker", "flows", "shm.replays"),  # CBOR; answered
)

Pairs = Mapping[str, tuple[tuple[tuple[int, int], ...], ...]]
"""For each channel, by number of the sender and number of the receiver: (sender's end, receiver's end)."""


def dump_plain(values: Any) -> bytes:
    """Returns values as CBOR. Secrets are written out; values without a CBOR type are written as text."""
    return cbor2.dumps(values, default=_encode)


def _encode(encoder: Any, value: Any) -> None:
    encoder.encode(value.get_secret_value() if hasattr(value, "get_secret_value") else str(value))
