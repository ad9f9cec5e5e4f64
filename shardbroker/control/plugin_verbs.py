"""Verbs of plugins and hooks."""

from typing import Annotated

from pydantic import Field, StringConstraints

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Params, Verb, argument, table

__all__ = ["OnePlugin", "PluginLoad"]

PluginName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class OnePlugin(Params):
    """A plugin."""

    name: PluginName = argument("Name of the plugin.")


class PluginLoad(OnePlugin):
    """A plugin with its settings."""

    setting: dict[str, str] = Field({}, description="Setting of the plugin, with precedence over `plugins.settings`.")


table(
    Verb("plugins list", "Plugins that are installed, with their state.",
         columns=("name", "state", "workers", "source", "problem"),
         rest=(Rest("GET /plugins", "Plugins", "list_plugins", "rows"),)),
    Verb("plugins load", "Loads or reloads a plugin in every worker and keeps it over restarts.", PluginLoad, changes=True),
    Verb("plugins unload", "Unloads a plugin in every worker.", OnePlugin, changes=True,
         rest=(Rest("PUT /plugins/{name}/stop", "Plugins", "stop"),)),
    Verb("hooks list", "Hook points with their callbacks in call order, and the cost of each over all workers.",
         columns=("point", "callback", "priority", "calls", "errors", "seconds", "slowest"),
         rest=(Rest("GET /hooks", "Plugins", "list_hooks", "rows"),)),
)  # fmt: skip
