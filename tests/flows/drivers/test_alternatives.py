"""Actions with several statements: which one writes a row, in which order, and what becomes of rows that the server refuses."""

import asyncio
from collections.abc import Sequence

import pytest

from shardbroker.config.sinks.mysql import MysqlAction, MysqlConnector
from shardbroker.config.sinks.pgsql import PgsqlAction, PgsqlConnector
from shardbroker.flows.drivers import mysql, pgsql
from shardbroker.flows.drivers.alternatives import Alternatives
from shardbroker.flows.sinks.driver import Failure, Refused
from shardbroker.flows.sinks.row import Row


class Written:
    """A driver that notes what it writes; the row `bad` makes it refuse a batch, the row `wrong` fails alone."""

    def __init__(self, name: str, seen: list[str]) -> None:
        self._name, self._seen = name, seen

    async def open(self) -> None: ...

    async def probe(self) -> None: ...

    async def close(self) -> None: ...

    async def write(self, rows: Sequence[Row]) -> Sequence[Failure]:
        names = [str(row.values["n"]) for row in rows]
        if "bad" in names:
            raise Refused("bad")
        self._seen += [f"{self._name}:{name}" for name in names]
        return [Failure(at, "wrong") for at, name in enumerate(names) if name == "wrong"]


def written(*rows: tuple[str, object]) -> tuple[list[str], list[Failure]]:
    seen: list[str] = []
    driver = Alternatives({"": Written("main", seen), "delete": Written("delete", seen)})
    failures = asyncio.run(
        driver.write([Row("0", at, "c", {"n": name, "statement": statement}) for at, (name, statement) in enumerate(rows)])
    )
    return seen, sorted(failures)


def test_rows_are_written_in_order_by_the_statement_that_they_name() -> None:
    seen, failures = written(("1", None), ("2", ""), ("3", "delete"), ("4", "delete"), ("5", None))
    assert seen == ["main:1", "main:2", "delete:3", "delete:4", "main:5"] and not failures


def test_a_row_that_is_refused_costs_no_other() -> None:
    seen, failures = written(("1", None), ("2", "delete"), ("bad", "delete"), ("wrong", "delete"), ("5", None))
    assert seen == ["main:1", "delete:2", "delete:wrong", "main:5"]
    assert failures == [Failure(2, "bad"), Failure(3, "wrong")]


def test_a_row_with_another_statement_fails_without_its_text() -> None:
    seen, failures = written(("1", None), ("2", "s3cret"), ("3", None))
    assert seen == ["main:1", "main:3"] and [one.at for one in failures] == [1] and "s3cret" not in failures[0].reason


@pytest.mark.parametrize("kind", ["pgsql", "mysql"])
@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        (
            {"statements": {"delete": "DELETE FROM t WHERE a = '${a}'"}},
            "statements.delete: must have placeholders outside",
        ),
        (
            {"statements": {"delete": "DELETE FROM t"}, "exactly_once": True},
            "exactly_once: must be false with",
        ),
    ],
)
def test_what_cannot_be_used_is_named(kind: str, parameters: dict[str, object], error: str) -> None:
    values = {"parameters": {"sql": "INSERT INTO t (a) VALUES (${a})", **parameters}}
    with pytest.raises(ValueError, match=error):
        if kind == "pgsql":
            over = pgsql.connect(PgsqlConnector(server="127.0.0.1:1"), "x")
            pgsql.make(PgsqlAction.model_validate(values), over, "pgsql:x")
        else:
            mysql.make(MysqlAction.model_validate(values), mysql.connect(MysqlConnector(server="127.0.0.1:1"), "x"), "mysql:x")
