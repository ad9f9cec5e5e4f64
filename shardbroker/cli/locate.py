"""The broker that a command talks to: the one that is named, the one that runs here, or the service of the machine."""

import os
from pathlib import Path

from shardbroker.config import load
from shardbroker.control.protocol import SOCKET_NAME
from shardbroker.deploy.install_layout import CONFIGURATION

__all__ = ["running_data_dir"]

NOTHING: dict[tuple[str, ...], object] = {}


def running_data_dir(data_dir: Path | None, config: Path | None) -> Path:
    """Its data directory. Raises ConfigError."""
    if data_dir is not None:
        return data_dir
    # What was set while the broker ran does not say where that is, and may be what keeps the broker from starting.
    found = load(config, os.environ, kept=NOTHING).settings.process.data_dir
    service = Path(CONFIGURATION)
    # Whoever may not look into the directory is told so by the attempt.
    if config is None and not (found / SOCKET_NAME).exists() and service.parent.is_dir():
        return load(service, os.environ, kept=NOTHING).settings.process.data_dir
    return found
