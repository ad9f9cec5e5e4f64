"""Checks of settings whose values fit the schema."""

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from acceptor.dtls import build_dtls
from acceptor.tls import TlsError, build_context
from shardbroker.access.auth_client import INHERIT
from shardbroker.access.contract import BackendError, SettingError
from shardbroker.access.files import FileError, read_rules
from shardbroker.config import Settings
from shardbroker.config.cluster import core_members, missing_etcd, own_address
from shardbroker.config.connectors import HttpConnection
from shardbroker.config.gateways import DatagramListener, GatewayListener, outer_listeners
from shardbroker.config.keys import allowed_at
from shardbroker.config.listeners import Listener, parse_address, unix_path
from shardbroker.config.persistence import key_of
from shardbroker.connectors.errors import ConnectionSettingError, missing_library
from shardbroker.connectors.server import context_of
from shardbroker.hooks.plugins import PluginError, installed
from shardbroker.integrations.auth.factory import build_authenticators, build_sources
from shardbroker.integrations.auth.services import Services, Stores
from shardbroker.link.identity import CookieError, read_cookie
from shardbroker.link.sockets import tls_problem
from shardbroker.supervisor.layout import StartError, chosen_cores, chosen_weights, usable_cores

__all__ = ["Finding", "look"]

TLS_KEYS = ("tls_ca", "tls_cert", "tls_key", "tls_verify")
"""Keys of connections that use TLS."""
KEPT_HERE = ("builtin", "scram")
"""Members of chains in the broker's own store: they need no library and no setting."""
LOCALHOST = "127.0.0.1"


class Finding(NamedTuple):
    """A setting that will not work. `fatal`: the broker does not start with it."""

    key: str
    text: str
    fatal: bool = True

    def line(self, source: str) -> str:
        return f"{self.text} ({source})"


def look(settings: Settings) -> list[Finding]:
    """Returns all findings, each once."""
    found = [one for check in _CHECKS for one in check(settings)]
    return list(dict.fromkeys(found))


# --- authenticators and sources of rules ------------------------------------------------------------------------------------------


def _authenticators(settings: Settings) -> Iterator[Finding]:
    chains = {"auth.chain": settings.auth.chain}
    chains |= {f"listeners.{name}.auth_chain": one.auth_chain for name, one in settings.listeners.items()}
    chains |= {f"gateways.{kind}.authentication": one.authentication for kind, one in settings.gateways.enabled.items()}
    services = _services(settings)
    for key, chain in chains.items():
        for name in chain:
            if name != INHERIT and name not in KEPT_HERE:
                yield from _made(key, name, lambda name=name: build_authenticators(settings, [name], services))  # type: ignore[misc]


def _sources(settings: Settings) -> Iterator[Finding]:
    services = _services(settings)
    for name in settings.acl.sources:
        if name == "file":
            yield from _rules(settings)
        elif name not in KEPT_HERE:
            yield from _made("acl.sources", name, lambda name=name: build_sources(settings, [name], services))  # type: ignore[misc]


def _made(key: str, name: str, make: Callable[[], object]) -> Iterator[Finding]:
    try:
        make()
    except SettingError as error:
        yield Finding(error.key, str(error))
    except BackendError as error:
        yield Finding(key, f"{key}: must be {allowed_at(tuple(key.split('.')))}, got {name!r}: {error}")


def _services(settings: Settings) -> Services:
    """Returns services that open stores and start threads only on first use; `KEPT_HERE` is not made here."""
    return Services(Stores(settings.process.data_dir), ThreadPoolExecutor(1))


def _rules(settings: Settings) -> Iterator[Finding]:
    key, path = "acl.file.path", settings.acl.file.path
    try:
        if path:
            read_rules(Path(path))
        else:
            yield Finding(key, f"{key}: must be a file of rules, since acl.sources names file, got ''")
    except FileError as error:
        yield Finding(key, f"{key}: must be a file of rules, got {path!r}: {error}")


def _plugins(settings: Settings) -> Iterator[Finding]:
    try:
        installed(settings.plugins.dir)
    except PluginError as error:
        yield Finding("plugins.dir", f"plugins.dir: must be a directory that can be read, got {settings.plugins.dir!r}: {error}")


def _exhook(settings: Settings) -> Iterator[Finding]:
    if settings.exhook.missing is not None:
        yield Finding("exhook.servers", f"exhook.servers: must have its libraries, got {settings.exhook.missing}")
    if settings.gateways.exproto.missing is not None:
        yield Finding("gateways.exproto", f"gateways.exproto: must have its libraries, got {settings.gateways.exproto.missing}")
    for server in settings.exhook.enabled:
        if server.ssl.enable:
            context = ssl.create_default_context()
            for name, load in (
                ("cacertfile", lambda: context.load_verify_locations(server.ssl.cacertfile)),  # noqa: B023 - called at once
                ("certfile", lambda: context.load_cert_chain(server.ssl.certfile, server.ssl.keyfile)),  # noqa: B023
            ):
                path = getattr(server.ssl, name)
                problem = _problem(load) if path else ""
                if problem:
                    key = "exhook.servers"
                    yield Finding(key, f"{key}: must have a ssl.{name} that can be read, got {path!r} of {server.name}: {problem}")


