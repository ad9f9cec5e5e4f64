"""The problems that prevent the use of back ends, from integrations to the manager: a file of the runtime directory."""

from pathlib import Path

from shardbroker.stores.files import replace_file

__all__ = ["failing", "note_failing"]

FAILING = "backends.failing"
"""Name of the file, with one line per problem. It is missing while all back ends are available."""


def note_failing(runtime_dir: Path, problems: list[str]) -> None:
    """Replaces the recorded problems. Raises OSError."""
    path = runtime_dir / FAILING
    if problems:
        replace_file(path, "\n".join(" ".join(one.split()) for one in problems).encode(), sync=False)
    else:
        path.unlink(missing_ok=True)


def failing(runtime_dir: Path) -> list[str]:
    """Returns the recorded problems. Raises OSError."""
    try:
        return (runtime_dir / FAILING).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
