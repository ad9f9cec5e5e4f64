"""Discovery by DNS: where etcd is. It never decides membership."""

from contextlib import suppress

from dns import asyncresolver, resolver
from dns.exception import DNSException

from shardbroker.config.cluster import Cluster
from shardbroker.config.listeners import parse_address

__all__ = ["DiscoveryError", "discovered", "looked_up"]

LOOKUP_S = 5.0
"""Longest time of a look-up."""
ENDPOINTS_MAX = 16
"""Endpoints that are used of an answer."""
ETCD_PORT = 2379
"""Of etcd for clients, if a record has no port and nodes do not run it."""


class DiscoveryError(Exception):
    """DNS has no usable answer; the text is for the log."""


async def discovered(cluster: Cluster) -> list[str]:
    """Returns where etcd is by `cluster.dns`, without an order of their own. Raises DiscoveryError."""
    port = parse_address(cluster.core.bind)[1] if cluster.is_managed else ETCD_PORT
    found = await looked_up(cluster.dns.name, cluster.dns.record_type, port)
    is_secure = cluster.tls.enable if cluster.is_managed else bool(cluster.etcd.tls.cacertfile or cluster.etcd.tls.certfile)
    scheme = "https" if is_secure else "http"
    return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{number}" for host, number in found]


async def looked_up(name: str, record_type: str, port: int) -> list[tuple[str, int]]:
    """Returns hosts and ports, those of an SRV record in the order of their priorities. Raises DiscoveryError."""
    try:
        if record_type == "srv":
            records = sorted(await _asked(name, "SRV"), key=lambda one: (one.priority, -one.weight))
            found = [(one.target.to_text().rstrip("."), int(one.port)) for one in records]
        else:
            answers = []
            with suppress(resolver.NoAnswer):  # of one family alone
                answers += [*await _asked(name, "A")]
            with suppress(resolver.NoAnswer):
                answers += [*await _asked(name, "AAAA")]
            found = [(one.address, port) for one in answers]
    except (DNSException, OSError) as error:
        raise DiscoveryError(f"cluster.dns.name: {name}: {error or type(error).__name__}") from None
    usable = [(host, port) for host, port in dict.fromkeys(found) if host and 0 < port < 65536]
    if not usable:
        raise DiscoveryError(f"cluster.dns.name: {name} has no {record_type.upper()} record with an address")
    return usable[:ENDPOINTS_MAX]


async def _asked(name: str, kind: str) -> resolver.Answer:
    return await asyncresolver.resolve(name, kind, lifetime=LOOKUP_S, search=True)
