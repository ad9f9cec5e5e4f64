"""Configuration: one typed schema (`settings`), read from several sources (`sources`), shown with where each value came from."""

from shardbroker.config.settings import Settings
from shardbroker.config.show import reference, show
from shardbroker.config.sources import ConfigError, Loaded, load

__all__ = ["ConfigError", "Loaded", "Settings", "load", "reference", "show"]
