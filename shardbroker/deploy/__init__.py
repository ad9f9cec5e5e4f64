"""From a virtual environment to a service of the machine, and back.

`files/` is what lands on the machine beside the environment: units, sysusers, tmpfiles, sysctl, a commented configuration.
`placing` knows what comes where, with which owner and mode; `environment` copies the environment that this runs in; `installing`
puts the steps together, says each, and does what is not done yet. `backup` takes a broker's state along, to another machine too.
"""

from shardbroker.deploy.backup import BackupError, backup, restore
from shardbroker.deploy.installing import InstallError, Target, install, uninstall

__all__ = ["BackupError", "InstallError", "Target", "backup", "install", "restore", "uninstall"]
