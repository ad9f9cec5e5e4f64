"""Keys that connectors, actions and sources of all types share. Names are EMQX's."""

from math import inf
from typing import Annotated, Any

from pydantic import Field

from shardbroker.config.base import LONGEST_WAIT_S, SHORTEST_S, Section
from shardbroker.config.units import Allowed, Duration, Size, Whole

__all__ = ["NAME", "PRESETS", "ActionSection", "ConnectorSection", "Described", "ResourceOptions", "SourceOptions", "SourceSection"]

NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
"""Names of connectors, actions and sources."""
PRESETS = "persistence-"
"""Start of the names of all that the presets `persistence.<db>` make; no rule, connector or action of a user begins with it."""
LANES_MAX = 1024
"""Most lanes of an action: each has a batch of its own in memory."""
BATCH_MAX = 100_000
"""Most rows of a batch."""

Tags = Annotated[list[str], Allowed('a list of text, such as ["plant 1"]')]


class Described(Section):
    """What people note about a connector, an action or a source."""

    enable: bool = Field(True, description="Whether it is used.")
    description: str = Field("", max_length=4096, description="What it is for.")
    tags: Tags = Field([], max_length=64, description="Words to find it by.")


class ConnectorSection(Described):
    """What connectors of all types have."""


class ResourceOptions(Section):
    """How rows of an action are buffered, batched and written."""

    worker_pool_size: Whole = Field(
        4,
        ge=1,
        le=LANES_MAX,
        description="Lanes by client id, which do not wait for each other: rows of one client keep their order.",
    )
    inflight_window: Whole = Field(1, ge=1, le=1024, description="Batches of a lane under way; order is kept with 1 only.")
    batch_size: Whole = Field(1000, ge=1, le=BATCH_MAX, description="Most rows of a batch.")
    batch_time: Duration = Field(
        0.0, ge=0, le=LONGEST_WAIT_S, description="How long rows wait for others; 0s: what came while the last batch was under way."
    )
    buffer_records: Whole = Field(
        10_000, ge=1, le=10_000_000, description="Rows of an action in memory; above it they are read from the journal again."
    )
    buffer_bytes: Size = Field(16 << 20, ge=1 << 16, le=1 << 34, description="Their bytes, estimated.")
    max_buffer_bytes: Size = Field(
        1 << 30,
        ge=1 << 20,
        le=1 << 44,
        description="Bytes of each journal kept for the action; then the oldest rows are dropped.",
    )
    request_ttl: Duration = Field(inf, ge=SHORTEST_S, description="Age above which a row is dropped instead of written.")
    health_check_interval: Duration = Field(15.0, ge=0.1, le=LONGEST_WAIT_S, description="Time between two probes of the server.")


class ActionSection(Described):
    """What actions of all types have."""

    connector: str = Field("", max_length=64, description="Name of the connector of the same type.")
    fallback_actions: Annotated[list[Any], Allowed('a list of `type:name`, such as ["disk_log:failed"]')] = Field(
        [], description="Actions that get the rows that the server rejects for good."
    )
    resource_opts: ResourceOptions = ResourceOptions()


class SourceOptions(Section):
    """How the server of a source is watched."""

    health_check_interval: Duration = Field(15.0, ge=0.1, le=LONGEST_WAIT_S, description="Time between two probes of the server.")


class SourceSection(Described):
    """What sources of all types have."""

    connector: str = Field("", max_length=64, description="Name of the connector of the same type.")
    resource_opts: SourceOptions = SourceOptions()
