"""Verbs that look at single messages and clients: traces, slow subscriptions, metrics of topics; and alarms."""

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
"""It is the name of a file, too."""
PAYLOAD_MAX = 4096
"""Bytes of a payload that a trace may show: an event must fit into the smallest ring several times."""
READ_MAX = 1 << 20
"""Bytes of a trace's file in one answer."""
ADDRESS = re.compile(r"[0-9A-Fa-f:.]+")
"""What an IPv4 or IPv6 address is made of: no name of an interface behind it."""

TraceName = Annotated[str, StringConstraints(pattern=TRACE_NAME)]
TraceType = Literal["clientid", "username", "topic", "ip_address"]


class OneTrace(Params):
    name: TraceName = argument("Name: a letter, then letters, digits, _ and -.")


class TraceStart(OneTrace):
    type: TraceType = argument("What it looks for: clientid, username, topic or ip_address.")
    value: Annotated[str, StringConstraints(min_length=1, max_length=65535)] = argument(
        "The client id, the user name, the topic filter or the address."
    )
    start_at: int | None = Field(None, ge=0, le=TIME_MAX, description="Unix ms; without, now.")
    end_at: int | None = Field(None, ge=0, le=TIME_MAX, description="Unix ms; without, ten minutes after its start.")
    payload_encode: Literal["text", "hex", "hidden"] = Field("text", description="How payloads are shown.")
    payload_limit: int = Field(1024, ge=0, le=PAYLOAD_MAX, description="Bytes of a payload that are shown.")
    formatter: Literal["text", "json"] = Field("text", description="Lines for people, or a JSON object in each.")

    @model_validator(mode="after")
    def _fits(self) -> "TraceStart":
        if self.type == "ip_address":
            try:
                if not ADDRESS.fullmatch(self.value):
                    raise ValueError
                ip_address(self.value)
            except ValueError:
                raise ValueError(f"value: allowed is an IPv4 or IPv6 address, not {self.value!r}") from None
        now_ms = time.time_ns() // 1_000_000
        if self.end_at is not None and self.end_at <= max(self.start_at or 0, now_ms):
            raise ValueError("end_at: allowed is a time to come, behind start_at")
        return self


class TraceRead(OneTrace):
    position: int = Field(0, ge=0, le=TIME_MAX, description="Byte of the file to begin at.")
    bytes: int = Field(READ_MAX, ge=1, le=READ_MAX, description="Most bytes of one answer.")


class CountedTopic(Params):
    topic: Annotated[str, StringConstraints(min_length=1, max_length=65535)] = argument("Topic or filter.")


class CountedTopics(Params):
    topic: str | None = argument("Topic or filter; without one, all.", None)


class Loudest(Params):
    limit: int = Field(10, ge=1, le=100, description="How many clients.")


class Alarms(Page):
    activated: bool = Field(True, description="Those that last, or those that are over.")


TRACE_COLUMNS = ("name", "type", "value", "status", "start_at", "end_at", "events", "lost", "log_size", "stopped_by")
COUNTED_COLUMNS = ("topic", "messages.in.count", "messages.in.rate", "messages.out.count", "messages.out.rate",
                   "messages.dropped.count")  # fmt: skip
LOUD_COLUMNS = ("clientid", "messages_in", "messages_out", "bytes_in", "bytes_out", "worker")

table(
    Verb("trace list", "Traces, the newest first.", columns=TRACE_COLUMNS),
    Verb("trace start", "Writes what happens to a client, a user, a topic or an address into a file.", TraceStart, changes=True),
    Verb("trace stop", "Ends a trace; its file stays.", OneTrace, changes=True),
    Verb("trace show", "One trace.", OneTrace),
    Verb("trace read", "A part of a trace's file; `trace download` writes all of it.", TraceRead),
    Verb("trace delete", "Deletes a trace and its file.", OneTrace, changes=True,
         rest=(Rest("DELETE /trace/{name}", "Diagnose", "delete_trace", "nothing"),)),
    Verb("trace clear", "Deletes all traces and their files.", changes=True,
         rest=(Rest("DELETE /trace", "Diagnose", "clear_traces", "nothing"),)),
    Verb("slow-subs list", "The slowest deliveries, as `slow_subs.*` measures them.",
         columns=("clientid", "topic", "timespan", "last_update_at")),
    Verb("slow-subs clear", "Clears the list of slow subscriptions.", changes=True,
         rest=(Rest("DELETE /slow_subscriptions", "Diagnose", "clear_slow", "nothing"),)),
    Verb("topic-metrics list", "What was counted of each topic of `topic_metrics.topics`.", columns=COUNTED_COLUMNS),
    Verb("topic-metrics show", "All that was counted of one topic.", CountedTopic),
    Verb("topic-metrics add", "Counts messages of a topic or filter from now on.", CountedTopic, changes=True),
    Verb("topic-metrics delete", "Stops counting messages of a topic or filter.", CountedTopic, changes=True,
         rest=(Rest("DELETE /mqtt/topic_metrics/{topic:topic}", "Diagnose", "delete_counted", "nothing"),)),
    Verb("topic-metrics reset", "Begins at 0 again.", CountedTopics, changes=True),
    Verb("clients loudest", "Clients with most messages a second, over the last two seconds.", Loudest, columns=LOUD_COLUMNS),
    Verb("alarms list", "Alarms, the newest first; `duration` is in ms.", Alarms,
         columns=("name", "activate_at", "deactivate_at", "message"),
         rest=(Rest("GET /alarms", "Diagnose", "alarms", "page", times=("activate_at", "deactivate_at")),)),
    Verb("alarms clear", "Deletes the alarms that are over.", changes=True,
         rest=(Rest("DELETE /alarms", "Diagnose", "clear_alarms", "nothing"),)),
)  # fmt: skip
