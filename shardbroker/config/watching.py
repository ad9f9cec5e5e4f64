"""What is looked at single messages for: traces, slow subscriptions, metrics of topics."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from shardbroker.config.base import LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.features import check_filters
from shardbroker.config.units import Allowed, Duration, Size, Whole

__all__ = ["SlowSubs", "TopicMetrics", "Trace"]

COUNTED_MAX = 512
"""Topics and filters with metrics, as in EMQX: each message is compared with every filter once."""


class Trace(Section):
    """Traces of clients, topics and addresses; docs/tracing.md."""

    max_traces: Annotated[Whole, Field(ge=1, le=30)] = Field(30, description="Traces that there may be, those that ended included.")
    max_file_size: Size = Field(128 << 20, ge=1 << 16, le=1 << 40, description="Of a trace's file; it ends with that.")


class SlowSubs(Section):
    """Which deliveries take longest; docs/tracing.md."""

    enable: bool = Field(False, description="Whether it is measured.")
    threshold: Duration = Field(0.5, ge=SHORTEST_S, le=LONGEST_WAIT_S, description="Least time that counts as slow.")
    expire_interval: Duration = Field(300.0, ge=1, le=LONGEST_WAIT_S, description="After which one that was slow is forgotten.")
    top_k_num: Whole = Field(10, ge=1, le=1000, description="How many are kept.")
    stats_type: Literal["whole", "internal", "response"] = Field(
        "whole",
        description="What is measured. whole: from the publish until the subscriber has it; internal: until it was sent; response: "
        "from then on.",
    )


class TopicMetrics(Section):
    """Messages counted by topic; docs/tracing.md."""

    topics: Annotated[list[str], Allowed(f'a list of up to {COUNTED_MAX} topics or filters, such as ["a/b", "c/#"]')] = Field(
        [], max_length=COUNTED_MAX, description="What is counted."
    )

    @field_validator("topics")
    @classmethod
    def _filters(cls, value: list[str]) -> list[str]:
        check_filters(value)
        if len(set(value)) < len(value):
            raise ValueError("a topic stands there twice")
        return value
