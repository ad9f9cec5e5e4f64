"""What back ends with connections have in common."""

import ssl
from typing import TYPE_CHECKING, Any

from shardbroker.access.contract import BackendError, SettingError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["address_of", "read_body", "tls_of"]


def address_of(section: Any, name: str) -> tuple[str, int]:
    """Host and port of a settings section. Raises SettingError if there is none, or if its CA certificates cannot be used."""
    host, _, port = section.server.rpartition(":")
    if not host:
        raise SettingError(f"{name}.server", "HOST:PORT", section.server)
    try:
        tls_of(section)
    except OSError as error:  # ssl.SSLError too
        raise SettingError(f"{name}.tls_ca", "a PEM file of CA certificates", section.tls_ca, error.strerror or "") from None
    return host.strip("[]"), int(port)


def tls_of(section: Any) -> ssl.SSLContext | None:
    """A context that checks the server's certificate, or None for a connection in the clear."""
    return ssl.create_default_context(cafile=section.tls_ca or None) if section.tls else None


async def read_body(content: "aiohttp.StreamReader", most: int) -> bytes:
    """The body of an answer, which arrives in parts. Raises BackendError if it has more than `most` bytes."""
    body = bytearray()
    while len(body) <= most and not content.at_eof():
        body += await content.read(most + 1 - len(body))
    if len(body) > most:
        raise BackendError(f"an answer of more than {most} bytes")
    return bytes(body)
