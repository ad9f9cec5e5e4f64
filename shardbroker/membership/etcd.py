"""Client of etcd: keys, transactions, leases and watches, over all endpoints of a cluster.

One endpoint is in use until it fails; a call is then tried at the next one, each of them once. An attempt has a deadline, so a
call ends within `timeout_s` for each endpoint. An endpoint without a leader counts as failed.

A write may have been carried out although its attempt failed: every write through this client has to be one that can be repeated.
A watch that is silent is asked for a sign of life, so that a connection that stands still ends it within `SILENCE_S`.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
import grpc.aio

from shardbroker.membership.messages import message, method

__all__ = [
    "SILENCE_S", "Compacted", "Etcd", "EtcdDenied", "EtcdError", "EtcdUnavailable", "Event", "Found", "KeyValue", "LeaseGone",
    "Member", "Op", "Server", "Txn", "absent", "delete_op", "end_of_prefix", "get_op", "put_op", "unchanged", "value_is",
]  # fmt: skip

TIMEOUT_S = 2.0
"""Deadline of one attempt."""
PROBE_S, SILENCE_S = 5.0, 10.0
"""A watch without a message for so long is asked for one; and without any for so long it has failed."""
MESSAGE_MAX = 4 << 20
"""Bytes of an answer: etcd's own limit of a request is 1.5 MiB, a cluster has some KB."""
UNKNOWN = "no endpoint is known"
TEXT_MAX = 200
"""Characters of an error of etcd that are shown."""
OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),  # connections of one client end with it
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # which is also the time that a connection has to be opened
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", MESSAGE_MAX),
]
FAILED = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL,
          grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED}  # fmt: skip
"""Codes after which another endpoint may succeed."""
DENIED = "authentication", "user name is empty"
"""In the text of a refused login, whose code is that of any invalid argument."""
ALARM = re.compile(r"\balarm:([A-Z]+)")
"""In an error of etcd's state: memberID:... alarm:NOSPACE."""
LEADER = ("hasleader", "true")
"""Metadata with which an endpoint that has lost its leader refuses, instead of waiting for one."""


class EtcdError(Exception):
    """A call failed; the text is for the log and names no secret."""


class EtcdUnavailable(EtcdError):
    """No endpoint has answered; the text has the reason of each."""


class EtcdDenied(EtcdError):
    """etcd refuses the user, its password, or the key."""


class LeaseGone(EtcdError):
    """The lease has expired, or etcd has lost it."""


class Compacted(EtcdError):
    """The revision from which a watch was to begin is no longer there: the keys have to be read again."""


class KeyValue(NamedTuple):
    """A key at one revision."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


class Event(NamedTuple):
    """A change of a key: its new state, or for a deletion the key and the revision at which it was deleted."""

    is_delete: bool
    kv: KeyValue


class Found(NamedTuple):
    """The keys of a range, in their order, and the revision at which they were read. `total`: keys of the whole range."""

    kvs: tuple[KeyValue, ...]
    revision: int
    total: int = 0


class Txn(NamedTuple):
    """The outcome of a transaction. `found`: the keys of each of its reads, in their order."""

    succeeded: bool
    revision: int
    found: tuple[tuple[KeyValue, ...], ...]


class Server(NamedTuple):
    """What an endpoint says of itself."""

    version: str
    member: int
    leader: int
    database_bytes: int
    is_learner: bool
    alarms: tuple[str, ...]
    """Such as NOSPACE, its database is full, and CORRUPT."""


class Member(NamedTuple):
    """A member of etcd. `name` is empty until it has started."""

    id: int
    name: str
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    is_learner: bool


Op = Any
"""An operation or a condition of a transaction."""

_Compare, _Op, _Watch = message("Compare"), message("RequestOp"), message("WatchRequest")
_Create, _Progress = message("WatchCreateRequest"), message("WatchProgressRequest")


def end_of_prefix(prefix: bytes) -> bytes:
    """Returns the end of the range of all keys that begin with a prefix, which is not empty and does not end with 0xFF."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def absent(key: bytes) -> Op:
    """Returns the condition that there is no such key."""
    return unchanged(key, 0)


def unchanged(key: bytes, mod_revision: int) -> Op:
    """Returns the condition that a key was last changed at a revision."""
    return _Compare(result=_Compare.EQUAL, target=_Compare.MOD, key=key, mod_revision=mod_revision)


def value_is(key: bytes, value: bytes) -> Op:
    """Returns the condition that a key has a value."""
    return _Compare(result=_Compare.EQUAL, target=_Compare.VALUE, key=key, value=value)


