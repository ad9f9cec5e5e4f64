"""Keys of the type `disk_log`."""

from typing import Annotated, Literal

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.sinks.base import ActionSection, ConnectorSection
from shardbroker.config.units import Allowed, Size, Whole

__all__ = ["DiskLogAction", "DiskLogConnector", "DiskLogParameters"]


class DiskLogConnector(ConnectorSection):
    """A file of the broker's machine."""

    filepath: Annotated[str, Allowed("a path")] = Field(
        "", max_length=4096, description="The file; a relative path is one below `disk_log` in the data directory."
    )
    max_file_size: Size = Field(10 << 20, ge=1 << 10, le=1 << 40, description="Size from which on the file becomes `<filepath>.1`.")
    max_file_number: Whole = Field(10, ge=1, le=1000, description="Most files, the present one included; the oldest is removed.")


class DiskLogParameters(Section):
    """The line of a row."""

    template: Annotated[str, Allowed("a template such as ${clientid} ${payload}")] = Field(
        "", max_length=65536, description="The line; empty: the row as JSON, with its `position`."
    )
    write_mode: Literal["sync", "async"] = Field(
        "async", description="sync: a batch is on the disk before the next is written; async: within a second."
    )


class DiskLogAction(ActionSection):
    """Lines of a file, one for each row."""

    parameters: DiskLogParameters = DiskLogParameters()
