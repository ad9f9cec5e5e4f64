"""The one directory of a broker in shared memory, and the reasons to trust its content.

    /dev/shm/shardbroker-<instance>[-<random>]     mode 0700, of the broker's user
        counters  epochs  view                     segments
        rings/inbox-<p>  rings/spill/              rings, and messages too large for them
        rings/peer-<node>-<link>                   rings to nodes of a cluster
        routes/  exclusive/  registry-<w>/         LMDB
        left-<ns>/                                 `rings` of a broker that was killed, oldest first

Every local user may create names in /dev/shm, and <instance> is no secret, so a name proves nothing. A directory is used only if,
according to fstat, it belongs to the broker's user and is closed to others. No other user can make such a directory, put a file
into it, or replace it, since /dev/shm is sticky. If the first name is taken, the directory gets a random suffix, and the next start
finds it by its owner.
"""

import os
import secrets
import stat
from pathlib import Path

__all__ = ["ROOT", "distrust", "distrusted", "find_runtime_dir", "make_runtime_dir"]

ROOT = Path("/dev/shm")
"""A tmpfs with half of the memory by default. /run, where systemd has RuntimeDirectory, has only a tenth or a fifth for the whole
machine, and a process whose ring finds no page is killed. /run is also cleared at a stop, with rings that the next start needs."""
RANDOM_BYTES = 8
"""Random bytes of a name that cannot be taken in advance."""


def distrust(found: os.stat_result) -> str | None:
    """Returns the reason not to use a file or directory, by its fstat result; None if it belongs to this user alone."""
    if found.st_uid != os.geteuid():
        return f"owner must be uid {os.geteuid()}, got {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"mode must give others nothing, got {stat.S_IMODE(found.st_mode):04o}"
    return None


def find_runtime_dir(instance: str) -> Path | None:
    """Returns the directory of an instance that runs or was killed, or None."""
    return next((path for path in _names(instance) if _problem(path) is None), None)


def distrusted(instance: str) -> list[tuple[Path, str]]:
    """Returns the names of an instance that are not used, each with the reason."""
    found = [(path, _problem(path)) for path in _names(instance)]
    return [(path, problem) for path, problem in found if problem is not None]


def make_runtime_dir(instance: str) -> Path:
    """Makes the directory of an instance. Raises OSError."""
    root = ROOT.stat()
    if root.st_mode & stat.S_IWOTH and not root.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{ROOT}: mode must have the sticky bit, got {stat.S_IMODE(root.st_mode):04o}; set it with chmod +t")
    path = ROOT / f"shardbroker-{instance}"
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        path = path.with_name(f"{path.name}-{secrets.token_hex(RANDOM_BYTES)}")
        path.mkdir(mode=0o700)
    problem = _problem(path)
    if problem is not None:
        raise PermissionError(f"{path}: {problem}")
    return path


def _names(instance: str) -> list[Path]:
    first = ROOT / f"shardbroker-{instance}"
    return [first] * os.path.lexists(first) + sorted(ROOT.glob(f"{first.name}-*"))


def _problem(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return f"must be a directory of the broker's own, got {error.strerror}"
    try:
        return distrust(os.fstat(descriptor))
    finally:
        os.close(descriptor)
