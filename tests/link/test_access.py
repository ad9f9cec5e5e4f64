"""Users, rules, bans and accounts in link-0, without a broker around it: rows that are refused, and what is noticed of changes."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from shardbroker.access.accounts import ACCOUNTS_FILE, Accounts
from shardbroker.access.auth_client import users_dir
from shardbroker.access.stores import User, UserStore
from shardbroker.cluster.faults import PeerFault
from shardbroker.cluster.messages import OfTable, RetainedAck, RetainedBegin, RetainedRows, TableNumber
from shardbroker.link.access import AccessLink
from shardbroker.link.codec import decode, encode
from shardbroker.link.frames import FrameReader, pack_frame
from shardbroker.link.retained_codec import encode_retained
from shardbroker.supervisor.layout import tear_down
from shm.counters import Counters
from tests.access.test_replicated import BAN, OF_ALL, row, user
from tests.access.test_replicated_accounts import row as account
from tests.cluster.real.nodes import Nodes
from tests.link.test_signals import Half

PEER, NUMBER = 2, 7
USERS, RULES, ACCOUNTS = TableNumber.USERS, TableNumber.RULES, TableNumber.ACCOUNTS


class Driven:
    """The drivers of a node with one connection."""

    def __init__(self, half: Half) -> None:
        self.sent: list[OfTable] = []
        self.faults: list[PeerFault] = []
        self.lines: list[str] = []
        self.counters = Counters.attach(half.topology.counters_name)
        self.link = AccessLink(
            half.topology, self.counters, lambda _, sent: self.sent.append(sent), lambda _, fault: self.faults.append(fault),
            lambda level, line: self.lines.append(f"{level} {line}"),
        )  # fmt: skip
        self.link.follow({NUMBER: PEER})

    def arrived(self, table: TableNumber, message: Any) -> None:
        self.link.arrived(NUMBER, table, message, 100)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Callable[..., Awaitable[None]]]:
        """Runs the drivers; gives a function that waits for a condition."""
        tasks = [asyncio.create_task(one) for one in self.link.runs()]

        async def until(condition: Callable[[], object]) -> None:
            async with asyncio.timeout(10):
                while not condition():
                    self.link.tick(time.monotonic_ns() // 1_000_000)
                    await asyncio.sleep(0.01)
                    assert not [one.result() for one in tasks if one.done()]

        try:
            yield until
        finally:
            for one in tasks:
                one.cancel()


@pytest.fixture
def half(tmp_path: Path) -> Iterator[Half]:
    made = Half(Nodes(tmp_path, 2), 1)
    yield made
    tear_down(made.topology)


def test_a_row_that_is_refused_does_not_stall_the_link(half: Half) -> None:
    driven = Driven(half)
    driven.arrived(USERS, RetainedRows(1, (b"rubbish", row(user("ada")))))
    driven.arrived(USERS, RetainedRows(2, (row({**user("eve"), "hash": ""}), row(user("bob")))))
    driven.arrived(ACCOUNTS, RetainedRows(1, (b"rubbish", account("ada"))))
    acks = [OfTable(USERS, RetainedAck(1)), OfTable(USERS, RetainedAck(2)), OfTable(ACCOUNTS, RetainedAck(1))]

    async def scenario() -> None:
        async with driven.running() as until:
            await until(lambda: all(ack in driven.sent for ack in acks))

    asyncio.run(scenario())
    assert not driven.faults
    lines = [line for line in driven.lines if "rows of another node refused" in line]
    assert len(lines) == 2 and all(line.startswith("error") for line in lines), "one a minute of each table"
    driven.link.close()
    store = UserStore(users_dir(half.topology.data_dir))
    assert [one.name for one in store.all("username")] == ["ada", "bob"]
    store.close()
    with Accounts(half.topology.data_dir) as accounts:
        assert [one["name"] for one in accounts.accounts()] == ["ada"]


def test_changes_of_a_peer_are_noticed_here_and_not_sent_back(half: Half) -> None:
    driven = Driven(half)
    ban, rules = row(BAN, table=1, key=b"clientid:c"), row(OF_ALL, key=b"all")

    async def scenario() -> None:
        async with driven.running() as until:
            await until(lambda: len(driven.sent) == 3)
            assert {one.table for one in driven.sent} == {USERS, RULES, ACCOUNTS}
            assert all(isinstance(one.message, RetainedBegin) for one in driven.sent)
            generations = [driven.counters.access_generation]
            for number, data in enumerate((ban, rules, ban), 1):
                driven.arrived(RULES, RetainedRows(number, (data,)))
                await until(lambda number=number: OfTable(RULES, RetainedAck(number)) in driven.sent)
                generations.append(driven.counters.access_generation)
            before, of_ban, of_rules, of_known = generations
            assert of_ban == before + 1
            assert of_rules > of_ban + 1, "rules are forgotten too"
            assert of_known == of_rules, "what this node has is no change"
            assert len(driven.sent) == 6

    asyncio.run(scenario())
    driven.link.close()


def test_a_change_of_this_node_is_sent_at_once(half: Half) -> None:
    driven = Driven(half)
    store: Any = driven.link._links[USERS]._table.store  # type: ignore[attr-defined]

    async def scenario() -> None:
        async with driven.running() as until:
            await until(lambda: len(driven.sent) == 3)
            store.put("username", User("ada", "h"))
            driven.counters.access_changed()
            await until(lambda: len(driven.sent) == 4)
            assert driven.sent[3].table == USERS and isinstance(driven.sent[3].message, RetainedRows)
            with Accounts(half.topology.data_dir) as accounts:
                accounts.add("ada", "$argon2id$x", "viewer", "")
            await until(lambda: len(driven.sent) == 5)
            assert driven.sent[4].table == ACCOUNTS and isinstance(driven.sent[4].message, RetainedRows)

    asyncio.run(scenario())
    driven.link.close()


def test_a_file_of_accounts_that_cannot_be_read_holds_up_accounts_alone(half: Half) -> None:
    (half.topology.data_dir / ACCOUNTS_FILE).write_bytes(b"rubbish" * 1000)
    driven = Driven(half)
    driven.arrived(USERS, RetainedRows(1, (row(user("ada")),)))

    async def scenario() -> None:
        async with driven.running() as until:
            await until(lambda: OfTable(USERS, RetainedAck(1)) in driven.sent and driven.lines)

    asyncio.run(scenario())
    assert [line for line in driven.lines if "table not replicated" in line and ACCOUNTS_FILE in line] == driven.lines
    driven.link.close()


def test_frames_have_the_number_of_their_table() -> None:
    def read(frame: bytes) -> Any:
        reader = FrameReader(1 << 21)
        reader.feed(frame)
        found = reader.next()
        assert found is not None
        return decode(found)

    for message in (RetainedAck(3), RetainedRows(1, (b"row",)), RetainedBegin(1, bytes(32768))):
        assert read(encode(message)) == message, "retained messages: as an earlier version has it"
        for table in (USERS, RULES, ACCOUNTS):
            assert read(encode(OfTable(table, message))) == OfTable(table, message)
        for lane in (4, 65535):
            kind, body = encode_retained(message)
            with pytest.raises(PeerFault, match="lane"):
                read(pack_frame(kind, body, lane=lane))
