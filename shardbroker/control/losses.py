"""Messages that are lost: which counters count them. The one figure of all losses is their sum, wherever it is shown.

A loss is a message that the broker has accepted and a client with a matching subscription does not get, now or when it subscribes.
A message that the broker refuses is the publisher's still, and counted with the refusals (docs/refusals.md).
"""

from collections.abc import Mapping

__all__ = ["LOSSES", "NO_LOSSES", "losses", "lost"]

LOSSES = {
    "queue_full": ("delivery.dropped.queue_full", "the session's queue is full (`mqtt.max_mqueue_len`): the oldest message goes"),
    "output_full": ("delivery.dropped.output_full", "QoS 0 for a client that reads too slowly (`mqtt.max_output_bytes`)"),
    "qos0_msg": ("delivery.dropped.qos0_msg", "QoS 0 for a client that is away, with `mqtt.mqueue_store_qos0 = false`"),
    "overload": ("delivery.dropped.overload", "QoS 0 for a client that is away, while memory is short"),
    "expired": ("delivery.dropped.expired", "the Message Expiry Interval was over before the client took it"),
    "too_large": ("delivery.dropped.too_large", "larger than the client's Maximum Packet Size"),
    "outdated": ("messages.dropped.outdated", "a delayed message or a will that is not allowed any more when it is due"),
    "unroutable": ("messages.dropped.unroutable", "a destination is not known; the log line `destination unknown` names it"),
    "failed": ("messages.dropped.failed", "processing failed; the log line `message dropped` has the reason"),
    "retained": ("retained.dropped", "delivered, but not retained: limits below `retainer`, or a disk that takes no writes"),
}
"""Reason -> its counter, and what it means."""

NO_LOSSES = {
    "messages.dropped": "the sum of its reasons",
    "messages.dropped.no_subscribers": "no subscription matches",
    "messages.dropped.hook": "a plugin or program behind `message.publish` wants it",
    "messages.dropped.await_pubrel_timeout": "the message was delivered, only its packet id is free again",
    "messages.dropped.receive_maximum": "refused with DISCONNECT 0x93: the publisher still has it",
    "delivery.dropped": "the sum of its reasons",
    "delivery.dropped.no_local": "the client asked not to get its own messages",
    "events.dropped": "log lines and messages about events, not messages of clients",
}
"""Counters with `dropped` in their name that count no losses, and why."""


def losses(counters: Mapping[str, int], before: Mapping[str, int] | None = None) -> dict[str, int]:
    """Lost messages by reason, the most frequent first, without reasons that have none. `counters`: by name; the count is
    since `before`, or since the broker started."""
    found = {reason: counters[name] - (before[name] if before else 0) for reason, (name, _) in LOSSES.items()}
    return dict(sorted(((reason, count) for reason, count in found.items() if count > 0), key=lambda row: -row[1]))


def lost(counters: Mapping[str, int]) -> int:
    """All lost messages since the broker started."""
    return sum(losses(counters).values())
