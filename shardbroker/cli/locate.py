"""Finds the broker for a command: the one that is named, the one that runs here, or the service of the machine."""

import os
from pathlib import Path

from shardbroker.config import load
from shardbroker.control.protocol import SOCKET_NAME
from shardbroker.deploy.install_layout import CONFIGURATION

__all__ = ["running_data_dir"]

NOTHING: dict[tuple[str, ...], object] = {}


def running_data_dir(data_dir: Path | None, config: Path | None) -> Path:
    """Returns the data directory of the broker. Raises ConfigError."""
    if data_dir is not None:
        return data_dir
    # Runtime settings do not contain that path, and may be what prevents a start of the broker.
    found = load(config, os.environ, kept=NOTHING).settings.process.data_dir
    service = Path(CONFIGURATION)
    # Missing rights for the directory are reported by the later attempt to connect.
    if config is None and not (found / SOCKET_NAME).exists() and service.parent.is_dir():
        return load(service, os.environ, kept=NOTHING).settings.process.data_dir
    return found
