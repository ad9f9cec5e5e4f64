"""Why a server cannot be reached, out of the errors of any library."""

import os
import re
import socket
import ssl

__all__ = ["causes", "network_reason", "tls_reason"]

CLOSED = re.compile("Connection|Disconnect|Reconnect")
"""In names of errors of libraries that have no cause: ConnectionError, ServerDisconnectedError, AutoReconnect."""
OF_TLS = re.compile(r"\[SSL: (\w+)\]")
CAUSES_MAX = 16
"""Most errors of a chain that are looked at."""


def causes(error: BaseException) -> list[BaseException]:
    """Returns an error, what it was raised from, and so on."""
    found: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and len(found) < CAUSES_MAX:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found


def tls_reason(text: str) -> str:
    """Returns what TLS fails for, by the text of an error of `ssl` that is all a library keeps; empty if it is another error."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        detail = text.rpartition("certificate verify failed: ")[2].partition(" (_ssl")[0]
        return f"the certificate of the server is not accepted: {detail}"
    found = OF_TLS.search(text)
    return f"TLS fails: {found[1].replace('_', ' ').lower()}" if found else ""


def network_reason(error: BaseException) -> str:
    """Returns the cause of an error in one line, without texts that a library may have filled with data."""
    chain = causes(error)
    for one in chain:
        if isinstance(one, ssl.SSLCertVerificationError) and hasattr(one, "verify_message"):  # that of aiohttp has it in its cause
            return f"the certificate of the server is not accepted: {one.verify_message}"
        if type(one) is ssl.SSLError:
            reason = str(getattr(one, "reason", None) or "no handshake")
            return f"TLS fails: {reason.replace('_', ' ').lower()}"
        if isinstance(one, socket.gaierror):
            return "the name of the server cannot be resolved"
    for one in reversed(chain):
        if isinstance(one, OSError) and one.errno and not isinstance(one, TimeoutError):
            return os.strerror(one.errno).lower()
    if any(isinstance(one, TimeoutError) for one in chain):
        return "no response in time"
    if any(isinstance(one, OSError | EOFError) or CLOSED.search(type(one).__name__) for one in chain):
        return "the connection was closed"
    return type(error).__name__
