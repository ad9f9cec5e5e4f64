"""Preflight: loads what settings name, before the settings count.

The schema (`shardbroker.config`) checks each value by itself. `checks` goes further and makes what the values stand for: members of
chains with their libraries, TLS contexts, files of rules and passwords; and it compares addresses with each other. It connects to
no server: a database that is down is no wrong setting. All findings are reported at once.

`serve` and `config check` call it; the manager runs it as `python -m shardbroker.preflight`, since libraries of back ends and code
of modules have no place in its process. That is also why `findings` looks in a forked child.
"""

from shardbroker.preflight.checks import Finding, look
from shardbroker.preflight.child import check, findings

__all__ = ["Finding", "check", "findings", "look"]
