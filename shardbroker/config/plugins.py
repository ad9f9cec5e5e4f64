"""The schema of plugins."""

from typing import Annotated

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.units import Allowed, Secret

__all__ = ["PluginSettings"]


class PluginSettings(Section):
    """Code of others that runs in the workers; docs/plugins.md. `ctl plugins load` says which of them are loaded."""

    dir: Annotated[str, Allowed("a path")] = Field(
        "", description="Where plugins are looked for beside installed packages: NAME.py or NAME/__init__.py in it; empty: nowhere."
    )
    settings: Annotated[dict[str, Secret], Allowed("a table of text = text")] = Field(
        {}, description="Given to plugins when they are loaded: `name.key` = text."
    )
