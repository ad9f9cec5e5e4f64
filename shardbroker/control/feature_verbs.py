"""Verbs of features beyond MQTT: delayed messages, exclusive subscriptions."""

from typing import Annotated

from pydantic import StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Page, Params, Verb, argument, table

__all__ = ["DelayedList", "ExclusiveList", "OneMessage"]

MessageId = Annotated[str, StringConstraints(pattern=r"^[0-9A-Fa-f]{32}$")]


class DelayedList(Page):
    """A page of delayed messages: worker by worker, in order of arrival."""


class OneMessage(Params):
    """A message by its id."""

    msgid: MessageId = argument("Message id, 32 hexadecimal digits.")


class ExclusiveList(Page):
    """A page of exclusive subscriptions, in order of their filters."""


DELAYED_TIMES = ("publish_at", "expected_at")

table(
    Verb(
        "delayed list",
        "Delayed messages, worker by worker, in order of arrival.",
        DelayedList,
        columns=("msgid", "topic", "qos", "from_clientid", "publish_at", "expected_at"),
        rest=(Rest("GET /mqtt/delayed/messages", "Delayed messages", "list_messages", "page", times=DELAYED_TIMES),),
    ),
    Verb(
        "delayed show",
        "One delayed message, its payload in base64.",
        OneMessage,
        rest=(Rest("GET /mqtt/delayed/messages/{node}/{msgid}", "Delayed messages", "show_message", times=DELAYED_TIMES),),
    ),
    Verb(
        "delayed delete",
        "Deletes a delayed message: it is never published.",
        OneMessage,
        changes=True,
        rest=(Rest("DELETE /mqtt/delayed/messages/{node}/{msgid}", "Delayed messages", "delete_message", "nothing"),),
    ),
    Verb("exclusive list", "Exclusive subscriptions, with the client of each.", ExclusiveList, columns=("topic", "clientid")),
)
