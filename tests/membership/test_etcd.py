"""The client of etcd, against etcd: keys, leases, watches, and what happens when members fail."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from shardbroker.membership import etcd as client
from shardbroker.membership.etcd import (
    Compacted,
    Etcd,
    EtcdDenied,
    EtcdUnavailable,
    Event,
    LeaseGone,
    absent,
    delete_op,
    end_of_prefix,
    get_op,
    put_op,
    unchanged,
    value_is,
)
from tests.edge.certificates import Authority
from tests.harness.broker import free_port
from tests.servers.etcd import etcd, etcd_cluster, etcdctl, url_of
from tests.servers.processes import folder
from tests.servers.service import Service

PROTO = Path(client.__file__).with_name("etcd.proto")
ELECTION_S = 10.0
"""Time within which the members that are left have another leader, on a busy machine."""


@pytest.fixture(scope="module")
def _server() -> Iterator[Service]:
    with etcd() as server:
        yield server


@pytest.fixture
def server(_server: Service) -> Iterator[Service]:
    yield _server
    etcdctl(_server, "del", "", "--from-key")


def run(work: Callable[[Etcd], Awaitable[Any]], *endpoints: str, **settings: Any) -> Any:
    async def running() -> Any:
        found = Etcd(endpoints, **settings)
        try:
            return await work(found)
        finally:
            await found.close()

    return asyncio.run(running())


@asynccontextmanager
async def watching(etcd: Etcd, key: bytes, revision: int = 0) -> AsyncIterator["asyncio.Queue[Any]"]:
    """Changes of a prefix from the revision on, and at the end the error of the watch."""
    found: asyncio.Queue[Any] = asyncio.Queue()
    created = asyncio.Event()

    async def follow() -> None:
        try:
            async for events in etcd.watch(key, end_of_prefix(key), revision):
                created.set()
                for event in events:
                    found.put_nowait(event)
        except client.EtcdError as error:
            found.put_nowait(error)
            created.set()

    task = asyncio.create_task(follow())
    await asyncio.wait_for(created.wait(), 10)
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def next_of(found: "asyncio.Queue[Any]", timeout_s: float = 10.0) -> Any:
    return await asyncio.wait_for(found.get(), timeout_s)


async def until(look: Callable[[], Awaitable[bool]], timeout_s: float = ELECTION_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not await look():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def test_the_descriptors_are_those_of_the_proto(tmp_path: Path) -> None:
    made = tmp_path / "made.binpb"
    assert protoc.main(["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={made}", str(PROTO)]) == 0
    kept = descriptor_pb2.FileDescriptorSet.FromString(PROTO.with_suffix(".binpb").read_bytes())
    assert descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()) == kept


# --- keys -----------------------------------------------------------------------------------------------------------------


def test_keys_are_set_read_in_order_and_deleted(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        first = await etcd.put(b"/a/2", b"two")
        assert await etcd.put(b"/a/1", b"\x00\xff") == first + 1
        await etcd.put(b"/b", b"beside")
        found = await etcd.range(b"/a/", end_of_prefix(b"/a/"))
        assert [(kv.key, kv.value, kv.mod_revision) for kv in found.kvs] == [
            (b"/a/1", b"\x00\xff", first + 1), (b"/a/2", b"two", first),
        ]  # fmt: skip
        assert found.revision == first + 2
        assert (await etcd.range(b"/a/3")).kvs == ()
        assert await etcd.delete(b"/a/", end_of_prefix(b"/a/")) == 2
        assert [kv.key for kv in (await etcd.range(b"/", end_of_prefix(b"/"))).kvs] == [b"/b"]

    run(work, url_of(server))
    assert etcdctl(server, "get", "/b") == "/b\nbeside\n"


def test_a_transaction_is_carried_out_if_its_conditions_hold(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        took = await etcd.txn([absent(b"/id/1")], [put_op(b"/id/1", b"one")], [get_op(b"/id/1")])
        assert took.succeeded and took.found == ()
        refused = await etcd.txn([absent(b"/id/1")], [put_op(b"/id/1", b"other")], [get_op(b"/id/1")])
        assert not refused.succeeded and [kv.value for kv in refused.found[0]] == [b"one"]
        assert (await etcd.txn([unchanged(b"/id/1", took.revision)], [put_op(b"/id/1", b"two")])).succeeded
        assert not (await etcd.txn([unchanged(b"/id/1", took.revision)], [put_op(b"/id/1", b"three")])).succeeded
        done = await etcd.txn([value_is(b"/id/1", b"two")], [delete_op(b"/id/1"), put_op(b"/id/2", b""), get_op(b"/id/2")])
        assert done.succeeded and [kv.key for kv in done.found[0]] == [b"/id/2"]
        assert (await etcd.range(b"/id/1")).kvs == ()

    run(work, url_of(server))


# --- leases ---------------------------------------------------------------------------------------------------------------


def test_a_key_lives_as_long_as_its_lease_is_renewed(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        lease = await etcd.grant(2)
        await etcd.put(b"/m", b"", lease)
        end = time.monotonic() + 3.5
        while time.monotonic() < end:
            assert await etcd.keep_alive(lease) == 2
            await asyncio.sleep(0.5)
        assert [kv.lease for kv in (await etcd.range(b"/m")).kvs] == [lease]
        async with watching(etcd, b"/m") as changes:
            event = await next_of(changes)
            assert event.is_delete and event.kv.key == b"/m" and event.kv.mod_revision
        with pytest.raises(LeaseGone):
            await etcd.keep_alive(lease)
        with pytest.raises(LeaseGone):
            await etcd.put(b"/m", b"", lease)

    run(work, url_of(server))


def test_a_revoked_lease_ends_its_keys_at_once(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        lease = await etcd.grant(60)
        await etcd.put(b"/m", b"", lease)
        await etcd.revoke(lease)
        assert (await etcd.range(b"/m")).kvs == ()
        await etcd.revoke(lease)

    run(work, url_of(server))


def test_a_key_that_another_lease_has_taken_over_outlives_the_first(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        first, second = await etcd.grant(60), await etcd.grant(60)
        await etcd.put(b"/m", b"1", first)
        await etcd.put(b"/m", b"2", second)
        await etcd.revoke(first)
        assert [kv.value for kv in (await etcd.range(b"/m")).kvs] == [b"2"]

    run(work, url_of(server))


# --- watches --------------------------------------------------------------------------------------------------------------


def test_a_watch_misses_nothing_between_a_read_and_its_begin(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        await etcd.put(b"/w/1", b"a")
        read = await etcd.range(b"/w/", end_of_prefix(b"/w/"))
        await etcd.put(b"/w/1", b"b")
        await etcd.delete(b"/w/1")
        await etcd.put(b"/other", b"")
        async with watching(etcd, b"/w/", read.revision + 1) as changes:
            first, second = await next_of(changes), await next_of(changes)
            assert isinstance(first, Event) and (first.is_delete, first.kv.value) == (False, b"b")
            assert (second.is_delete, second.kv.key, second.kv.mod_revision) == (True, b"/w/1", first.kv.mod_revision + 1)
            await etcd.put(b"/w/2", b"c")
            assert (await next_of(changes)).kv.value == b"c"
            assert changes.empty()

    run(work, url_of(server))


def test_a_watch_from_a_compacted_revision_ends_with_compacted(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        first = await etcd.put(b"/c/1", b"a")
        last = await etcd.put(b"/c/1", b"b")
        etcdctl(server, "compact", str(last))
        async with watching(etcd, b"/c/", first) as changes:
            assert isinstance(await next_of(changes), Compacted)
        read = await etcd.range(b"/c/", end_of_prefix(b"/c/"))
        async with watching(etcd, b"/c/", read.revision + 1) as changes:
            await etcd.put(b"/c/2", b"c")
            assert (await next_of(changes)).kv.key == b"/c/2"

    run(work, url_of(server))


def test_a_watch_without_changes_lives_and_one_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PROBE_S", 0.3)
    monkeypatch.setattr(client, "SILENCE_S", 0.6)

    async def work(etcd: Etcd) -> None:
        async with watching(etcd, b"/w/") as changes:
            await asyncio.sleep(2)  # three times the silence: etcd answers the probes
            assert changes.empty()
            server.pause()
            try:
                assert isinstance(await next_of(changes, 5), EtcdUnavailable)
            finally:
                server.resume()

    with etcd() as server:
        run(work, url_of(server))


# --- endpoints ------------------------------------------------------------------------------------------------------------


def test_an_endpoint_that_is_not_there_is_passed_over(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        await etcd.put(b"/a", b"")
        assert etcd.endpoint == url_of(server)
        begun = time.monotonic()
        await etcd.put(b"/a", b"")
        assert time.monotonic() - begun < 1, "the endpoint that has answered is the first one from then on"

    run(work, f"http://127.0.0.1:{free_port()}", url_of(server))


def test_without_an_endpoint_the_error_has_the_reason_of_each() -> None:
    ports = free_port(), free_port()

    async def work(etcd: Etcd) -> None:
        with pytest.raises(EtcdUnavailable) as found:
            await etcd.put(b"/a", b"")
        for port in ports:
            assert f"http://127.0.0.1:{port}: unavailable" in str(found.value)
        assert "refused" in str(found.value)

    run(work, *(f"http://127.0.0.1:{port}" for port in ports))


def test_a_server_that_stands_still_is_left_within_the_deadline(server: Service) -> None:
    async def work(found: Etcd) -> None:
        await found.put(b"/a", b"1")
        still.pause()
        begun = time.monotonic()
        await found.put(b"/a", b"2")
        assert time.monotonic() - begun < 2.5 and found.endpoint == url_of(server)
        still.resume()

    with etcd() as still:
        run(work, url_of(still), url_of(server), timeout_s=1.0)


def test_members_fail_one_after_the_other() -> None:
    async def work(etcd: Etcd) -> None:
        lease = await etcd.grant(60)
        await etcd.put(b"/m", b"1", lease)
        async with watching(etcd, b"/m") as changes:
            used = next(one for one in members if url_of(one) == etcd.endpoint)
            used.kill()
            assert isinstance(await next_of(changes), EtcdUnavailable)
        left = [one for one in members if one is not used]
        await until(lambda: answered(etcd.put(b"/m", b"2", lease)))
        assert await etcd.keep_alive(lease) > 0
        left[0].kill()
        await until(lambda: refused(etcd.put(b"/m", b"3", lease)))
        for one in left[0], used:
            one.start()
        await until(lambda: answered(etcd.put(b"/m", b"4", lease)))
        assert [kv.value for kv in (await etcd.range(b"/m")).kvs] == [b"4"]

    async def answered(call: Awaitable[Any]) -> bool:
        try:
            await call
        except EtcdUnavailable:
            return False
        return True

    async def refused(call: Awaitable[Any]) -> bool:
        return not await answered(call)

    with etcd_cluster(3) as members:
        run(work, *map(url_of, members))


def test_a_member_without_a_majority_ends_its_watch() -> None:
    """Its connection lives and it answers probes, so only the lost leader is a sign."""

    async def work(etcd: Etcd) -> None:
        async with watching(etcd, b"/w/") as changes:
            members[1].pause()
            members[2].pause()
            assert isinstance(await next_of(changes, ELECTION_S), EtcdUnavailable)
            with pytest.raises(EtcdUnavailable):
                await etcd.range(b"/w/")
        members[1].resume()
        members[2].resume()

    with etcd_cluster(3) as members:
        run(work, url_of(members[0]))


def test_the_version_of_a_server(server: Service) -> None:
    async def work(etcd: Etcd) -> None:
        found = await etcd.status()
        assert found.version.count(".") == 2 and found.leader == found.member

    run(work, url_of(server))


# --- users and certificates -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Service]:
    """A server on which user `node` may use /own/ alone."""
    with etcd() as server:
        for words in (
            "user add root:secret", "user add node:node-secret", "role add own", "user grant-role root root",
            "role grant-permission own --prefix=true readwrite /own/", "user grant-role node own", "auth enable",
        ):  # fmt: skip
            etcdctl(server, *words.split())
        yield server


def test_a_user_with_a_password(guarded: Service) -> None:
    async def work(etcd: Etcd) -> None:
        lease = await etcd.grant(60)
        await etcd.put(b"/own/1", b"x", lease)
        assert await etcd.keep_alive(lease) > 0
        async with watching(etcd, b"/own/") as changes:
            await etcd.put(b"/own/2", b"y")
            assert (await next_of(changes)).kv.value == b"y"
        with pytest.raises(EtcdDenied, match="permission denied"):
            await etcd.put(b"/foreign", b"")

    run(work, url_of(guarded), username="node", password="node-secret")


@pytest.mark.parametrize("login", [("", ""), ("node", "wrong-secret"), ("nobody", "secret")])
def test_a_wrong_login_is_denied(guarded: Service, login: tuple[str, str]) -> None:
    async def work(etcd: Etcd) -> None:
        with pytest.raises(EtcdDenied) as found:
            await etcd.put(b"/own/1", b"")
        assert "secret" not in str(found.value)

    run(work, url_of(guarded), username=login[0], password=login[1])


def test_a_token_that_a_new_start_has_ended_is_renewed(guarded: Service) -> None:
    async def work(etcd: Etcd) -> None:
        await etcd.put(b"/own/1", b"1")
        guarded.kill()
        guarded.start()
        await until(lambda: put(etcd))

    async def put(etcd: Etcd) -> bool:
        try:
            await etcd.put(b"/own/1", b"2")
        except EtcdUnavailable:
            return False
        return True

    run(work, url_of(guarded), username="node", password="node-secret")


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that the account of the server may read."""
    with folder() as where:
        yield where


