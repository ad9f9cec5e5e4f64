"""Templates of SQL: where placeholders may be, and the parts of an INSERT."""

import pytest

from shardbroker.flows.drivers.sql_template import Dialect, Placeholder, Statement, statement

BOTH = (Dialect.POSTGRESQL, Dialect.MYSQL)


def shown(read: Statement) -> str:
    return "".join(part if isinstance(part, str) else f"<{part.text[2:-1]}>" for part in read.parts)


@pytest.mark.parametrize("dialect", BOTH)
def test_placeholders_are_parts_of_their_own(dialect: Dialect) -> None:
    read = statement("INSERT INTO t (a) VALUES (${payload.a[1].b}, lower( ${x} ), '$x {y}') ; ", dialect)
    assert shown(read) == "INSERT INTO t (a) VALUES (<payload.a[1].b>, lower( <x> ), '$x {y}')"
    assert [one.text for one in read.placeholders] == ["${payload.a[1].b}", "${x}"]
    assert read.placeholders[0].steps[:2] == ("payload", "a") and read.verb == "INSERT"


REFUSED = [
    (BOTH, "INSERT INTO t VALUES ('${x}')", "got ${x} in a string at line 1, column 24; a placeholder is a parameter"),
    (BOTH, "INSERT INTO t\nVALUES (1,\n 'a ''b ${x}')", "got ${x} in a string at line 3, column 9;"),
    (BOTH, "INSERT INTO ${t} VALUES (1)", "got ${t} for a name at line 1, column 13"),
    (BOTH, "INSERT INTO s.${t} VALUES (1)", "got ${t} for a name at line 1, column 15"),
    (BOTH, "INSERT INTO t_${t} VALUES (1)", "got ${t} for a name at line 1, column 15"),
    (BOTH, "INSERT INTO t VALUES (${a}${b})", "got ${a} for a name at line 1, column 23"),
    (BOTH, "UPDATE ${t} SET a = 1", "got ${t} for a name at line 1, column 8"),
    (BOTH, "INSERT INTO t VALUES ($1)", "must have placeholders such as ${topic}, got $1 at line 1, column 23"),
    (BOTH, "INSERT INTO t VALUES (${x}); DROP TABLE t", "must be one statement, got another behind line 1, column 28"),
    (BOTH, "INSERT INTO t VALUES ('${x})", "must close what it opens, got ' at line 1, column 23 without its end"),
    (BOTH, "INSERT INTO t VALUES (${x} /* ", "must close what it opens, got /* at line 1, column 28 without its end"),
    (BOTH, "INSERT INTO t VALUES (${x}", "must close what it opens, got VALUES ( without its end"),
    (BOTH, " ; -- nothing", "must be a statement such as INSERT"),
    (BOTH, f"SELECT {'${x}, ' * 1000} ${{x}}", "must have at most 1000 placeholders, got 1001"),
    ((Dialect.POSTGRESQL,), 'INSERT INTO "${t}" VALUES (1)', "got ${t} in a quoted name at line 1, column 14"),
    ((Dialect.POSTGRESQL,), "SELECT E'\\'${x}'", "got ${x} in a string"),
    ((Dialect.POSTGRESQL,), "SELECT $a$ $$ ' ${x} $a$", "got ${x} in a string"),
    ((Dialect.POSTGRESQL,), "/* a /* b */ ${x} */ SELECT ${y}, '${z}'", "got ${z} in a string"),
    ((Dialect.MYSQL,), "INSERT INTO `${t}` VALUES (1)", "got ${t} in a quoted name at line 1, column 14"),
    ((Dialect.MYSQL,), 'INSERT INTO t VALUES ("${x}")', "got ${x} in a string"),
    ((Dialect.MYSQL,), "SELECT 'a\\' ${x}'", "got ${x} in a string"),
    ((Dialect.MYSQL,), "/*!50000 SELECT ${x} */", "got ${x} in a comment for the server"),
]


@pytest.mark.parametrize(("dialects", "sql", "text"), REFUSED)
def test_what_is_refused_is_shown_with_its_place(dialects: tuple[Dialect, ...], sql: str, text: str) -> None:
    for dialect in dialects:
        with pytest.raises(ValueError, match=r"^sql: ") as caught:
            statement(sql, dialect)
        assert text in str(caught.value)


def test_comments_are_left_out_and_do_not_count() -> None:
    sql = "INSERT /* ${a} /* ' */ */ INTO t -- don't ${b}\nVALUES (${x} /*;*/)"
    assert shown(statement(sql, Dialect.POSTGRESQL)) == "INSERT   INTO t  \nVALUES (<x>  )"
    sql = "INSERT /* ${a} ' */ INTO t # don't ${b}\nVALUES (1--1, /*!50000 now() */ ${x}) -- '"
    assert shown(statement(sql, Dialect.MYSQL)) == "INSERT   INTO t  \nVALUES (1--1, /*!50000 now() */ <x>)"


INSERTS = [
    ("INSERT INTO T (A, b) VALUES (${x}, ${y})", ("t",), ("a", "b"), "INSERT INTO T (A, b)", "", True),
    ('insert into "S".t("A""b") values(${x}) on x', ("S", "t"), ('A"b',), 'insert into "S".t("A""b")', "on x", True),
    ("INSERT INTO t VALUES (f(${x}, ')'), ARRAY[${y}, 1])", ("t",), (), "INSERT INTO t", "", False),
    ("INSERT INTO t AS u OVERRIDING USER VALUE VALUES (${x})", (), (), "INSERT INTO t AS u OVERRIDING USER VALUE", "", True),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "table", "columns", "head", "tail", "bare"), INSERTS)
def test_parts_of_an_insert(sql: str, table: tuple[str, ...], columns: tuple[str, ...], head: str, tail: str, bare: bool) -> None:
    insert = statement(sql, Dialect.POSTGRESQL).insert
    assert insert is not None
    assert (insert.table, insert.columns, insert.head, insert.tail, insert.is_bare) == (table, columns, head, tail, bare)
    texts = ["".join(part.text if isinstance(part, Placeholder) else part for part in value) for value in insert.values]
    if bare:
        assert texts == [one.text for one in statement(sql, Dialect.POSTGRESQL).placeholders]
    else:
        assert texts == ["f(${x}, ')')", "ARRAY[${y}, 1]"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (${x}), (${y})",
        "INSERT INTO t SELECT ${x}",
        "INSERT INTO t VALUES (${x}) ON CONFLICT (a) DO UPDATE SET b = ${y}",
        "UPDATE t SET a = ${x}",
        "WITH a AS (SELECT ${x}) INSERT INTO t VALUES (1)",
        "INSERT INTO t DEFAULT VALUES",
    ],
)
def test_statements_for_one_row_only(sql: str) -> None:
    for dialect in BOTH:
        assert statement(sql, dialect).insert is None
