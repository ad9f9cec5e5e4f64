"""Warnings about a configuration that is open to other machines without a password or without TLS, logged at the start."""

from collections.abc import Iterable, Iterator
from ipaddress import ip_address

from shardbroker.config.cluster import core_members
from shardbroker.config.gateways import DatagramListener, GatewayListener, outer_listeners
from shardbroker.config.listeners import Listener, parse_address, unix_path
from shardbroker.config.settings import Settings

__all__ = ["anonymous_listeners", "exposures", "is_public", "needed_logins"]

AnyListener = Listener | GatewayListener | DatagramListener


def exposures(settings: Settings, listeners: Iterable[tuple[str, Listener]]) -> Iterator[str]:
    """Yields one log line for each kind of exposure."""
    anonymous = ",".join(f"{name}={listener.bind}" for name, listener in anonymous_listeners(settings, listeners))
    if anonymous:
        yield f"clients of other machines connect without authentication {anonymous}; set auth.chain, or bind to 127.0.0.1"
    if is_public(settings.api.address or "disabled") and not settings.api.certfile:
        yield (
            f"passwords of dashboard and REST API travel in clear text api.bind={settings.api.bind}; set api.certfile, or bind to "
            "127.0.0.1"
        )
    if is_public(settings.prometheus.bind):
        yield f"metrics can be read from other machines prometheus.bind={settings.prometheus.bind}; bind to 127.0.0.1"
    if settings.cluster.enable and is_public(settings.cluster.link_bind) and not settings.cluster.tls.enable:
        yield (
            f"messages between nodes travel in clear text cluster.link.bind={settings.cluster.link_bind}; set cluster.tls, or use "
            "a network of the nodes alone"
        )
    is_core = settings.cluster.is_managed and settings.node.name in {one.name for one in core_members(settings.cluster)}
    if is_core and is_public(settings.cluster.core.bind) and not settings.cluster.tls.enable:
        yield (
            f"other machines can change the members of the cluster cluster.core.bind={settings.cluster.core.bind}; set "
            "cluster.tls, or use a network of the nodes alone"
        )
    clear = [one for one in settings.cluster.etcd.endpoints if one.startswith("http://") and is_public(one.removeprefix("http://"))]
    if settings.cluster.has_core and clear:
        yield (
            f"members and the password of etcd travel in clear text cluster.etcd.endpoints={','.join(clear)}; use https, or a "
            "network of the nodes alone"
        )
    exproto = settings.gateways.exproto
    if exproto.enable and is_public(exproto.server.bind) and not exproto.server.knows_programs:
        yield (
            f"programs of other machines can act as any device gateways.exproto.server.bind={exproto.server.bind}; set "
            "ssl_options.cacertfile, or bind to 127.0.0.1"
        )


def anonymous_listeners(
    settings: Settings, listeners: Iterable[tuple[str, Listener]]
) -> Iterator[tuple[str, AnyListener]]:
    """Yields listeners with a public address, those of gateways too, whose clients need neither a password nor a certificate.
    Plugins and programs behind hooks, which may also reject clients, are not considered."""
    found: list[tuple[str, AnyListener, list[str]]] = [(name, one, one.auth_chain) for name, one in listeners]
    found += [(id, one, getattr(settings.gateways, kind).authentication) for kind, _, id, one in outer_listeners(settings)]
    for name, one, chain in found:
        if is_public(one.bind) and not needed_logins(settings, one, chain):
            yield name, one


def needed_logins(settings: Settings, listener: AnyListener, chain: list[str]) -> list[str]:
    """Returns what clients of a listener need: `certificate`, and the authenticators in their order; empty if nothing.

    chain: that of the listener, or `inherit` alone.
    """
    found = ["certificate"] if listener.tls.verify == "verify_peer" and listener.tls.fail_if_no_peer_cert else []
    if listener.enable_authn is not False:
        found += settings.auth.chain if chain == ["inherit"] else chain
    return found


def is_public(bind: str) -> bool:
    """Whether other machines can reach an address. Of host names only `localhost` counts as private."""
    if bind == "disabled" or unix_path(bind) is not None:
        return False
    host = parse_address(bind)[0]
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host != "localhost"
    return not (getattr(address, "ipv4_mapped", None) or address).is_loopback
