"""Names in paths: a client id or topic may hold a slash, which is written %2F and must not part the path.

Servers undo %2F before anybody looks for a route. So the path is split first, and a slash within a part travels as NUL, which MQTT
allows nowhere, to the convertors, which put it back.
"""

from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor

__all__ = ["routable"]

SLASH = "\0"


def routable(raw: bytes) -> str | None:
    """A path as routes are matched with; None if it holds a NUL."""
    parts = [unquote(part) for part in raw.partition(b"?")[0].decode("latin-1").split("/")]
    if any(SLASH in part for part in parts):
        return None
    return "/".join(part.replace("/", SLASH) for part in parts)


class _Name(Convertor[str]):
    """One part of the path."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace(SLASH, "/")

    def to_string(self, value: str) -> str:
        return value.replace("/", SLASH)


class _Topic(_Name):
    """The rest of the path: a topic may also stand there as it is."""

    regex = ".+"


register_url_convertor("name", _Name())
register_url_convertor("topic", _Topic())
