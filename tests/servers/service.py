"""A server on a port, which tests can kill, pause and start again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers.processes import Server

__all__ = ["Service", "service"]


class Service(Server):
    """port: where it listens. Its output is in `server.log` of `where`."""

    def __init__(self, command: list[str], port: int, ready: Callable[[], bool], where: Path, as_nobody: bool = True) -> None:
        super().__init__(command, ready, where, as_nobody=as_nobody)
        self.port, self.where = port, where


@contextmanager
def service(
    command: list[str], port: int, ready: Callable[[], bool], where: Path, as_nobody: bool = True
) -> Iterator[Service]:
    """A server from its first answer to its end."""
    one = Service(command, port, ready, where, as_nobody)
    try:
        one.start()
        yield one
    finally:
        one.stop()
