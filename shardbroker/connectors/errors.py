"""Failures of connectors. Their texts contain no secret and nothing that a client has sent: they are logged."""

import re
from typing import Final

from shardbroker.connectors.reasons import network_reason

__all__ = [
    "ConnectionSettingError",
    "ConnectorError",
    "describe",
    "message_of",
    "missing_library",
    "mysql_code_of",
    "one_line",
    "sqlstate_of",
]

EXTRAS = {
    "_pulsar": "pulsar", "aiobotocore": "s3", "aiodynamo": "dynamodb", "aiohttp": "auth", "aiokafka": "kafka", "argon2": "auth",
    "asyncmy": "mysql", "asyncpg": "postgresql", "bcrypt": "auth", "bonsai": "ldap", "botocore": "s3", "bson": "mongodb",
    "cassandra": "cassandra", "cramjam": "kafka", "hiredis": "redis", "jwt": "auth", "pymongo": "mongodb", "redis": "redis",
}  # fmt: skip
"""Maps a library to the extra of the package that installs it."""


class ConnectorError(Exception):
    """A server failed, or its answer exceeds a limit."""


class ConnectionSettingError(ConnectorError):
    """A setting that makes a connector impossible: key, what it must be, what it is, a detail."""

    def __init__(self, key: str, must: str, got: object, detail: str = "") -> None:
        super().__init__(key, must, got, detail)

    def __str__(self) -> str:
        key, must, got, detail = self.args
        return f"{key}: must be {must}, got {got!r}{detail and ': '}{detail}"


TEXT_MAX: Final = 300
"""Most characters of a server's message that are shown."""
SQLSTATES_SHOWN: Final = ("08", "0A", "25", "28", "3D", "3F", "42", "53", "55", "57")
"""Classes of SQLSTATE whose messages are about the server, the login and the SQL, in which values are parameters."""
MYSQL_SHOWN: Final = frozenset(
    {1040, 1044, 1045, 1048, 1049, 1053, 1054, 1114, 1129, 1130, 1136, 1142, 1143, 1146, 1203, 1205, 1213, 1226, 1251, 1264, 1290,
     1364, 1370, 1406, 1452, 1698, 1792, 1836, 1862, 3118, 3159, 3819, 4025, 4151}
)  # fmt: skip
"""Errors of MySQL whose messages have names, but neither values nor SQL."""
MYSQL_NAMES: Final = {1062: "duplicate key", 1064: "syntax error", 1265: "value cut off", 1292: "wrong value", 1366: "wrong value"}
CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def describe(error: BaseException) -> str:
    """Returns a description of an error, in one line.

    Messages of libraries and servers may contain what a client sent: of those, only the ones that cannot are shown.
    """
    if isinstance(error, ConnectorError):
        return str(error)
    if sqlstate_of(error):
        return _postgresql(error)
    if mysql_code_of(error):
        return _mysql(error)
    if type(error) is ConnectionError and str(error):  # of asyncpg, which says what the server has refused
        return one_line(str(error))
    return network_reason(error) if isinstance(error, OSError) else type(error).__name__


def sqlstate_of(error: BaseException) -> str:
    """Returns the SQLSTATE of an error of asyncpg, or an empty text."""
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) and type(error).__module__.startswith("asyncpg") else ""


def mysql_code_of(error: BaseException) -> int:
    """Returns the number of an error of asyncmy or of its server, or 0."""
    if not type(error).__module__.startswith("asyncmy") or not error.args:
        return 0
    code = error.args[0]
    return code if isinstance(code, int) and code > 0 else 0


def message_of(error: BaseException) -> str:
    """Returns the message of a server of MySQL in one line. It may show SQL and values: for statements without any only."""
    return one_line(str(error.args[-1])) if error.args else type(error).__name__


def _postgresql(error: BaseException) -> str:
    state = sqlstate_of(error)
    if state.startswith(SQLSTATES_SHOWN):
        return f"{one_line(str(getattr(error, 'message', None) or error))} (SQLSTATE {state})"
    name = type(error).__name__
    is_known = name != "UnknownPostgresError"  # else a SQLSTATE of the database's own, such as one that a trigger raises
    condition = CAPITAL.sub(" ", name.removesuffix("Error")).lower() if is_known else "error raised in the database"
    names = [(kind, getattr(error, f"{kind}_name", None)) for kind in ("constraint", "table", "column")]
    return f"{condition} (SQLSTATE {state})" + "".join(f", {kind} {one_line(name)}" for kind, name in names if name)


def _mysql(error: BaseException) -> str:
    code = mysql_code_of(error)
    if (2000 <= code < 3000 or code in MYSQL_SHOWN) and len(error.args) > 1:
        return f"{one_line(str(error.args[1]))} (error {code})"
    return f"{MYSQL_NAMES.get(code, 'refused by the server')} (error {code})"


def one_line(text: str) -> str:
    """Returns a text of one line without control characters, cut off where it is long."""
    return "".join(one if one.isprintable() else " " for one in text[:TEXT_MAX])


def missing_library(error: ImportError) -> str:
    """Returns the name of a missing library, with the command that installs it where it is known."""
    library = (error.name or "").partition(".")[0]
    extra = f"; pip install 'shardbroker[{EXTRAS[library]}]'" if library in EXTRAS else ""
    return f"the library {library or error}{extra}"
