"""What the manager asks of a worker about single messages and packets; see watching.pyx."""

from typing import Any

from shardbroker.worker.commands import command

__all__: list[str] = []


@command("trace")
def trace(loop: Any, args: dict[str, Any]) -> None:
    """Traces these, and nothing else."""
    loop.watcher.set_traces(args["traces"])


@command("trace lost")
def trace_lost(loop: Any, args: dict[str, Any]) -> None:
    """Tells what was left out of traces since the last tick; it goes before the answer."""
    loop.watcher.tell_lost()


@command("slow")
def slow(loop: Any, args: dict[str, Any]) -> list[list[Any]]:
    """The slowest deliveries: client id, topic, ms, Unix ms."""
    found: list[list[Any]] = loop.watcher.slowest()
    return found


@command("slow clear")
def clear_slow(loop: Any, args: dict[str, Any]) -> None:
    """Forgets them."""
    loop.watcher.clear_slow()


@command("topic counts")
def topic_counts(loop: Any, args: dict[str, Any]) -> dict[bytes, list[int]]:
    """What was counted of each registered topic."""
    found: dict[bytes, list[int]] = loop.watcher.topic_counts()
    return found


@command("loudest")
def loudest(loop: Any, args: dict[str, Any]) -> dict[str, Any] | None:
    """The `most` loudest clients of the last window; None: it has just begun."""
    found: dict[str, Any] | None = loop.watcher.loudest(args["most"])
    return found
