"""Look-ups in DNS, by which a node finds etcd."""

from contextlib import suppress

from dns import asyncresolver, resolver
from dns.exception import DNSException

__all__ = ["ENDPOINTS_MAX", "LOOKUP_S", "DiscoveryError", "looked_up"]

LOOKUP_S = 5.0
"""Longest time of a look-up."""
ENDPOINTS_MAX = 16
"""Endpoints that are used of an answer."""


class DiscoveryError(Exception):
    """There is no usable answer; the text is for the log."""


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
