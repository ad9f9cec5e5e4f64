"""Hooks, the places where external code takes part in the work of a worker: theory of operation.

    worker: if hooks & HOOK_...: --> worker/hook_dispatch.pyx --> Registry.fire() --> callback, callback, ... by priority
                                     MQTT objects converted       chain of responsibility
                                     to Python objects
    plugins.load(): a package or a file registers its callbacks, in every worker

`points` is the one table: each point's name, the arguments of its callbacks, the value that they may change, and the event.
`contract` has the objects that callbacks receive and return. `registry` holds and calls the chains of one worker; `plugins` finds,
loads and unloads plugins. The bits of the mask that the data plane tests are in `masks.pxd`, in the order of the table.

A callback runs in the worker, between two packets: it blocks this worker until it returns.
"""

from shardbroker.hooks.contract import Connection, Message, Refusal, SessionInfo, Subscription, ok, stop
from shardbroker.hooks.points import POINTS, Point

__all__ = ["POINTS", "Connection", "Message", "Point", "Refusal", "SessionInfo", "Subscription", "ok", "stop"]
