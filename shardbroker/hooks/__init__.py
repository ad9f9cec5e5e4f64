"""Hooks: where code of others takes part in what a worker does: theory of operation.

    worker: if hooks & HOOK_...: --> worker/hook_dispatch.pyx --> Registry.fire() --> callback, callback, ... by priority
                                     what MQTT has,        chain of responsibility
                                     as Python objects
    plugins.load(): a package or a file registers its callbacks, in every worker

`points` is the one table: each point's name, what its callbacks get, what they may change, and when it is fired. `contract` has the
objects that callbacks get, and what they return. `registry` holds the chains of one worker and calls them; `plugins` finds plugins,
loads and unloads them. The bits of the mask that the data plane tests stand in `masks.pxd`, in the order of the table.

A callback runs in the worker, between two packets: until it returns nothing else of this worker goes on.
"""

from shardbroker.hooks.contract import Connection, Message, Refusal, SessionInfo, Subscription, ok, stop
from shardbroker.hooks.points import POINTS, Point

__all__ = ["POINTS", "Connection", "Message", "Point", "Refusal", "SessionInfo", "Subscription", "ok", "stop"]