def test_tls_on_both_sides(open_path: Path) -> None:
    authority = Authority(open_path)
    own = authority.issue("server", "etcd", ("127.0.0.1",))
    node = authority.issue("node", "n1")
    for file in open_path.iterdir():
        file.chmod(0o644)
    options = ("--cert-file", own, "--key-file", own, "--trusted-ca-file", authority.cafile, "--client-cert-auth")

    async def work(etcd: Etcd) -> None:
        await etcd.put(b"/a", b"1")
        assert [kv.value for kv in (await etcd.range(b"/a")).kvs] == [b"1"]

    async def refused(etcd: Etcd) -> None:
        with pytest.raises(EtcdUnavailable):
            await etcd.put(b"/a", b"1")

    with etcd(*map(str, options), scheme="https") as server:
        files = {"cacertfile": str(authority.cafile), "certfile": str(node), "keyfile": str(node)}
        run(work, url_of(server, "https"), **files)
        run(refused, url_of(server, "https"), **{**files, "certfile": "", "keyfile": ""})
        run(refused, url_of(server))
        run(refused, url_of(server, "https"), **{**files, "cacertfile": str(node)})
    with pytest.raises(client.EtcdError, match=r"none\.pem: No such file"):
        Etcd(["https://127.0.0.1:1"], cacertfile="none.pem")