def put_op(key: bytes, value: bytes, lease: int = 0) -> Op:
    """Returns the operation that sets a key."""
    return _Op(request_put=message("PutRequest")(key=key, value=value, lease=lease))


def get_op(key: bytes, end: bytes = b"") -> Op:
    """Returns the operation that reads a key, or those up to `end`."""
    return _Op(request_range=message("RangeRequest")(key=key, range_end=end))


def delete_op(key: bytes) -> Op:
    """Returns the operation that deletes a key."""
    return _Op(request_delete_range=message("DeleteRangeRequest")(key=key))


def _taken(kv: Any) -> KeyValue:
    return KeyValue(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.lease)


class _Endpoint:
    """The connection to one endpoint, which gRPC opens when it is used, and opens again."""

    def __init__(self, url: str, credentials: Any) -> None:
        self.url = url
        self.token = ""
        target = urlsplit(url).netloc
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(target, options=OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(target, credentials, options=OPTIONS)

    async def call(self, service: str, rpc: str, timeout_s: float, /, **fields: Any) -> Any:
        path, request, response = method(service, rpc)
        made = self.channel.unary_unary(path, request.SerializeToString, response.FromString)
        return await made(request(**fields), timeout=timeout_s, metadata=self.metadata())

    def stream(self, service: str, name: str) -> Any:
        """Returns an open stream in both directions."""
        path, request, response = method(service, name)
        return self.channel.stream_stream(path, request.SerializeToString, response.FromString)(metadata=self.metadata())

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (LEADER, ("token", self.token)) if self.token else (LEADER,)


class Etcd:
    """A client for these endpoints, http://HOST:PORT or https://HOST:PORT. Raises EtcdError for files that cannot be read."""

    def __init__(
        self,
        endpoints: Sequence[str],
        username: str = "",
        password: str = "",
        cacertfile: str = "",
        certfile: str = "",
        keyfile: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        is_secure = any(url.startswith("https://") for url in endpoints) or bool(cacertfile or certfile)
        self._credentials = _credentials(cacertfile, keyfile, certfile) if is_secure else None
        self._endpoints = [self._made(url) for url in endpoints]
        self._username, self._password = username, password
        self._timeout_s = timeout_s
        self._used = 0

    @property
    def endpoint(self) -> str:
        """Returns the endpoint in use; empty: none is known."""
        return self._endpoints[self._used].url if self._endpoints else ""

    @property
    def endpoints(self) -> list[str]:
        """Returns all endpoints."""
        return [one.url for one in self._endpoints]

    def _made(self, url: str) -> _Endpoint:
        return _Endpoint(url, self._credentials if url.startswith("https://") else None)

    async def use(self, urls: Sequence[str]) -> None:
        """Has these endpoints from now on, at least one. Calls at others fail."""
        before = {one.url: one for one in self._endpoints}
        used = self.endpoint
        self._endpoints = [before.get(url) or self._made(url) for url in urls]
        self._used = urls.index(used) if used in urls else 0
        for url, one in before.items():
            if url not in urls:
                await one.channel.close()

    async def close(self) -> None:
        """Ends all connections."""
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    # --- keys ----------------------------------------------------------------------------------------------------------

    async def range(self, key: bytes, end: bytes = b"", limit: int = 0, revision: int = 0) -> Found:
        """Returns a key, or those from `key` up to `end`, as the majority of etcd's members has them: at most `limit`, as they were
        at a `revision`; 0: all, as they are. Raises Compacted."""
        answer = await self._call("KV", "Range", key=key, range_end=end, limit=limit, revision=revision)
        return Found(tuple(map(_taken, answer.kvs)), answer.header.revision, answer.count)

    async def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """Sets a key, and returns the revision. Raises LeaseGone."""
        answer = await self._call("KV", "Put", key=key, value=value, lease=lease)
        return int(answer.header.revision)

    async def delete(self, key: bytes, end: bytes = b"") -> int:
        """Deletes a key, or those up to `end`, and returns how many there were."""
        answer = await self._call("KV", "DeleteRange", key=key, range_end=end)
        return int(answer.deleted)

    async def txn(self, conditions: Sequence[Op], success: Sequence[Op], failure: Sequence[Op] = ()) -> Txn:
        """Carries out `success` if all conditions hold, or else `failure`. An attempt that is repeated may find its own effect."""
        answer = await self._call("KV", "Txn", compare=conditions, success=success, failure=failure)
        reads = (one.response_range.kvs for one in answer.responses if one.WhichOneof("response") == "response_range")
        return Txn(answer.succeeded, answer.header.revision, tuple(tuple(map(_taken, kvs)) for kvs in reads))

    # --- leases --------------------------------------------------------------------------------------------------------

    async def grant(self, ttl_s: int) -> int:
        """Returns a new lease."""
        answer = await self._call("Lease", "LeaseGrant", TTL=ttl_s)
        return int(answer.ID)

    async def keep_alive(self, lease: int) -> int:
        """Renews a lease, and returns how long it lasts from now on, seconds. Raises LeaseGone."""

        async def renew(endpoint: _Endpoint) -> int:
            stream = endpoint.stream("Lease", "LeaseKeepAlive")
            try:
                async with asyncio.timeout(self._timeout_s):
                    await stream.write(message("LeaseKeepAliveRequest")(ID=lease))
                    answer = await stream.read()
            finally:
                stream.cancel()
            if answer is grpc.aio.EOF:
                raise TimeoutError("the stream has ended")
            return int(answer.TTL)

        ttl_s = int(await self._anywhere(renew))
        if ttl_s <= 0:
            raise LeaseGone("lease not found: it has expired, or etcd has lost it")
        return ttl_s

    async def revoke(self, lease: int) -> None:
        """Ends a lease, and with it the keys that have it. A lease that is gone is no error."""
        with suppress(LeaseGone):
            await self._call("Lease", "LeaseRevoke", ID=lease)

    # --- watches -------------------------------------------------------------------------------------------------------

    async def watch(self, key: bytes, end: bytes, revision: int) -> AsyncIterator[list[Event]]:
        """Yields the changes of a range from a revision on, those of one revision together; without changes it is a sign of life.

        Ends with an error: Compacted, or another one after which the watch can begin again behind the last revision. The next
        endpoint is in use then.
        """
        if not self._endpoints:
            raise EtcdUnavailable(UNKNOWN)
        endpoint = self._endpoints[self._used]
        try:
            await self._authenticate(endpoint)
            stream = endpoint.stream("Watch", "Watch")
            try:
                create = _Create(key=key, range_end=end, start_revision=revision, progress_notify=True)
                async with asyncio.timeout(self._timeout_s):
                    await stream.write(_Watch(create_request=create))
                async for answer in self._answers(stream):
                    yield [Event(event.type == event.DELETE, _taken(event.kv)) for event in answer.events]
            finally:
                stream.cancel()
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            self._switch(endpoint)
            if isinstance(error, grpc.aio.AioRpcError) and (found := _refused(error, self._username)) is not None:
                endpoint.token = ""
                raise found from None
            raise EtcdUnavailable(f"{endpoint.url}: watch: {_described(error)}") from None

    async def _answers(self, stream: Any) -> AsyncIterator[Any]:
        """Yields the messages of a watch. Raises Compacted, TimeoutError, AioRpcError."""
        silent_s, reading = 0.0, asyncio.ensure_future(stream.read())
        try:
            while True:
                done, _ = await asyncio.wait([reading], timeout=PROBE_S)
                if not done:
                    silent_s += PROBE_S
                    if silent_s >= SILENCE_S:
                        raise TimeoutError(f"silent for {silent_s:g} s")
                    async with asyncio.timeout(self._timeout_s):
                        await stream.write(_Watch(progress_request=_Progress()))
                    continue
                answer = reading.result()
                silent_s, reading = 0.0, asyncio.ensure_future(stream.read())
                if answer is grpc.aio.EOF:
                    raise TimeoutError("the stream has ended")
                if answer.compact_revision:
                    raise Compacted(f"revisions up to {answer.compact_revision} are no longer there")
                if answer.canceled:
                    raise TimeoutError(answer.cancel_reason[:TEXT_MAX] or "cancelled by etcd")
                yield answer
        finally:
            reading.cancel()

    # --- servers -------------------------------------------------------------------------------------------------------

    async def status(self) -> Server:
        """Returns the state of the endpoint in use."""
        return _server(await self._call("Maintenance", "Status"))

    async def status_of(self, url: str) -> Server:
        """Returns the state of one endpoint. Raises EtcdUnavailable."""
        return _server(await self._at(url, "Maintenance", "Status"))

    async def _at(self, url: str, service: str, rpc: str) -> Any:
        """Calls one endpoint. Raises EtcdUnavailable."""
        endpoint = next((one for one in self._endpoints if one.url == url), None) or self._made(url)
        try:
            await self._authenticate(endpoint)
            return await endpoint.call(service, rpc, self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise EtcdUnavailable(f"{url}: {_described(error)}") from None
        finally:
            if endpoint not in self._endpoints:
                await endpoint.channel.close()

    async def members(self, url: str = "") -> list[Member]:
        """Returns the members of etcd, as one of its endpoints or the one in use knows them."""
        if not url:
            return [_member(one) for one in (await self._call("Cluster", "MemberList")).members]
        return [_member(one) for one in (await self._at(url, "Cluster", "MemberList")).members]

    async def add_learner(self, peer_url: str) -> Member:
        """Adds a member that has no vote until it is promoted."""
        answer = await self._call("Cluster", "MemberAdd", peerURLs=[peer_url], isLearner=True)
        return _member(answer.member)

    async def promote(self, member: int) -> None:
        """Gives a learner its vote. Raises EtcdError as long as it does not have all keys."""
        await self._call("Cluster", "MemberPromote", ID=member)

    async def remove_member(self, member: int) -> None:
        """Removes a member of etcd."""
        await self._call("Cluster", "MemberRemove", ID=member)

    async def _call(self, service: str, rpc: str, /, **fields: Any) -> Any:
        return await self._anywhere(lambda endpoint: endpoint.call(service, rpc, self._timeout_s, **fields))

    async def _anywhere(self, attempt: Callable[[_Endpoint], Awaitable[Any]]) -> Any:
        """Tries a call at the endpoint in use, then at the others. Raises EtcdUnavailable, or what etcd refuses."""
        problems = []
        for _ in self._endpoints:
            endpoint = self._endpoints[self._used]  # `use` never leaves none
            for is_last in (False, True):
                try:
                    await self._authenticate(endpoint)
                    return await attempt(endpoint)
                except (grpc.aio.AioRpcError, TimeoutError) as error:
                    if isinstance(error, grpc.aio.AioRpcError) and _is_expired(error) and endpoint.token and not is_last:
                        endpoint.token = ""  # a token lasts for 5 minutes, or until the endpoint is started again
                        continue
                    if isinstance(error, grpc.aio.AioRpcError) and (found := _refused(error, self._username)) is not None:
                        raise found from None
                    problems.append(f"{endpoint.url}: {_described(error)}")
                    break
            self._switch(endpoint)
        raise EtcdUnavailable("; ".join(problems) or UNKNOWN)

    def _switch(self, failed: _Endpoint) -> None:
        """Uses the next endpoint, unless another call has switched already."""
        if self._endpoints[self._used] is failed:
            self._used = (self._used + 1) % len(self._endpoints)

    async def _authenticate(self, endpoint: _Endpoint) -> None:
        if not self._username or endpoint.token:
            return
        answer = await endpoint.call("Auth", "Authenticate", self._timeout_s, name=self._username, password=self._password)
        endpoint.token = answer.token


def _server(answer: Any) -> Server:
    alarms = {found[1] for text in answer.errors if (found := ALARM.search(text))}
    header = answer.header
    return Server(answer.version, header.member_id, answer.leader, answer.dbSize, answer.isLearner, tuple(sorted(alarms)))


def _member(one: Any) -> Member:
    return Member(one.ID, one.name, tuple(one.peerURLs), tuple(one.clientURLs), one.isLearner)


def _credentials(cacertfile: str, keyfile: str, certfile: str) -> Any:
    try:
        root, key, certificate = [Path(name).read_bytes() if name else None for name in (cacertfile, keyfile, certfile)]
    except OSError as error:
        raise EtcdError(f"{error.filename}: {error.strerror}") from None
    return grpc.ssl_channel_credentials(root, key, certificate)


def _is_expired(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.UNAUTHENTICATED or "invalid auth token" in (error.details() or "")


def _refused(error: grpc.aio.AioRpcError, username: str) -> EtcdError | None:
    """Returns the error of a call that another endpoint would refuse too; None: the endpoint has failed."""
    text = (error.details() or "").strip()[:TEXT_MAX]
    if "requested lease not found" in text:
        return LeaseGone(text)
    if "required revision has been compacted" in text:
        return Compacted(text)
    if _is_expired(error) or error.code() is grpc.StatusCode.PERMISSION_DENIED or any(word in text for word in DENIED):
        return EtcdDenied(f"user {username!r}: {text}")
    return None if error.code() in FAILED else EtcdError(f"{error.code().name.lower()}: {text}")


def _described(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return "no answer in time"
        return f"{error.code().name.lower()}: {(error.details() or '').strip()[:TEXT_MAX]}"
    return str(error) or "no answer in time"
