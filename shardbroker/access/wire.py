"""What travels between workers and the process integrations: CBOR, one message each, over a SOCK_SEQPACKET pair for each worker.

    question   [id, kind, deadline, client, details]     LOGIN: chain, method, data          ACL: [action, topic, qos, retain], ...
                                                         AUTH: conversation, data            FORGET: conversation
    verdict    [id, status, details]                     OK: superuser, acl, expires at, data, user name
                                                         DENY: reason code, text             DECIDED: [true | false | null, ...]
                                                         CONTINUE: data                      FAILED: text

Ids are a worker's own and never used twice, its successors included. `deadline` is CLOCK_MONOTONIC in seconds: what is read later,
by a process that was started again, is thrown away, as nobody waits for it.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import cbor2

from shardbroker.access.contract import Client, Question

__all__ = [
    "MESSAGE_MAX",
    "Asked",
    "Kind",
    "Status",
    "Verdict",
    "WireError",
    "decode_question",
    "decode_verdict",
    "encode_question",
    "encode_verdict",
    "question_of",
]

MESSAGE_MAX = 400_000
"""Bytes: client id, user name, password and Authentication Data may have 64 KiB each, a topic too."""


class WireError(ValueError):
    """Bytes that are no message."""


class Kind(IntEnum):
    """Of a question."""

    LOGIN = 1
    AUTH = 2
    ACL = 3
    FORGET = 4


class Status(IntEnum):
    """Of a verdict."""

    OK = 0
    DENY = 1
    CONTINUE = 2
    DECIDED = 3
    FAILED = 4


class Asked(NamedTuple):
    """A question as integrations reads it."""

    id: int
    kind: Kind
    deadline: float
    client: Client
    details: list[Any]


class Verdict(NamedTuple):
    """A verdict as a worker reads it."""

    id: int
    status: Status
    details: list[Any]


def encode_question(number: int, kind: Kind, deadline: float, client: Client, details: Sequence[Any]) -> bytes:
    fields = [
        client.client_id,
        client.username,
        client.password,
        client.peerhost,
        client.peerport,
        client.listener,
        client.version,
        client.cert_common_name,
        client.cert_subject,
    ]
    return cbor2.dumps([number, int(kind), deadline, fields, list(details)])


def decode_question(data: bytes) -> Asked:
    """Raises WireError."""
    try:
        number, kind, deadline, fields, details = cbor2.loads(data)
        return Asked(number, Kind(kind), deadline, Client(*fields), details)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise WireError(str(error)) from None


def encode_verdict(number: int, status: Status, *details: Any) -> bytes:
    return cbor2.dumps([number, int(status), list(details)])


def decode_verdict(data: bytes) -> Verdict:
    """Raises WireError."""
    try:
        number, status, details = cbor2.loads(data)
        return Verdict(number, Status(status), details)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise WireError(str(error)) from None


def question_of(fields: Sequence[Any]) -> Question:
    """A question from its list. Raises WireError."""
    try:
        return Question(*fields)
    except TypeError as error:
        raise WireError(str(error)) from None
