"""Failures of connectors. Their texts hold no secret and nothing that a client has sent: they are logged."""

__all__ = ["ConnectionSettingError", "ConnectorError", "describe", "missing_library"]

EXTRAS = {
    "aiohttp": "auth", "argon2": "auth", "asyncmy": "mysql", "asyncpg": "postgresql", "bcrypt": "auth", "bonsai": "ldap",
    "jwt": "auth", "pymongo": "mongodb", "redis": "redis",
}  # fmt: skip
"""Library -> extra of the package that installs it."""


class ConnectorError(Exception):
    """A server failed, or its answer is beyond a limit."""


class ConnectionSettingError(ConnectorError):
    """A connector cannot be made because of one setting: key, what it must be, what it is, a detail."""

    def __init__(self, key: str, must: str, got: object, detail: str = "") -> None:
        super().__init__(key, must, got, detail)

    def __str__(self) -> str:
        key, must, got, detail = self.args
        return f"{key}: must be {must}, got {got!r}{detail and ': '}{detail}"


def describe(error: Exception) -> str:
    """Returns what went wrong, in one line. Texts of libraries may hold what a client sent, so only those of connectors appear."""
    if isinstance(error, ConnectorError):
        return str(error)
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__


def missing_library(error: ImportError) -> str:
    """Returns which library is missing, and the command that installs it where it is known."""
    library = (error.name or "").partition(".")[0]
    extra = f"; pip install shardbroker[{EXTRAS[library]}]" if library in EXTRAS else ""
    return f"the library {library or error}{extra}"
