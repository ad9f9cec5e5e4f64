"""Verbs of named streams."""

from typing import Annotated

from pydantic import Field, StringConstraints

from shardbroker.control.verbs import Page, Params, Verb, argument, table

__all__ = ["OneStream", "StreamChange", "StreamList", "StreamSettings"]

Name = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1024)]
Description = Annotated[str, StringConstraints(max_length=4096)]
KEY = "Template of the key, such as ${payload.id}, ${topic} or ${clientid}."
LAST_VALUE = "Deliver only the newest message of each key from the past."
AGE = "Age up to which messages are kept and delivered, such as 7d; infinity: any."
BYTES = "Size of each journal up to which it is kept for the stream, such as 1GB."


class OneStream(Params):
    """A stream."""

    name: Name = argument("Name of the stream.")


class StreamList(Page):
    """Streams, filtered and paged."""

    like_name: str | None = Field(None, description="Names that contain this text.")


class StreamSettings(OneStream):
    """A stream that is made."""

    topic_filter: Text = argument("Topic filter of its messages.")
    age: Text = Field("7d", description=AGE)
    bytes: Text = Field("1GB", description=BYTES)
    last_value: bool = Field(False, description=LAST_VALUE)
    key: Text = Field("${clientid}", description=KEY)
    description: Description = Field("", description="What the stream is for.")
    enable: bool = Field(True, description="Whether messages are kept for it, and clients may subscribe to it.")


class StreamChange(OneStream):
    """Fields of a stream that change; its topic filter stays."""

    age: Text | None = Field(None, description=AGE)
    bytes: Text | None = Field(None, description=BYTES)
    last_value: bool | None = Field(None, description=LAST_VALUE)
    key: Text | None = Field(None, description=KEY)
    description: Description | None = Field(None, description="What the stream is for.")
    enable: bool | None = Field(None, description="Whether messages are kept for it, and clients may subscribe to it.")


table(
    Verb("streams list", "Named streams.", StreamList,
         columns=("name", "status", "topic_filter", "last_value", "age", "bytes", "held_bytes", "subscribers")),
    Verb("streams show", "One stream with its figures.", OneStream),
    Verb("streams add", "Makes a stream; it has each message published after the response.", StreamSettings, changes=True),
    Verb("streams change", "Changes fields of a stream; its subscriptions go on where they are.", StreamChange, changes=True),
    Verb("streams delete", "Removes a stream; its subscriptions get nothing more.", OneStream, changes=True),
)  # fmt: skip
