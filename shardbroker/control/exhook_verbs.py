"""Verbs of programs that take part in hooks over gRPC."""

from shardbroker.control.rest import Rest
from shardbroker.control.verbs import Verb, table

__all__: list[str] = []

table(
    Verb("exhook list", "Programs that take part in hooks, in the order in which they are asked, and what became of calls.",
         columns=("name", "status", "url", "failed_action", "succeeded", "failed", "dropped", "queued"),
         rest=(Rest("GET /exhooks", "ExHook", "list_servers", "rows"),)),
    Verb("exhook hooks", "What those programs want, and what became of the calls of each hook point.",
         columns=("name", "hook", "topics", "succeeded", "failed", "dropped")),
)  # fmt: skip
