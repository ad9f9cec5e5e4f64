"""Verbs of ExHook servers: programs that receive hooks over gRPC."""

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Verb, table

__all__: list[str] = []

table(
    Verb("exhook list", "ExHook servers in the order in which they are called, with their state and counts of calls.",
         columns=("name", "status", "url", "failed_action", "succeeded", "failed", "dropped", "queued"),
         rest=(Rest("GET /exhooks", "ExHook", "list_servers", "rows"),)),
    Verb("exhook hooks", "Hook points of each ExHook server, with topics and counts of calls.",
         columns=("name", "hook", "topics", "succeeded", "failed", "dropped")),
)  # fmt: skip
