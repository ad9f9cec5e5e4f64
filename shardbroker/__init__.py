"""shardbroker: a sharded MQTT broker. See README.md for a map of the sources."""

__all__ = ["__version__"]

__version__ = "0.1.0"
