"""Discovery by DNS or Kubernetes: where etcd is. It never decides membership."""

from shardbroker.config.cluster import Cluster
from shardbroker.config.listeners import parse_address
from shardbroker.membership.discovery import ENDPOINTS_MAX, DiscoveryError, looked_up

__all__ = ["discovered"]

ETCD_PORT = 2379
"""Of etcd for clients, if a record has no port and nodes do not run it."""


async def discovered(cluster: Cluster) -> list[str]:
    """Returns where etcd is by `cluster.dns` or `cluster.k8s`. Raises DiscoveryError."""
    port = parse_address(cluster.core.bind)[1] if cluster.is_managed else ETCD_PORT
    if cluster.discovery == "k8s":
        from shardbroker.membership.kubernetes import pods

        found = [(host, port) for host in (await pods(cluster.k8s))[:ENDPOINTS_MAX]]
        if not found:
            raise DiscoveryError(f"cluster.k8s: service {cluster.k8s.service_name} has no pod with an address")
    else:
        found = await looked_up(cluster.dns.name, cluster.dns.record_type, port)
    is_secure = cluster.tls.enable if cluster.is_managed else bool(cluster.etcd.tls.cacertfile or cluster.etcd.tls.certfile)
    scheme = "https" if is_secure else "http"
    return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{number}" for host, number in found]
