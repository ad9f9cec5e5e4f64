"""Users, rules, bans, accounts and API keys in link-0: their stores, as the drivers of their tables see them.

    own change   writer of the store -> generation in the counters -> link-0 -> peers; accounts: looked at each second
    a peer's     driver -> store -> generation in the counters -> workers and integrations, as after a change of this node
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lmdb

from shardbroker.access.accounts import AccountError
from shardbroker.access.auth_client import rules_dir, users_dir
from shardbroker.access.replicated import ReplicatedAccess
from shardbroker.access.replicated_accounts import ReplicatedAccounts
from shardbroker.access.stores import RuleStore, StoreError, UserStore
from shardbroker.cluster.faults import PeerFault
from shardbroker.cluster.messages import OfTable, RetainedMessages, TableNumber
from shardbroker.link.tables import StoredTable, TableLink
from shardbroker.logs.phrases import Line, log_line
from shm.counters import Counters
from shm.topology import Topology

__all__ = ["AccessLink"]


class _Table(ReplicatedAccess):
    """A store as the driver sees it. changed: has the processes of this node notice what a peer has changed."""

    errors = (StoreError, lmdb.Error, OSError)

    def __init__(self, name: str, store: Any, note: Callable[[bool], None]) -> None:
        super().__init__(store)
        self.name, self._note = name, note

    def follow_settings(self) -> None:
        """No setting limits these tables."""

    def merge(self, rows: Any) -> None:
        try:
            super().merge(rows)
        finally:
            changed, self.changed = self.changed, set()
            if changed:
                self._note("rules" in changed)

    def notes(self) -> Iterator[tuple[str, Line]]:
        return _notes(self)

    def failed(self, reason: str, retry_s: float) -> Line:
        return _failed(self.name, reason, retry_s)


class _Accounts(ReplicatedAccounts):
    """The accounts and keys as the driver sees them. Each request to the REST API reads the file, so changes need no notice."""

    name = "accounts and API keys"
    errors = (AccountError, OSError)

    def follow_settings(self) -> None:
        """No setting limits this table."""

    def notes(self) -> Iterator[tuple[str, Line]]:
        return _notes(self)

    def failed(self, reason: str, retry_s: float) -> Line:
        return _failed(self.name, reason, retry_s)


def _notes(table: Any) -> Iterator[tuple[str, Line]]:
    if table.refused:
        yield "error", log_line("rows of another node refused", table=table.name, rows=table.refused, reason=table.refusal)
        table.refused = 0
    if table.too_large:
        yield "warning", log_line("rows too large for other nodes", table=table.name, rows=table.too_large)
        table.too_large = 0


def _failed(name: str, reason: str, retry_s: float) -> Line:
    return log_line("table not replicated", table=name, reason=reason, retry_in=f"{retry_s:g}s")


class AccessLink:
    """The drivers of the tables of access control, each with a thread."""

    def __init__(
        self,
        topology: Topology,
        counters: Counters,
        send: Callable[[int, OfTable], None],
        fail: Callable[[int, PeerFault], None],
        log: Callable[[str, Line], None],
    ) -> None:
        """Raises StoreError."""
        data_dir = topology.data_dir
        self._counters = counters
        self._generation = counters.access_generation
        tables: dict[TableNumber, StoredTable] = {
            TableNumber.USERS: _Table("users", UserStore(users_dir(data_dir)), counters.access_changed),
            TableNumber.RULES: _Table("rules and bans", RuleStore(rules_dir(data_dir)), counters.access_changed),
            TableNumber.ACCOUNTS: _Accounts(data_dir),
        }
        self._links = {
            number: TableLink(table, topology.node_id, _sender(number, send), fail, log) for number, table in tables.items()
        }

    def follow(self, connections: Mapping[int, int]) -> None:
        """Takes the present connections to nodes that take the tables, with the ids of these."""
        for link in self._links.values():
            link.follow(connections)

    def arrived(self, number: int, table: TableNumber, message: RetainedMessages, size: int) -> None:
        """Takes a message of a connection."""
        self._links[table].arrived(number, message, size)

    def tick(self, now_ms: int) -> None:
        """Has changes of this node sent."""
        generation = self._counters.access_generation
        for link in self._links.values():
            link.tick(now_ms)
            if generation != self._generation:
                link.wake()
        self._generation = generation

    def states(self) -> dict[int, str]:
        """Returns for each linked node that takes the tables whether all of them are the same there: synced or syncing."""
        states = [link.states() for link in self._links.values()]
        nodes = {node for one in states for node in one}
        return {node: "synced" if all(one.get(node) == "synced" for one in states) else "syncing" for node in nodes}

    def runs(self) -> Iterator[Any]:
        """Yields the coroutines that serve until they are cancelled."""
        for link in self._links.values():
            yield link.run()

    def close(self) -> None:
        for link in self._links.values():
            link.close()


def _sender(table: TableNumber, send: Callable[[int, OfTable], None]) -> Callable[[int, RetainedMessages], None]:
    return lambda number, message: send(number, OfTable(table, message))
