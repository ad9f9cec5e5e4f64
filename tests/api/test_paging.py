"""A list is read in bounded parts, however few of its rows a filter matches."""

import asyncio
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from shardbroker.api.paging import Place, listed
from shardbroker.control.verbs import ClientList
from shardbroker.management.handlers.clients import list_clients

A_PAGE, PAGES = 10_000, 50
"""Clients that one call of a verb reads, and calls for one page by number."""


class Counted:
    """A registry of so many clients, which counts those that are read."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self.read = 0

    def items(self, after: bytes, most: int) -> Iterator[dict[str, Any]]:
        first = int(after or b"-1") + 1
        for number in itertools.islice(range(first, self._clients), most):
            self.read += 1
            yield {"client_id": b"%d" % number, "username": b"somebody"}


def test_a_page_by_cursor_reads_ten_thousand_clients_at_most() -> None:
    registries = [Counted(17_000), Counted(9_000)]
    context: Any = SimpleNamespace(registries=registries)
    cursor, read = None, []
    while not read or cursor is not None:
        before = sum(one.read for one in registries)
        found = asyncio.run(list_clients(context, ClientList(like_username="nobody", cursor=cursor)))
        read.append(sum(one.read for one in registries) - before)
        cursor = found["cursor"]
        assert found["data"] == []
    assert read == [A_PAGE, A_PAGE, 6_000]


def test_a_page_by_number_reads_fifty_times_that_at_most() -> None:
    registry = Counted((PAGES + 1) * A_PAGE)
    context: Any = SimpleNamespace(registries=[registry])

    async def call(verb: str, **params: Any) -> Any:
        assert verb == "clients list"
        return await list_clients(context, ClientList(**params))

    found = asyncio.run(listed(call, "clients list", Place(page=1, limit=100), dict, like_username="nobody"))  # type: ignore[arg-type]
    assert registry.read == PAGES * A_PAGE
    assert found["data"] == [] and found["meta"]["hasnext"], "there is more, which a cursor reaches"
