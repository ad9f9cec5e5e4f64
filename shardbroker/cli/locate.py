"""Finds the broker for a command: the one that is named, the one that runs here, or the service of the machine."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from shardbroker.config import load
from shardbroker.config.cluster_values import NO_VALUES
from shardbroker.control import Control
from shardbroker.control.protocol import SOCKET_NAME
from shardbroker.deploy.install_layout import CONFIGURATION

__all__ = ["Target", "running_data_dir"]

NOTHING: dict[tuple[str, ...], object] = {}


class Target(NamedTuple):
    """The broker that a command of `ctl` is for: `obj` of its click context."""

    find_data_dir: Callable[[], Path]
    """Of the broker on this machine. Raises ConfigError."""
    as_json: bool
    node: str = ""
    """Node of the cluster that the broker on this machine is to ask; empty: none."""

    def connect(self, of_all_nodes: bool = False) -> Control:
        """Raises ConfigError, ControlError."""
        return Control(self.find_data_dir(), by=f"ctl:{os.getuid()}", at_node=self.node, of_all_nodes=of_all_nodes)

    def here(self) -> Path:
        """Returns the data directory, for a command that needs files or processes of its broker. Raises ConfigError, UsageError."""
        if self.node:
            raise click.UsageError(f"--node: must not be given here; run this command on {self.node}")
        return self.find_data_dir()


def running_data_dir(data_dir: Path | None, config: Path | None) -> Path:
    """Returns the data directory of the broker. Raises ConfigError."""
    if data_dir is not None:
        return data_dir
    # Runtime settings do not contain that path, and may be what prevents a start of the broker.
    found = load(config, os.environ, kept=NOTHING, cluster=NO_VALUES).settings.process.data_dir
    service = Path(CONFIGURATION)
    # Missing rights for the directory are reported by the later attempt to connect.
    if config is None and not (found / SOCKET_NAME).exists() and service.parent.is_dir():
        return load(service, os.environ, kept=NOTHING, cluster=NO_VALUES).settings.process.data_dir
    return found