def _rules_of_messages(settings: Settings) -> Iterator[Finding]:
    if not settings.rules and not settings.persistence.used():
        return
    from shardbroker.config.sinks.ids import check_names_of_sources
    from shardbroker.flows.own_actions import check_actions  # most brokers have no rules
    from shardbroker.flows.persistence.expansion import all_rules
    from shardbroker.flows.shipped import check_rule
    from shardbroker.rules.definition import checked_sources

    for id, rule in all_rules(settings).items():
        try:
            check_names_of_sources(checked_sources(rule.sql, rule.actions))
            check_actions(id, rule.actions)
            check_rule(rule.sql, rule.actions)
        except ValueError as error:
            key = key_of(id) or f"rules.{id}"
            yield Finding(key, f"{key}.{error}")


def _sinks(settings: Settings) -> Iterator[Finding]:
    """A connector, an action or a source that cannot work costs the broker nothing else."""
    from shardbroker.flows.persistence.expansion import all_actions, all_connectors

    made: dict[str, tuple[Any, Any]] = {}
    for id, connector in all_connectors(settings).items():
        type, _, name = id.partition(":")
        key = f"{preset}.connection" if (preset := key_of(id)) else f"connectors.{type}.{name}"
        try:
            driver = import_module(f"shardbroker.flows.drivers.{type}")
            made[id] = driver, driver.connect(connector, key)
        except ImportError as error:
            yield Finding(key, f"{key}: needs {missing_library(error)}", fatal=False)
        except Exception as error:  # of a driver, or of its library
            yield _of_sink(key, error)
    for id, action in all_actions(settings).items():
        type, _, name = id.partition(":")
        key, of = key_of(id) or f"actions.{type}.{name}", f"{type}:{action.connector}"
        try:
            if of in made:
                made[of][0].make(action, made[of][1], id)
        except Exception as error:
            yield _of_sink(key, error)


    for id, source in settings.sources.by_id().items():
        type, _, name = id.partition(":")
        of = f"{type}:{source.connector}"
        try:
            if of in made:
                made[of][0].make_source(source, made[of][1], id)
        except Exception as error:
            yield _of_sink(f"sources.{type}.{name}", error)


def _of_sink(key: str, error: Exception) -> Finding:
    text = str(error) or repr(error)
    return Finding(key, text if text.startswith(key) else f"{key}: {text}", fatal=False)


# --- addresses and certificates -------------------------------------------------------------------------------------------------


def _certificates(settings: Settings) -> Iterator[Finding]:
    listeners: dict[str, Listener | GatewayListener | DatagramListener] = {
        f"listeners.{name}": one for name, one in settings.listeners.items()
    }
    listeners |= {f"gateways.{kind}.listeners.{name}": one for kind, name, _, one in outer_listeners(settings)}
    for name, one in listeners.items():
        if one.secure:
            try:
                if not isinstance(one, Listener) and one.for_datagrams:
                    build_dtls(one.tls, b"")
                else:
                    build_context(one.tls, isinstance(one, Listener) and one.over_websocket)
            except TlsError as error:
                key = f"{name}.tls.{error.key}"
                yield Finding(key, f"{key}: must be {error.what}, got {getattr(one.tls, error.key)!r}: {error}")


def _api(settings: Settings) -> Iterator[Finding]:
    api = settings.api
    if api.bind == "disabled":
        return
    if api.missing is not None:
        yield Finding("api.bind", f"api.bind: must be disabled or have its libraries, got {api.bind!r}: {api.missing}")
    if api.certfile:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        problem = _problem(lambda: context.load_cert_chain(api.certfile, api.keyfile or None, ""))
        if problem:
            text = f"api.certfile: must be a certificate with its key, got {api.certfile!r}: {problem}"
            yield Finding("api.certfile", text, fatal=False)  # MQTT clients do not depend on the dashboard


def _opentelemetry(settings: Settings) -> Iterator[Finding]:
    exporter = settings.opentelemetry.exporter
    for key, text in settings.opentelemetry.missing.items():
        yield Finding(key, f"{key}: must be false or have its libraries, got true: {text}")
    if settings.opentelemetry.enabled and exporter.endpoint.startswith("https:"):
        try:
            context_of(HttpConnection(**{name: getattr(exporter, name) for name in TLS_KEYS}), "opentelemetry.exporter")
        except ConnectionSettingError as error:
            yield Finding(error.args[0], str(error))


