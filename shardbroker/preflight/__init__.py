"""Preflight: loads what settings name, before the settings take effect.

The schema (`shardbroker.config`) checks each value by itself. `checks` builds the objects that the values describe: members of
chains with their libraries, TLS contexts, files of rules and passwords. It also compares addresses with each other. It connects to
no server: a database that is down is not an invalid setting. All findings are reported together.

`serve` and `config check` call it; the manager runs it as `python -m shardbroker.preflight`, since libraries of back ends and code
of modules must not be loaded into its process. For the same reason `findings` runs the checks in a forked child.
"""

from shardbroker.preflight.checks import Finding, look
from shardbroker.preflight.child import check, findings, usable

__all__ = ["Finding", "check", "findings", "look", "usable"]
