"""Configuration: one typed schema, read from several sources, shown with where each value came from.

`settings` is the one table of keys (types, defaults, bounds, meanings); everything else is derived from it. `units` reads and
writes durations and sizes. `keys` walks the schema: which keys there are, what each allows, how a value is written. `sources`
lays the sources over each other, keyed by path, and keeps for each value where it came from; the result is checked as a whole,
and `errors` turns what does not fit into lines that name key, value, source and what is allowed. `show` prints the effective
values as TOML, and the reference page. `machine` knows what shares are shares of.
"""

from shardbroker.config.errors import ConfigError
from shardbroker.config.machine import machine_memory
from shardbroker.config.settings import Settings
from shardbroker.config.show import reference, show
from shardbroker.config.sources import Loaded, load
from shardbroker.config.units import mark_bytes

__all__ = ["ConfigError", "Loaded", "Settings", "load", "machine_memory", "mark_bytes", "reference", "show"]
