"""Counters of lost messages. The total of losses, wherever it is shown, is their sum.

A loss is a message that the broker has accepted and that a client with a matching subscription does not receive, now or when it
subscribes. A rejected message is still with its publisher and counts as a refusal (docs/refusals.md).
"""

from collections.abc import Mapping

__all__ = ["LOSSES", "NO_LOSSES", "losses", "lost"]

LOSSES = {
    "queue_full": ("delivery.dropped.queue_full", "the session queue is full (`mqtt.max_mqueue_len`): its oldest message is lost"),
    "queue_stalled": (
        "delivery.dropped.queue_stalled",
        "likewise, of a client that takes less than an eighth of its queue in `mqtt.push_back_timeout`",
    ),
    "output_full": ("delivery.dropped.output_full", "QoS 0 for a client that reads too slowly (`mqtt.max_output_bytes`)"),
    "qos0_msg": ("delivery.dropped.qos0_msg", "QoS 0 for a disconnected client, with `mqtt.mqueue_store_qos0 = false`"),
    "overload": ("delivery.dropped.overload", "QoS 0 for a disconnected client, while memory is short"),
    "expired": ("delivery.dropped.expired", "the Message Expiry Interval passed before delivery"),
    "too_large": ("delivery.dropped.too_large", "larger than the client's Maximum Packet Size"),
    "outdated": ("messages.dropped.outdated", "a delayed message or a will that is no longer permitted when it is due"),
    "unroutable": ("messages.dropped.unroutable", "a destination is unknown; the log line `destination unknown` names it"),
    "unreachable": ("messages.dropped.unreachable", "QoS 0 for a node of the cluster that is not reachable"),
    "failed": ("messages.dropped.failed", "processing failed; the log line `message dropped` has the reason"),
    "retained": ("retained.dropped", "delivered, but not retained: limits below `retainer`, or a disk that takes no writes"),
}
"""Reason -> its counter and its meaning."""

NO_LOSSES = {
    "messages.dropped": "the sum of its reasons",
    "messages.dropped.no_subscribers": "no subscription matches",
    "messages.dropped.hook": "a plugin or an ExHook server drops it in `message.publish`",
    "messages.dropped.await_pubrel_timeout": "the message was delivered; only its packet id is released",
    "messages.dropped.receive_maximum": "rejected with DISCONNECT 0x93: the publisher still has it",
    "delivery.dropped": "the sum of its reasons",
    "delivery.dropped.no_local": "the subscription has No Local",
    "events.dropped": "log lines and messages about events, not messages of clients",
}
"""Counters with `dropped` in their name that do not count losses, with the reason."""


def losses(counters: Mapping[str, int], before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Returns lost messages by reason, the most frequent first, without reasons at 0. `counters`: by name; counted since
    `before`, or since the broker started."""
    found = {reason: counters[name] - (before[name] if before else 0) for reason, (name, _) in LOSSES.items()}
    return dict(sorted(((reason, count) for reason, count in found.items() if count > 0), key=lambda row: -row[1]))


def lost(counters: Mapping[str, int]) -> int:
    """Returns the number of lost messages since the broker started."""
    return sum(losses(counters).values())
