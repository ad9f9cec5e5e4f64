"""Verbs of diagnosis: traces, slow subscriptions, metrics of topics, alarms."""

import re
import time
from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import TIME_MAX, Page, Params, Verb, argument, table

__all__ = [
    "PAYLOAD_MAX", "TRACE_NAME", "Alarms", "CountedTopic", "CountedTopics", "Loudest", "OneTrace", "TraceRead", "TraceStart",
    "TraceType",
]  # fmt: skip

TRACE_NAME = r"^[A-Za-z][A-Za-z0-9_-]{0,199}$"
"""Also the name of the file."""
PAYLOAD_MAX = 4096
"""Bytes of a payload that a trace shows at most: the smallest ring must have room for several events."""
READ_MAX = 1 << 20
"""Bytes of the file of a trace in one response."""
RULE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
ADDRESS = re.compile(r"[0-9A-Fa-f:.]+")
"""Characters of an IPv4 or IPv6 address, without a zone."""

TraceName = Annotated[str, StringConstraints(pattern=TRACE_NAME)]
TraceType = Literal["clientid", "username", "topic", "ip_address", "ruleid"]


class OneTrace(Params):
    name: TraceName = argument("Name: a letter, then letters, digits, _ and -.")


class TraceStart(OneTrace):
    type: TraceType = argument("What the trace matches: clientid, username, topic, ip_address or ruleid.")
    value: Annotated[str, StringConstraints(min_length=1, max_length=65535)] = argument(
        "Client id, user name, topic filter, address or id of a rule."
    )
    start_at: int | None = Field(None, ge=0, le=TIME_MAX, description="Unix ms; by default now.")
    end_at: int | None = Field(None, ge=0, le=TIME_MAX, description="Unix ms; by default ten minutes after the start.")
    payload_encode: Literal["text", "hex", "hidden"] = Field("text", description="Encoding of payloads.")
    payload_limit: int = Field(1024, ge=0, le=PAYLOAD_MAX, description="Bytes of a payload that are shown.")
    formatter: Literal["text", "json"] = Field("text", description="Plain text, or a JSON object per line.")

    @model_validator(mode="after")
    def _fits(self) -> "TraceStart":
        if self.type == "ip_address":
            try:
                if not ADDRESS.fullmatch(self.value):
                    raise ValueError
                ip_address(self.value)
            except ValueError:
                raise ValueError(f"value: must be an IPv4 or IPv6 address, got {self.value!r}") from None
        if self.type == "ruleid" and not RULE_ID.fullmatch(self.value):
            raise ValueError(f"value: must be an id of a rule, got {self.value!r:.100}")
        now_ms = time.time_ns() // 1_000_000
        if self.end_at is not None and self.end_at <= max(self.start_at or 0, now_ms):
            raise ValueError(f"end_at: must be in the future and after start_at, got {self.end_at}")
        return self


class TraceRead(OneTrace):
    position: int = Field(0, ge=0, le=TIME_MAX, description="Offset in the file, in bytes.")
    bytes: int = Field(READ_MAX, ge=1, le=READ_MAX, description="Most bytes of one response.")


class CountedTopic(Params):
    topic: Annotated[str, StringConstraints(min_length=1, max_length=65535)] = argument("Topic or filter.")


class CountedTopics(Params):
    topic: str | None = argument("Topic or filter; by default all.", None)


class Loudest(Params):
    limit: int = Field(10, ge=1, le=100, description="Number of clients.")


class Alarms(Page):
    activated: bool = Field(True, description="Active alarms, or those that have ended.")


TRACE_COLUMNS = ("name", "type", "value", "status", "start_at", "end_at", "events", "lost", "log_size", "stopped_by")
COUNTED_COLUMNS = ("topic", "messages.in.count", "messages.in.rate", "messages.out.count", "messages.out.rate",
                   "messages.dropped.count")  # fmt: skip
LOUD_COLUMNS = ("clientid", "messages_in", "messages_out", "bytes_in", "bytes_out", "worker")

table(
    Verb("trace list", "Traces, the newest first.", columns=TRACE_COLUMNS),
    Verb("trace start", "Writes the events of a client, user, topic, address or rule to a file.", TraceStart, changes=True),
    Verb("trace stop", "Stops a trace; its file is kept.", OneTrace, changes=True),
    Verb("trace show", "One trace.", OneTrace),
    Verb("trace read", "A part of the file of a trace; `trace download` writes all of it.", TraceRead),
    Verb("trace delete", "Deletes a trace and its file.", OneTrace, changes=True,
         rest=(Rest("DELETE /trace/{name}", "Diagnose", "delete_trace", "nothing"),)),
    Verb("trace clear", "Deletes all traces and their files.", changes=True,
         rest=(Rest("DELETE /trace", "Diagnose", "clear_traces", "nothing"),)),
    Verb("slow-subs list", "The slowest deliveries, as `slow_subs.*` measures them.",
         columns=("clientid", "topic", "timespan", "last_update_at")),
    Verb("slow-subs clear", "Clears the list of slow subscriptions.", changes=True,
         rest=(Rest("DELETE /slow_subscriptions", "Diagnose", "clear_slow", "nothing"),)),
    Verb("topic-metrics list", "Counts and rates of each topic of `topic_metrics.topics`.", columns=COUNTED_COLUMNS),
    Verb("topic-metrics show", "Counts and rates of one topic.", CountedTopic),
    Verb("topic-metrics add", "Starts to count messages of a topic or filter.", CountedTopic, changes=True),
    Verb("topic-metrics delete", "Stops counting messages of a topic or filter.", CountedTopic, changes=True,
         rest=(Rest("DELETE /mqtt/topic_metrics/{topic:topic}", "Diagnose", "delete_counted", "nothing"),)),
    Verb("topic-metrics reset", "Resets the counts of a topic or of all.", CountedTopics, changes=True),
    Verb("clients loudest", "Clients with the highest message rates over the last two seconds.", Loudest, columns=LOUD_COLUMNS),
    Verb("alarms list", "Alarms, the newest first; `duration` is in ms.", Alarms,
         columns=("name", "activate_at", "deactivate_at", "message"),
         rest=(Rest("GET /alarms", "Diagnose", "alarms", "page", times=("activate_at", "deactivate_at")),)),
    Verb("alarms clear", "Deletes the alarms that have ended.", changes=True,
         rest=(Rest("DELETE /alarms", "Diagnose", "clear_alarms", "nothing"),)),
)  # fmt: skip
