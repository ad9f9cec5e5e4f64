"""Keys of the features that observe single messages: traces, slow subscriptions, metrics of topics."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from shardbroker.config.base import LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.features import check_filters
from shardbroker.config.units import Allowed, Duration, Size, Whole

__all__ = ["SlowSubs", "TopicMetrics", "Trace"]

COUNTED_MAX = 512
"""Most topics and filters with metrics, as in EMQX: each message is compared with every filter once."""


class Trace(Section):
    """Traces of clients, topics and addresses; docs/tracing.md."""

    max_traces: Annotated[Whole, Field(ge=1, le=30)] = Field(30, description="Most traces, including those that have ended.")
    max_file_size: Size = Field(
        128 << 20, ge=1 << 16, le=1 << 40, description="Size of the file of a trace at which the trace ends."
    )


class SlowSubs(Section):
    """The slowest deliveries; docs/tracing.md."""

    enable: bool = Field(False, description="Whether deliveries are measured.")
    threshold: Duration = Field(0.5, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Shortest time that counts as slow.")
    expire_interval: Duration = Field(
        300.0, ge=1, le=LONGEST_WAIT_S, description="Time after which a slow delivery is removed from the list."
    )
    top_k_num: Whole = Field(10, ge=1, le=1000, description="Length of the list.")
    stats_type: Literal["whole", "internal", "response"] = Field(
        "whole",
        description="What is measured. whole: from the publish until the delivery is complete; internal: until the message is "
        "sent; response: from then on.",
    )


class TopicMetrics(Section):
    """Messages counted by topic; docs/tracing.md."""

    topics: Annotated[list[str], Allowed(f'a list of up to {COUNTED_MAX} topics or filters, such as ["a/b", "c/#"]')] = Field(
        [], max_length=COUNTED_MAX, description="Topics and topic filters whose messages are counted."
    )

    @field_validator("topics")
    @classmethod
    def _filters(cls, value: list[str]) -> list[str]:
        check_filters(value)
        if len(set(value)) < len(value):
            raise ValueError("a topic is listed twice")
        return value
