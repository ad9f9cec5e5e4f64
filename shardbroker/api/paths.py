"""Names in paths: a client id or topic may contain a slash, which is written %2F and must not split the path.

Servers decode %2F before a route is matched. Therefore the path is split first, a slash within a segment is replaced by NUL, which
MQTT permits nowhere, and the convertors restore it.
"""

from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor

__all__ = ["routable"]

SLASH = "\0"


def routable(raw: bytes) -> str | None:
    """Returns the path for matching routes, or None if it contains NUL."""
    parts = [unquote(part) for part in raw.partition(b"?")[0].decode("latin-1").split("/")]
    if any(SLASH in part for part in parts):
        return None
    return "/".join(part.replace("/", SLASH) for part in parts)


class _Name(Convertor[str]):
    """One segment of the path."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace(SLASH, "/")

    def to_string(self, value: str) -> str:
        return value.replace("/", SLASH)


class _Topic(_Name):
    """The rest of the path, so that a topic needs no escaped slashes."""

    regex = ".+"


register_url_convertor("name", _Name())
register_url_convertor("topic", _Topic())
