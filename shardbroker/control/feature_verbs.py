"""Verbs of what goes beyond MQTT: delayed messages, exclusive subscriptions."""

from typing import Annotated

from pydantic import StringConstraints

from shardbroker.control.verbs import Page, Params, Verb, argument, table

__all__ = ["DelayedList", "ExclusiveList", "OneMessage"]

MessageId = Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{32}$")]


class DelayedList(Page):
    """Messages that wait, paged: worker by worker, in the order in which they came."""


class OneMessage(Params):
    """A message by its id."""

    msgid: MessageId = argument("Message id, 32 hexadecimal digits.")


class ExclusiveList(Page):
    """Exclusive subscriptions, paged, in the order of their filters."""


table(
    Verb(
        "delayed list",
        "Messages that wait for their time.",
        DelayedList,
        columns=("msgid", "topic", "qos", "from_clientid", "publish_at", "expected_at"),
    ),
    Verb("delayed show", "One message that waits for its time.", OneMessage),
    Verb("delayed delete", "Deletes a message that waits for its time.", OneMessage, changes=True),
    Verb("exclusive list", "Exclusive subscriptions, and who has them.", ExclusiveList, columns=("topic", "clientid")),
)
