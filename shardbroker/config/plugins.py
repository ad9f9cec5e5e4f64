"""Keys of plugins."""

from typing import Annotated

from pydantic import Field

from shardbroker.config.base import Section
from shardbroker.config.units import Allowed, Secret

__all__ = ["PluginSettings"]


class PluginSettings(Section):
    """Code of third parties that runs in the workers; docs/plugins.md. `ctl plugins load` loads a plugin."""

    dir: Annotated[str, Allowed("a path")] = Field(
        "", description="Directory of plugins that are not installed packages: NAME.py or NAME/__init__.py; empty: none."
    )
    settings: Annotated[dict[str, Secret], Allowed("a table of text = text")] = Field(
        {}, description="Settings that a plugin gets when it is loaded: `name.key` = text."
    )
