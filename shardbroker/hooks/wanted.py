"""The plugins to load after a restart: a file of the data directory, written by the manager, read by workers at their start.

    plugins.json     {"NAME": {"key": "text", ...}, ...}      in the order of loading, with the settings given to `plugins load`
"""

import json
from collections.abc import Mapping
from pathlib import Path

from shardbroker.hooks.plugins import NAME, PluginError
from shardbroker.stores.files import replace_file

__all__ = ["PLUGINS_FILE", "Wanted", "read_wanted", "write_wanted"]

PLUGINS_FILE = "plugins.json"
Wanted = dict[str, dict[str, str]]
"""Maps a name to settings."""


def read_wanted(data_dir: Path) -> Wanted:
    """Returns what write_wanted() has written. Raises PluginError."""
    path = data_dir / PLUGINS_FILE
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PluginError(f"{path}: cannot be read: {error}; remove it, and load the plugins again") from None
    if not isinstance(found, dict) or not all(NAME.fullmatch(name) and _texts(settings) for name, settings in found.items()):
        raise PluginError(f"{path}: not as the broker writes it; remove it, and load the plugins again")
    return found


def _texts(settings: object) -> bool:
    return isinstance(settings, dict) and all(isinstance(text, str) for text in settings.values())


def write_wanted(data_dir: Path, wanted: Mapping[str, Mapping[str, str]]) -> None:
    """Writes the plugins to load, mode 0600: settings may contain secrets. Raises PluginError; then the file is unchanged."""
    path = data_dir / PLUGINS_FILE
    try:
        replace_file(path, json.dumps(wanted, indent=1).encode())
    except OSError as error:
        raise PluginError(f"{path}: {error.strerror}") from None
