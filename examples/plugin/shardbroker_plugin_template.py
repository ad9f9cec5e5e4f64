"""A plugin template: it marks messages below a topic, refuses others, and counts connects. docs/plugins.md explains it."""

from typing import Any

from shardbroker.access.contract import Client
from shardbroker.hooks import Connection, Message, ok, stop
from shardbroker.hooks.contract import Outcome
from shardbroker.hooks.plugins import Plugin


class Marker:
    """The plugin's state, one object in each worker, from load() to the end of the plugin."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._below = plugin.settings.get("below", "marked/")
        self._mark = plugin.settings.get("mark", "seen")
        self._largest = int(plugin.settings.get("largest", "1000"))  # raises ValueError, and the plugin is then not loaded
        self._connected = 0

    def on_connected(self, client: Client, connection: Connection) -> None:
        self._connected += 1

    def on_publish(self, message: Message) -> Outcome | None:
        if not message.topic.startswith(self._below):
            return None
        if len(message.payload) > self._largest:
            return stop(message.drop())
        marks: list[Any] = [*message.properties.get("user_property", []), ("mark", self._mark)]
        return ok(message.replace(properties={**message.properties, "user_property": marks}))

    def on_unload(self) -> None:
        self._plugin.log("info", f"{self._connected} clients came to worker {self._plugin.worker}")


def load(plugin: Plugin) -> None:
    """Registers the callbacks. Called once in each worker."""
    marker = Marker(plugin)
    plugin.hook("client.connected", marker.on_connected)
    plugin.hook("message.publish", marker.on_publish, priority=600)
    plugin.on_unload(marker.on_unload)
