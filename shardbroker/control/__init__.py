"""The control channel, which inspects and changes a running broker: theory of operation.

    ctl, REST process  -- unix socket <data_dir>/ctl.sock, CBOR -->  manager  -- ring, CBOR -->  workers
                                                                        \\-- counters, registry, routes: shared memory

`verbs` and the `*_verbs` modules are the one table: name, typed parameters, whether the verb changes the broker, columns of its
result, routes of the REST API (`rest`). The command line, the checks of the manager, the derived routes and docs/ctl.md follow from
it. `protocol` frames requests and responses, `client` and `async_client` send them, `errors` lists the codes.

A request is one verb with its parameters. The response is a result, or an error with a code; a verb that streams sends items first.
Lists are paged by an opaque cursor: a response holds one page at most, and the broker keeps no state between pages.
"""

from shardbroker.control import (  # noqa: F401 - add their verbs to the table
    access_verbs,
    account_verbs,
    chain_verbs,
    cluster_verbs,
    data_verbs,
    exhook_verbs,
    feature_verbs,
    gateway_verbs,
    persistence_verbs,
    plugin_verbs,
    rule_verbs,
    sink_verbs,
    stream_verbs,
    upgrade_verbs,
    watch_verbs,
)
from shardbroker.control.async_client import AsyncControl
from shardbroker.control.client import Control
from shardbroker.control.errors import ControlError
from shardbroker.control.verbs import VERBS, Verb

__all__ = ["VERBS", "AsyncControl", "Control", "ControlError", "Verb"]