def _addresses(settings: Settings) -> Iterator[Finding]:
    if "LISTEN_FDS" in os.environ:
        return  # sockets of the service manager are already listening, on any address
    bound = {f"listeners.{name}.bind": one.bind for name, one in settings.listeners.items()}
    gateways = {f"gateways.{kind}.listeners.{name}.bind": one for kind, name, _, one in outer_listeners(settings)}
    bound |= {key: one.bind for key, one in gateways.items()}
    over_udp = {key for key, one in gateways.items() if isinstance(one, DatagramListener)}
    if settings.cluster.enable:
        bound["cluster.link.bind"] = settings.cluster.link_bind
    if settings.cluster.is_managed and settings.node.name in {one.name for one in core_members(settings.cluster)}:
        bound["cluster.core.bind"] = settings.cluster.core.bind
    for key, bind in (("api.bind", settings.api.bind), ("prometheus.bind", settings.prometheus.bind)):
        if bind not in ("auto", "disabled"):
            bound[key] = bind
    earlier: list[tuple[str, str]] = []
    for key, bind in bound.items():
        rivals = (one for one, address in earlier if _meet(address, bind) and (one in over_udp) == (key in over_udp))
        other = next(rivals, None)
        if other is not None:
            yield Finding(key, f"{key}: must be an address of its own, got {bind!r}, which {other} = {bound[other]!r} has")
        earlier.append((key, bind))
    own = {key: bind for key, bind in bound.items() if key not in ("api.bind", "prometheus.bind")}
    for key, bind in own.items():
        problem = _cannot_bind(bind)
        if problem:
            yield Finding(key, f"{key}: must be an address of this machine, got {bind!r}: {problem}")


def _cluster(settings: Settings) -> Iterator[Finding]:
    cluster = settings.cluster
    if not cluster.enable:
        return
    if cluster.missing is not None:
        yield Finding("cluster.core.mode", cluster.missing)
    if (problem := missing_etcd(cluster, settings.node.name)) is not None:
        yield Finding(problem.split(maxsplit=1)[0].rstrip(":"), problem)
    try:
        own_address(cluster)
    except ValueError as error:
        yield Finding("cluster.advertise", f"cluster.advertise: {error}")
    try:
        read_cookie(Path(cluster.cookie_file))
    except CookieError as error:
        yield Finding("cluster.cookie_file", f"cluster.cookie_file: {error}")
    if wrong := tls_problem(cluster.tls):
        yield Finding("cluster.tls.certfile", wrong)


def _meet(one: str, other: str) -> bool:
    """Returns whether the addresses conflict: a wildcard takes the port of every address."""
    if unix_path(one) is not None or unix_path(other) is not None:
        return one == other
    (host, port), (other_host, other_port) = parse_address(one), parse_address(other)
    if not port or port != other_port:
        return False
    ours, theirs = _host(host), _host(other_host)
    return ours == theirs or _everywhere(ours, theirs) or _everywhere(theirs, ours)


def _host(host: str) -> str:
    host = LOCALHOST if host == "localhost" else host
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _everywhere(wildcard: str, host: str) -> bool:
    return wildcard == "::" or (wildcard == "0.0.0.0" and ":" not in host)


def _cannot_bind(bind: str) -> str:
    """Returns the obstacle to binding, other listeners apart; empty without one."""
    path = unix_path(bind)
    if path is not None:
        return "" if os.path.isdir(os.path.dirname(path)) else "no such directory"
    host, _ = parse_address(bind)
    try:
        address = ip_address(host)
    except ValueError:
        return ""  # a host name, which would need a DNS server
    with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET) as probe:
        return _problem(lambda: probe.bind((host, 0)))


# --- processes --------------------------------------------------------------------------------------------------------------------


def _process(settings: Settings) -> Iterator[Finding]:
    process, usable = settings.process, usable_cores()
    chosen = usable
    for name in ("worker_cores", "acceptor_cores"):
        try:
            cores = chosen_cores(f"process.{name}", getattr(process, name), usable)
            chosen = cores or chosen if name == "worker_cores" else chosen
        except StartError as error:
            yield Finding(f"process.{name}", str(error))
    try:
        chosen_weights(process.worker_weights, len(chosen) if process.workers == "auto" else process.workers)
    except StartError as error:
        yield Finding("process.worker_weights", str(error))
    key, path = "process.data_dir", process.data_dir.absolute()
    there = next(one for one in (path, *path.parents) if os.path.lexists(one))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding(key, f"{key}: must be a directory that can be written to, got {str(process.data_dir)!r}: {there} cannot")


def _problem(load: Callable[[], object]) -> str:
    """Returns the error of a call that reads files or binds; empty without one."""
    try:
        load()
    except ssl.SSLError as error:
        return str(error.reason or error).replace("_", " ").lower()
    except OSError as error:
        return error.strerror or str(error)
    return ""


_CHECKS: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
    _authenticators, _sources, _plugins, _exhook, _rules_of_messages, _sinks, _certificates, _api, _opentelemetry,
    _addresses, _cluster, _process,
)  # fmt: skip
