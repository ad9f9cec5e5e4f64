"""From a virtual environment to a service of the machine, and back.

`files/` is what lands on the machine beside the environment: units, sysusers, tmpfiles, sysctl, a commented configuration.
`placing` knows what comes where, with which owner and mode; `environment` copies the environment that this runs in; `installing`
puts the steps together, says each, and does what is not done yet.
"""

from shardbroker.deploy.installing import InstallError, Target, install, uninstall

__all__ = ["InstallError", "Target", "install", "uninstall"]
