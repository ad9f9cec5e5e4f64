"""The control channel: what may be asked of a running broker, and how: theory of operation.

    ctl, REST process  -- unix socket <data_dir>/ctl.sock, CBOR -->  manager  -- ring, CBOR -->  workers
                                                                        \\-- counters, registry, routes: shared memory

`verbs` is the one table: name, parameters with their types, who may use it, how its result looks as a table. The command line, the
manager's handlers and docs/ctl.md derive from it. `protocol` frames requests and answers, `client` asks, `errors` lists the codes.

A request is one verb with its parameters. Its answer is a result, or an error with a code; a verb that streams sends items first.
Lists are paged by an opaque cursor: no answer holds more than a page, and the broker remembers nothing between two of them.
"""

from shardbroker.control import (  # noqa: F401 - add their verbs to the table
    access_verbs,
    account_verbs,
    exhook_verbs,
    feature_verbs,
    plugin_verbs,
    watch_verbs,
)
from shardbroker.control.async_client import AsyncControl
from shardbroker.control.client import Control
from shardbroker.control.errors import ControlError
from shardbroker.control.verbs import VERBS, Verb

__all__ = ["VERBS", "AsyncControl", "Control", "ControlError", "Verb"]
