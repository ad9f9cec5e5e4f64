"""Installation of a virtual environment as a service of the machine, and its removal.

`files/` has what is installed besides the environment: units, sysusers, tmpfiles, sysctl, a commented configuration.
`install_layout` defines their places, owners and modes; `environment` copies the current environment; `installing` runs the steps,
prints each, and skips those that are already done. `backup` saves the state of a broker, also for another machine.
"""

from shardbroker.deploy.backup import BackupError, backup, restore
from shardbroker.deploy.installing import InstallError, Target, install, uninstall

__all__ = ["BackupError", "InstallError", "Target", "backup", "install", "restore", "uninstall"]
