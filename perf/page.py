"""The page of `perf report`."""

from collections.abc import Sequence
from pathlib import Path

__all__ = ["PageError", "write_page"]


class PageError(Exception):
    """A file holds no runs; the text says which and why."""


def write_page(files: Sequence[Path], page: Path, title: str) -> None:
    raise PageError("not yet")
