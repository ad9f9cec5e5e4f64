"""Commands of the manager about observed messages and packets."""

from typing import Any

from shardbroker.worker.commands import command

__all__: list[str] = []


@command("trace")
def trace(worker: Any, args: dict[str, Any]) -> None:
    """Replaces all traces."""
    worker.router.watcher.traces.set(args["traces"])


@command("trace lost")
def trace_lost(worker: Any, args: dict[str, Any]) -> None:
    """Sends the events lost since the last tick; they reach the manager before the answer."""
    worker.router.watcher.traces.send_lost()


@command("slow")
def slow(worker: Any, args: dict[str, Any]) -> list[list[Any]]:
    """Returns the slowest deliveries: client id, topic, ms, Unix ms."""
    found: list[list[Any]] = worker.router.watcher.slow_subscriptions.rows()
    return found


@command("slow clear")
def clear_slow(worker: Any, args: dict[str, Any]) -> None:
    """Forgets the slowest deliveries."""
    worker.router.watcher.slow_subscriptions.clear()


@command("topic counts")
def topic_counts(worker: Any, args: dict[str, Any]) -> dict[bytes, list[int]]:
    """Returns the counts of each registered topic."""
    found: dict[bytes, list[int]] = worker.router.watcher.topic_metrics.rows()
    return found


@command("spans")
def spans(worker: Any, args: dict[str, Any]) -> list[Any]:
    """Returns and forgets about `most` bytes of spans; see Spans.take()."""
    found: list[Any] = worker.router.watcher.spans.take(args["most"])
    return found


@command("loudest")
def loudest(worker: Any, args: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the `most` loudest clients of the last window; None: no window is complete yet."""
    found: dict[str, Any] | None = worker.router.watcher.client_rates.loudest(args["most"])
    return found
