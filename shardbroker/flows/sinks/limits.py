"""The limits of an action."""

from dataclasses import dataclass
from math import inf

from shardbroker.connectors.connector import RETRY_MAX_S, RETRY_MIN_S

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """`resource_opts` of an action."""

    lanes: int = 4
    inflight_window: int = 1
    batch_size: int = 1000
    batch_bytes: int = 1 << 20
    batch_time_s: float = 0.0
    buffer_records: int = 10_000
    buffer_bytes: int = 16 << 20
    request_ttl_s: float = inf
    health_check_s: float = 15.0
    retry_min_s: float = RETRY_MIN_S
    retry_max_s: float = RETRY_MAX_S
    """Limits of the delay between attempts to reach the server."""
    by_journal: bool = False
    """One lane for each journal with one batch under way, whose cursor the sink stores."""
