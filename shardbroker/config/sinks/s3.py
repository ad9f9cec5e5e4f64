"""Keys of the type `s3`."""

from typing import Annotated, Literal

from pydantic import Field

from shardbroker.config.base import LONGEST_WAIT_S, Section
from shardbroker.config.connectors import S3Connection
from shardbroker.config.sinks.base import BATCH_MAX, ActionSection, ConnectorSection
from shardbroker.config.units import Allowed, Duration, Size, Whole

__all__ = ["S3Action", "S3Aggregation", "S3Connector", "S3Container", "S3Parameters"]

COLUMNS_MAX = 1024
"""Most columns of a CSV file."""

Columns = Annotated[list[str], Allowed('a list of fields of the row, such as ["clientid", "temp"]')]


class S3Connector(ConnectorSection, S3Connection):
    """S3 of AWS, or a server with its API."""


class S3Container(Section):
    """The format of an aggregated object."""

    type: Literal["json_lines", "csv"] = Field("json_lines", description="A line of JSON, or of CSV, for each row.")
    column_order: Columns = Field([], max_length=COLUMNS_MAX, description="The columns of CSV, in this order; required for `csv`.")


class S3Aggregation(Section):
    """When an aggregated object is written: whichever comes first, of rows of one journal."""

    time_interval: Duration = Field(300.0, ge=0.1, le=LONGEST_WAIT_S, description="Longest wait of a row for others.")
    max_records: Whole = Field(10_000, ge=1, le=BATCH_MAX, description="Most rows of an object.")
    max_bytes: Size = Field(8 << 20, ge=1 << 16, le=1 << 30, description="Memory of its rows, estimated.")


class S3Parameters(Section):
    """Objects of a bucket."""

    mode: Literal["direct", "aggregated"] = Field("direct", description="An object for each row, or for many.")
    bucket: str = Field("", max_length=255, description="Name of the bucket.")
    key: Annotated[str, Allowed("a template such as ${clientid}/${id}.json")] = Field(
        "",
        max_length=1024,
        description="Key of the object; aggregated: its first part, with ${action} and ${node}; the journal and positions follow.",
    )
    content: Annotated[str, Allowed('a template such as {"t": ${payload.t}}')] = Field(
        "", max_length=65536, description="Content of a direct object; empty: the row as JSON."
    )
    acl: Literal[
        "", "private", "public_read", "public_read_write", "authenticated_read", "bucket_owner_read", "bucket_owner_full_control"
    ] = Field("", description="Access to the object; empty: that of the bucket.")
    compression: Literal["none", "gzip"] = Field("none", description="Compression of objects.")
    container: S3Container = S3Container()
    aggregation: S3Aggregation = S3Aggregation()

    @property
    def exactly_once(self) -> bool:
        """Whether names of objects have the positions of their rows."""
        return self.mode == "aggregated"


class S3Action(ActionSection):
    """An object for each row, or one for many rows."""

    parameters: S3Parameters = S3Parameters()
