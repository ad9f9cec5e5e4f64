"""What keeps back ends from being asked, from the process integrations to the manager: a file of the runtime directory."""

from pathlib import Path

from shardbroker.stores.files import replace_file

__all__ = ["failing", "note_failing"]

FAILING = "backends.failing"
"""A line for each. There is none while all back ends are there."""


def note_failing(runtime_dir: Path, problems: list[str]) -> None:
    """Takes the place of what was noted before. Raises OSError."""
    path = runtime_dir / FAILING
    if problems:
        replace_file(path, "\n".join(" ".join(one.split()) for one in problems).encode(), sync=False)
    else:
        path.unlink(missing_ok=True)


def failing(runtime_dir: Path) -> list[str]:
    """What was noted last. Raises OSError."""
    try:
        return (runtime_dir / FAILING).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
