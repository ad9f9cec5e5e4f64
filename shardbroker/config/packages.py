"""Packages of extras that settings need, looked for before the broker starts."""

from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["missing_packages"]


def missing_packages(setting: str, packages: Sequence[str], extra: str) -> str | None:
    """Returns an error message that names those that are not installed, and the extra that has them; None if all are there."""
    missing = [name for name in packages if not _is_installed(name)]
    if not missing:
        return None
    verb = "is" if len(missing) == 1 else "are"
    return f"{setting} needs {', '.join(missing)}, which {verb} not installed: pip install 'shardbroker[{extra}]'"


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False
