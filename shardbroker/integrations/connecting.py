"""What back ends with connections have in common."""

import ssl
import zlib
from typing import TYPE_CHECKING, Any

from shardbroker.access.contract import BackendError, SettingError

if TYPE_CHECKING:
    import aiohttp

__all__ = ["PLAIN", "address_of", "read_body", "tls_of"]

PLAIN = {"Accept-Encoding": "identity"}
"""Headers of a request whose answer read_body() reads. Its session has auto_decompress=False, so a small answer stays small."""
GZIP = 31
"""wbits of zlib for a gzip header and the largest window."""


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


async def read_body(answer: "aiohttp.ClientResponse", most: int) -> bytes:
    """The body of an answer, which arrives in parts and is not unpacked yet. Raises BackendError if it has more than `most` bytes,
    packed or unpacked, or if this cannot unpack it."""
    parts = bytearray()
    while len(parts) <= most and not answer.content.at_eof():
        parts += await answer.content.read(most + 1 - len(parts))
    body = bytes(parts)
    encoding = answer.headers.get("Content-Encoding", "identity").lower()
    if encoding in ("gzip", "x-gzip") and len(body) <= most:
        try:
            body = zlib.decompressobj(GZIP).decompress(body, most + 1)
        except zlib.error as error:
            raise BackendError(f"its answer is no gzip: {error}") from None
    elif encoding not in ("gzip", "x-gzip", "identity", ""):
        raise BackendError(f"its answer has the content encoding {encoding[:100]!r}")
    if len(body) > most:
        raise BackendError(f"an answer of more than {most} bytes")
    return body
