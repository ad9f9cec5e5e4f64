"""Processes of their own for tests of what several share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import multiprocess


@contextmanager
def running(target: Callable[..., None], *arguments: object) -> Iterator[Any]:
    """A process of its own that does not outlive the block."""
    process = multiprocess.get_context("fork").Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
