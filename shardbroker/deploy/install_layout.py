"""The files of an installation besides the environment, each with place, owner and mode."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

__all__ = [
    "CONFIGURATION",
    "DEFAULT_PREFIX",
    "DIRECTORIES",
    "LINK",
    "MANUAL",
    "SYSCTL",
    "SYSUSERS",
    "UNITS",
    "USER",
    "Directory",
    "Placed",
    "placed_files",
]

USER = "shardbroker"
"""User and group of the service."""
DEFAULT_PREFIX = "/opt/shardbroker"
"""Prefix used in the installed files."""
CONFIGURATION = "/etc/shardbroker/shardbroker.toml"
SYSUSERS = "/etc/sysusers.d/shardbroker.conf"
SYSCTL = "/etc/sysctl.d/60-shardbroker.conf"
LINK = "/usr/local/bin/shardbroker"
MANUAL = "/usr/local/share/man/"
UNITS = (
    "shardbroker.service",
    "shardbroker@.service",
    "shardbroker.socket",
    "shardbroker.slice",
    "shardbroker-export.service",
    "shardbroker-export.timer",
)


@dataclass(frozen=True)
class Directory:
    """A directory of the broker, and its owner."""

    path: str
    owner: str
    group: str
    mode: int


@dataclass(frozen=True)
class Placed:
    """A file and its place; the owner is root."""

    path: str
    content: bytes
    group: str = "root"
    mode: int = 0o644
    keep: bool = False
    """An existing file is kept."""


DIRECTORIES = (
    Directory("/etc/shardbroker", "root", USER, 0o750),
    Directory("/var/lib/shardbroker", USER, USER, 0o700),
    Directory("/var/lib/shardbroker-export", USER, USER, 0o750),
)
"""The same as in tmpfiles.d/shardbroker.conf."""


def placed_files(prefix: str, manual: Mapping[str, str]) -> list[Placed]:
    """Returns all files, for an environment at `prefix`, and the pages of the manual by file name."""
    source = files("shardbroker.deploy") / "files"

    def read(*parts: str) -> bytes:
        return source.joinpath(*parts).read_bytes()

    def unit(name: str) -> bytes:
        return read("system", name).replace(DEFAULT_PREFIX.encode(), prefix.encode())

    return [
        Placed(SYSUSERS, read("sysusers.d", "shardbroker.conf")),
        Placed("/etc/tmpfiles.d/shardbroker.conf", read("tmpfiles.d", "shardbroker.conf")),
        Placed(SYSCTL, read("sysctl.d", "60-shardbroker.conf")),
        *(Placed(f"/etc/systemd/system/{name}", unit(name)) for name in UNITS),
        Placed(CONFIGURATION, read("config", "shardbroker.toml"), USER, 0o640, keep=True),
        *(Placed(f"{MANUAL}{name}.gz", gzip.compress(page.encode(), mtime=0)) for name, page in manual.items()),
    ]
