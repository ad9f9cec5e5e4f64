"""Keys of topic features beyond MQTT: rewriting, delayed messages, messages about events."""

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from shardbroker.config.base import LEVELS_MAX, LIMIT_MAX, Section
from shardbroker.config.units import Allowed, Limit
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter

__all__ = ["PLACEHOLDER", "Delayed", "EventMessage", "Rewrite", "RewriteRule", "check_filters", "check_placeholders"]

REWRITE_NAMES = ("clientid", "username")
"""Names of placeholders, such as `${clientid}`."""

PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_GROUP = re.compile(r"\$(\d+)")


def check_placeholders(text: str, allowed: tuple[str, ...]) -> None:
    """Raises ValueError for a `${name}` that is not allowed."""
    for name in PLACEHOLDER.findall(text):
        if name not in allowed:
            raise ValueError(f"${{{name}}} in {text!r}: allowed are {', '.join(f'${{{one}}}' for one in allowed)}")


def check_filters(texts: list[str]) -> None:
    """Raises ValueError for a text that is not a topic filter."""
    for text in texts:
        try:
            check_topic_filter(text.encode(), LEVELS_MAX)
        except MqttError as error:
            raise ValueError(f"allowed are topic filters such as sensors/+ or #, not {text!r}: {error}") from None


class RewriteRule(Section):
    """Rewrites topics that match `source_topic` to `dest_topic`, in which `$1`, `$2` and so on are the groups of `re`."""

    action: Literal["publish", "subscribe", "all"] = "all"
    source_topic: str
    re: str
    dest_topic: str = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> "RewriteRule":
        try:
            check_topic_filter(self.source_topic.encode(), LEVELS_MAX)
        except MqttError as error:
            raise ValueError(f"source_topic {self.source_topic!r}: {error}") from None
        try:
            groups = re.compile(self.re).groups
        except re.error as error:
            raise ValueError(f"re {self.re!r}: {error}") from None
        check_placeholders(self.dest_topic, REWRITE_NAMES)
        for number in _GROUP.findall(self.dest_topic):
            if not 1 <= int(number) <= groups:
                raise ValueError(f"${number} in {self.dest_topic!r}: {self.re!r} has {groups} groups")
        return self


class Rewrite(Section):
    """Rules that rewrite topics of clients; docs/topics.md."""

    rules: Annotated[
        list[RewriteRule],
        Allowed(
            "a list of tables with source_topic (a filter), re (a regular expression), dest_topic, "
            "and action (publish, subscribe or all)"
        ),
    ] = Field(
        [], description="The first rule whose `source_topic` matches decides; if its `re` does not match, the topic is unchanged."
    )


class Delayed(Section):
    """Messages that are published later, `$delayed/<seconds>/<topic>`; docs/features.md."""

    enable: bool = Field(True, description="Whether `$delayed/` topics are available; if not, they are rejected (0x90).")
    max_delayed_messages: Limit = Field(
        0, ge=0, le=LIMIT_MAX, description="Most delayed messages that wait; further ones are rejected (0x97). 0: no limit."
    )


class EventMessage(Section):
    """Messages about events, below `$event/`; docs/features.md."""

    client_connected: bool = Field(False, description="`$event/client_connected`, when a client has connected.")
    client_disconnected: bool = Field(False, description="`$event/client_disconnected`, when a client has disconnected.")
    client_subscribed: bool = Field(False, description="`$event/client_subscribed`, for each topic filter.")
    client_unsubscribed: bool = Field(
        False, description="`$event/client_unsubscribed`, for each topic filter that a client unsubscribes."
    )
    message_delivered: bool = Field(False, description="`$event/message_delivered`, for each message and subscriber.")
    message_acked: bool = Field(False, description="`$event/message_acked`, when a subscriber has acknowledged a message.")
    message_dropped: bool = Field(False, description="`$event/message_dropped`, when a message has no subscribers.")
