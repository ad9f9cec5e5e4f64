"""Failures of connectors. Their texts contain no secret and nothing that a client has sent: they are logged."""

__all__ = ["ConnectionSettingError", "ConnectorError", "describe", "missing_library"]

EXTRAS = {
    "aiohttp": "auth", "argon2": "auth", "asyncmy": "mysql", "asyncpg": "postgresql", "bcrypt": "auth", "bonsai": "ldap",
    "jwt": "auth", "pymongo": "mongodb", "redis": "redis",
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


def describe(error: Exception) -> str:
    """Returns a description of an error, in one line.

    Texts of libraries may contain what a client sent, so only those of connectors appear.
    """
    if isinstance(error, ConnectorError):
        return str(error)
    return "no response in time" if isinstance(error, TimeoutError) else type(error).__name__


def missing_library(error: ImportError) -> str:
    """Returns the name of a missing library, with the command that installs it where it is known."""
    library = (error.name or "").partition(".")[0]
    extra = f"; pip install shardbroker[{EXTRAS[library]}]" if library in EXTRAS else ""
    return f"the library {library or error}{extra}"
