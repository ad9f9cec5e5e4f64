"""shardbroker: a sharded MQTT broker. See README.md for a map of the sources.

The packages beside this one, `acceptor`, `perf` and `shm`, are folders at the top of the source tree. A wheel installs them below
this package, in `parts/`, so that site-packages has one name: `shardbroker`. They are imported by the same names in both. Where
`parts/` is, importing this package installs a finder for these three names alone, before all others: another distribution's `perf`
neither takes the place of ours nor is overwritten by it. So whatever imports one of them imports `shardbroker` first, as all entry
points do.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__all__ = ["PARTS", "__version__"]

__version__ = "0.1.0"

PARTS = ("acceptor", "perf", "shm")
"""Packages that are installed below this one."""
_INSTALLED = Path(__file__).parent / "parts"


class _Parts:
    """Finds the packages in `parts/`."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(_INSTALLED)], target) if name in PARTS else None


if _INSTALLED.is_dir():
    sys.meta_path.insert(0, _Parts)
