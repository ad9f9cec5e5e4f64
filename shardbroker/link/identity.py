"""Who this node is, and the secret by which it proves that."""

import stat
from pathlib import Path

from shardbroker.cluster.handshake import Identity, cluster_uuid
from shardbroker.config.cluster import COOKIE_BYTES_MIN
from shm.topology import Topology
from shm.view import ViewSegment

__all__ = ["CookieError", "own_identity", "read_cookie"]

COOKIE_BYTES_MAX = 4096


class CookieError(Exception):
    """The cookie cannot be used; the text names the file and what it has to be."""


def own_identity(topology: Topology, view: ViewSegment) -> Identity:
    """Returns the identity of this node for as long as its broker runs: a link process that is started again has the same one."""
    cluster = topology.cluster_uuid or cluster_uuid(topology.settings.cluster.name)
    return Identity(topology.node_id, topology.node_name, topology.link_address, cluster, view.uuid, view.incarnation)


def read_cookie(path: Path) -> bytes:
    """Returns the content of a cookie file, without the line end. Raises CookieError."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            cookie = file.read(COOKIE_BYTES_MAX + 1).rstrip(b"\r\n")
    except OSError as error:
        raise CookieError(f"must be a file that can be read, got {str(path)!r}: {error.strerror}") from None
    if mode & 0o077:
        raise CookieError(f"must have mode 0600, got {mode:04o} of {str(path)!r}: a cookie that others can read proves nothing")
    if not COOKIE_BYTES_MIN <= len(cookie) <= COOKIE_BYTES_MAX:
        raise CookieError(f"must have {COOKIE_BYTES_MIN} to {COOKIE_BYTES_MAX} bytes, got {len(cookie)} in {str(path)!r}")
    return cookie
