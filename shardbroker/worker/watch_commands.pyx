"""What the manager asks of a worker about single messages and packets; see observers.pyx."""

from typing import Any

from shardbroker.worker.commands import command

__all__: list[str] = []


@command("trace")
def trace(worker: Any, args: dict[str, Any]) -> None:
    """Traces these, and nothing else."""
    worker.watcher.set_traces(args["traces"])


@command("trace lost")
def trace_lost(worker: Any, args: dict[str, Any]) -> None:
    """Tells what was left out of traces since the last tick; it goes before the answer."""
    worker.watcher.tell_lost()


@command("slow")
def slow(worker: Any, args: dict[str, Any]) -> list[list[Any]]:
    """The slowest deliveries: client id, topic, ms, Unix ms."""
    found: list[list[Any]] = worker.watcher.slowest()
    return found


@command("slow clear")
def clear_slow(worker: Any, args: dict[str, Any]) -> None:
    """Forgets them."""
    worker.watcher.clear_slow()


@command("topic counts")
def topic_counts(worker: Any, args: dict[str, Any]) -> dict[bytes, list[int]]:
    """What was counted of each registered topic."""
    found: dict[bytes, list[int]] = worker.watcher.topic_counts()
    return found


@command("loudest")
def loudest(worker: Any, args: dict[str, Any]) -> dict[str, Any] | None:
    """The `most` loudest clients of the last window; None: it has just begun."""
    found: dict[str, Any] | None = worker.watcher.loudest(args["most"])
    return found
