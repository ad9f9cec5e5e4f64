"""The messages between workers and the process integrations: CBOR, one message each, over a SOCK_SEQPACKET pair per worker.

    request    [id, kind, deadline, client, details]     LOGIN: chain, method, data          ACL: [action, topic, qos, retain], ...
                                                         AUTH: exchange, data                FORGET: exchange
                                                         HOOKS, HOOK_LOGIN: nothing          HOOK_ACL: as ACL
                                                         SUBSCRIPTIONS: nothing
                                                         HOOK_PUBLISH: topic, payload, qos, retain, properties, client id,
                                                                       message id, Unix ms
    result     [id, status, details]                     OK: superuser, acl, expires at, data, user name, subscriptions
                                                         DENY: reason code, text             DECIDED: [true | false | null, ...]
                                                         CONTINUE: data                      FAILED: text
                                                         IGNORE: nothing
                                                         WANTED: [points, refuses, timeout], ...

Ids belong to one worker and are never reused, not even after a restart. `deadline` is CLOCK_MONOTONIC in seconds. A request that is
read later, by a process that was started again, is dropped: it has timed out.

`subscriptions` is [[topic filter, QoS], ...] of `auto_subscribe.sources`, null where none were found out; it is all that OK has
for SUBSCRIPTIONS, which is sent where no chain decides about the login.

Kinds that begin with HOOK are for programs behind hooks (hooks/exhook.py). OK lets a client connect. DECIDED ends with whether one
of the programs has not answered. For HOOK_PUBLISH, OK has topic, payload and QoS if they were changed, and DENY drops the message.
HOOKS requests the requirements of the programs. WANTED carries them, at once and after each change, under the id `UNSOLICITED`.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import cbor2

from shardbroker.access.contract import AuthRequest, Client

__all__ = [
    "MESSAGE_MAX",
    "UNSOLICITED",
    "AuthResult",
    "Kind",
    "Request",
    "Status",
    "WireError",
    "decode_request",
    "decode_result",
    "encode_request",
    "encode_result",
    "request_of",
]

MESSAGE_MAX = 4 << 20
"""Size limit of a message that is read, bytes: the size of a channel, which the system may limit further."""
UNSOLICITED = 0
"""Id of a result without a request."""


class WireError(ValueError):
    """Bytes that are not a valid message."""


class Kind(IntEnum):
    """The kinds of requests."""

    LOGIN = 1
    AUTH = 2
    ACL = 3
    FORGET = 4
    HOOKS = 5
    HOOK_LOGIN = 6
    HOOK_ACL = 7
    HOOK_PUBLISH = 8
    SUBSCRIPTIONS = 9


class Status(IntEnum):
    """The kinds of results."""

    OK = 0
    DENY = 1
    CONTINUE = 2
    DECIDED = 3
    FAILED = 4
    IGNORE = 5
    WANTED = 6


class Request(NamedTuple):
    """A request as integrations receives it."""

    id: int
    kind: Kind
    deadline: float
    client: Client
    details: list[Any]


class AuthResult(NamedTuple):
    """A result as a worker receives it."""

    id: int
    status: Status
    details: list[Any]


def encode_request(number: int, kind: Kind, deadline: float, client: Client, details: Sequence[Any]) -> bytes:
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


def decode_request(data: bytes) -> Request:
    """Decodes a request. Raises WireError."""
    try:
        number, kind, deadline, fields, details = cbor2.loads(data)
        return Request(number, Kind(kind), deadline, Client(*fields), details)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise WireError(str(error)) from None


def encode_result(number: int, status: Status, *details: Any) -> bytes:
    return cbor2.dumps([number, int(status), list(details)])


def decode_result(data: bytes) -> AuthResult:
    """Decodes a result. Raises WireError."""
    try:
        number, status, details = cbor2.loads(data)
        return AuthResult(number, Status(status), details)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise WireError(str(error)) from None


def request_of(fields: Sequence[Any]) -> AuthRequest:
    """Returns the request in a list of details. Raises WireError."""
    try:
        return AuthRequest(*fields)
    except TypeError as error:
        raise WireError(str(error)) from None
