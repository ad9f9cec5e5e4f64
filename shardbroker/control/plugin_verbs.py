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
    """A plugin, and what it gets."""

    setting: dict[str, str] = Field({}, description="For the plugin, over what `plugins.settings` has for it.")


table(
    Verb("plugins list", "Plugins that are there, and which of them are loaded.",
         columns=("name", "state", "workers", "source", "problem"),
         rest=(Rest("GET /plugins", "Plugins", "list_plugins", "rows"),)),
    Verb("plugins load", "Loads a plugin in every worker, or loads it anew, and keeps it over restarts.", PluginLoad, changes=True),
    Verb("plugins unload", "Takes a plugin out of every worker.", OnePlugin, changes=True,
         rest=(Rest("PUT /plugins/{name}/stop", "Plugins", "stop"),)),
    Verb("hooks list", "Hook points, their callbacks in the order of calls, and what those have cost in all workers.",
         columns=("point", "callback", "priority", "calls", "errors", "seconds", "slowest"),
         rest=(Rest("GET /hooks", "Plugins", "list_hooks", "rows"),)),
)  # fmt: skip
