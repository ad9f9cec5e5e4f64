"""The one directory that a broker has in shared memory, and why what lies there may be trusted.

    /dev/shm/shardbroker-<instance>[-<random>]     mode 0700, of the broker's user
        counters  epochs                           segments
        rings/inbox-<p>  rings/spill/              rings, and messages too large for them
        routes/  exclusive/  registry-<w>/         LMDB
        left-<ns>/                                 `rings` of a broker that was killed, oldest first

Every local user may create names in /dev/shm, and <instance> is no secret, so a name proves nothing. Only a directory is used
that belongs to the broker's user, as fstat says, and that is closed to others: no other user can make one, put a file into it, or
replace it, since /dev/shm is sticky. If the first name is taken, the directory gets a random suffix, and the next start finds it by
its owner.
"""

import os
import secrets
import stat
from pathlib import Path

__all__ = ["distrust", "distrusted", "find_runtime_dir", "make_runtime_dir"]

ROOT = Path("/dev/shm")
"""tmpfs, half of the memory by default. A RuntimeDirectory of systemd lies in /run, which has a tenth or a fifth for the whole
machine, and a ring that finds no page ends its process; and it is removed at a stop, with rings that the next start needs."""
RANDOM_BYTES = 8
"""Of a name that cannot be taken in advance."""


def distrust(found: os.stat_result) -> str | None:
    """Why a file or directory must not be used, by what fstat says of it; None if it is ours alone."""
    if found.st_uid != os.geteuid():
        return f"owner must be uid {os.geteuid()}, got {found.st_uid}"
    if stat.S_IMODE(found.st_mode) & 0o077:
        return f"mode must give others nothing, got {stat.S_IMODE(found.st_mode):04o}"
    return None


def find_runtime_dir(instance: str) -> Path | None:
    """The directory of an instance that runs or was killed; None if there is none of ours."""
    return next((path for path in _names(instance) if _problem(path) is None), None)


def distrusted(instance: str) -> list[tuple[Path, str]]:
    """Names of an instance that are not used, and why."""
    found = [(path, _problem(path)) for path in _names(instance)]
    return [(path, problem) for path, problem in found if problem is not None]


def make_runtime_dir(instance: str) -> Path:
    """A new directory for an instance that has none. Raises OSError."""
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
