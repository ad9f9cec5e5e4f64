"""Sockets between nodes: options, dialling, TLS, and the way of an accepted socket from link-0 to another link process.

Message of the channel `sockets`, from link-0 to link-<n>: the byte `S` with the socket of a connection for that process. Nothing
but the preface has been read from it. The manager also gets `J`, with that of a broker that is no node yet.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.config.cluster import Cluster, ClusterTls, Links
from shardbroker.config.listeners import parse_address
from shardbroker.link.frames import preface

__all__ = [
    "JOINS", "MARK", "check_certificate", "check_listening", "dial", "give_socket", "prepare", "take_marked", "take_sockets",
    "tls_contexts", "tls_problem",
]  # fmt: skip

MARK, JOINS = b"S", b"J"
ATTEMPT_S = 1.0
"""Time after which a further attempt to connect begins beside those that are under way."""


def tls_contexts(tls: ClusterTls) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """Returns the contexts of the dialling and of the accepting side; None without TLS. Raises OSError, ssl.SSLError."""
    if not tls.enable:
        return None, None
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = False  # names in certificates are those of nodes: check_certificate
    for context in (client, server):
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(tls.cacertfile)
        context.load_cert_chain(tls.certfile, tls.keyfile or None, "")
    return client, server


def tls_problem(tls: ClusterTls) -> str:
    """Returns what is wrong with the files of TLS between nodes; empty if they can be used."""
    try:
        tls_contexts(tls)
    except ssl.SSLError as error:
        cause = str(error.reason or error).replace("_", " ").lower()
    except OSError as error:
        cause = error.strerror or str(error)
    else:
        return ""
    text = "cluster.tls.certfile: must be a certificate with its key, and cluster.tls.cacertfile one of its issuers"
    return f"{text}, got {tls.certfile!r} and {tls.cacertfile!r}: {cause}"


def check_certificate(certificate: Mapping[str, Any] | None, name: str) -> None:
    """Raises PeerFault unless a verified certificate (`getpeercert`) belongs to the node of this name."""
    found = certificate or {}
    names = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
    names += [value for _, value in found.get("subjectAltName", ())]
    if name not in names:
        text = f"certificate of node {name}: its common name or an alternative name must be {name}, got {', '.join(names)}"
        raise PeerFault(ByeReason.NOT_AUTHENTICATED, text)


def prepare(sock: socket.socket, links: Links) -> None:
    """Sets the options of a connection between nodes."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, links.keepalive_idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, links.keepalive_interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, links.keepalive_count)
    # Without an acknowledgement of the peer's kernel for so long the connection ends, also while nothing is sent by this process.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(links.send_timeout * 1000)))


async def dial(address: str, channel: int, cluster: Cluster) -> socket.socket:
    """Opens a connection to a process of another node, and sends the preface. Raises OSError, TimeoutError.

    Attempts overlap, and the first one that succeeds is used: the kernel repeats a lost SYN after 1, 2, 4 s, so one attempt that
    began during a split would find its end late.
    """
    attempts: set[asyncio.Task[socket.socket]] = set()
    try:
        async with asyncio.timeout(cluster.link.connect_timeout):
            while True:
                attempts.add(asyncio.create_task(_connect(address, cluster)))
                done, _ = await asyncio.wait(attempts, timeout=ATTEMPT_S, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    first = done.pop()
                    attempts.discard(first)
                    sock = first.result()
                    try:
                        await asyncio.get_running_loop().sock_sendall(sock, preface(channel))
                    except BaseException:
                        sock.close()
                        raise
                    return sock
    finally:
        for attempt in attempts:
            attempt.add_done_callback(_discard)
            attempt.cancel()


def _discard(attempt: asyncio.Task[socket.socket]) -> None:
    """Closes the connection of an attempt that another one has preceded."""
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


async def _connect(address: str, cluster: Cluster) -> socket.socket:
    """Returns a connection to the first address of a host that accepts one. Raises OSError."""
    loop = asyncio.get_running_loop()
    host, port = parse_address(address)
    problem: OSError = ConnectionError(f"{host}: no address")
    for family, kind, protocol, _, target in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            prepare(sock, cluster.link)
            await loop.sock_connect(sock, target)
            return sock
        except OSError as error:
            sock.close()
            problem = error
        except BaseException:
            sock.close()
            raise
    raise problem


def check_listening(address: str) -> None:
    """Raises OSError unless this process could listen at an address."""
    host, port = parse_address(address)
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)
        sock.listen(1)


def give_socket(channel: socket.socket, sock: socket.socket, mark: bytes = MARK) -> bool:
    """Sends a socket to another process; False if its channel is full."""
    try:
        socket.send_fds(channel, [mark], [sock.fileno()])
    except (BlockingIOError, InterruptedError):
        return False
    return True


def take_sockets(channel: socket.socket) -> list[socket.socket]:
    """Returns the sockets that have arrived."""
    return [sock for _, sock in take_marked(channel)]


def take_marked(channel: socket.socket) -> list[tuple[bytes, socket.socket]]:
    """Returns the sockets that have arrived, each with its mark."""
    taken: list[tuple[bytes, socket.socket]] = []
    while True:
        try:
            mark, descriptors, _, _ = socket.recv_fds(channel, len(MARK), 1)
        except (BlockingIOError, InterruptedError):
            return taken
        taken += [(mark, socket.socket(fileno=descriptor)) for descriptor in descriptors]
        if not descriptors:
            return taken
