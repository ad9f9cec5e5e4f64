"""Cluster of emqx.conf: the sections `cluster` and `rpc`, and the role and the cookie of `node`.

`cluster.enable` is set if the file has everything that a node needs, and nothing was left out that protects its links. Addresses
are made of the names of nodes: the host behind @, with EMQX's port for messages between nodes.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from shardbroker.config.cluster import CORES
from shardbroker.config.foreign import SECRET, Imported, flatten
from shardbroker.config.keys import KeyPath
from shardbroker.config.units import parse_duration

__all__ = ["COOKIE_FILE", "take_cluster"]

COOKIE_FILE = "/etc/shardbroker/cookie"
"""Place of the cookie if none is named: `cluster.cookie_file` of the packages."""
COOKIE_BYTES = 16, 4096
"""Least and most bytes of a cookie (link/identity.py)."""
KNOWN_COOKIE = "emqxsecretcookie"
"""EMQX's default, which protects nothing."""
LINK_PORT = 5370
"""EMQX's port between nodes with `rpc.port_discovery = stateless`, to which the number at the end of a node's name is added."""
MANUAL_PORT = 5369
"""Its default with `port_discovery = manual`."""
CORE_PORT = 12379
OWN_KEYS = "role", "db_role", "cookie"
"""Keys of `node` that are about the cluster."""
KEPT: dict[str, KeyPath] = {
    "cluster.name": ("cluster", "name"),
    "cluster.autoclean": ("cluster", "autoclean"),
    "rpc.connect_timeout": ("cluster", "link", "connect_timeout"),
    "rpc.send_timeout": ("cluster", "link", "send_timeout"),
    "rpc.authentication_timeout": ("cluster", "link", "auth_timeout"),
    "rpc.call_receive_timeout": ("cluster", "call_timeout"),
    "rpc.socket_keepalive_idle": ("cluster", "link", "keepalive_idle"),
    "rpc.socket_keepalive_interval": ("cluster", "link", "keepalive_interval"),
    "rpc.socket_keepalive_count": ("cluster", "link", "keepalive_count"),
}
"""Keys that have the same meaning whatever the members are."""
SECONDS = "rpc.socket_keepalive_idle", "rpc.socket_keepalive_interval"
"""Keys whose plain numbers are seconds, there and here; those of other durations are ms there."""
HARMLESS = re.compile(
    r"rpc\.(mode|driver|protocol|port_discovery|async_batch_size|client_num|(tcp|ssl)_client_(num|port)|(tcp|ssl)_server_port"
    r"|socket_(sndbuf|recbuf|buffer)|ipv6_only|insecure_fallback)"
    r"|cluster\.(proto_dist|dns\.app|k8s\.app_name|etcd\.version)|node\.(db_)?role"
    r"|cluster\.etcd\.ssl(_options)?\.(depth|secure_renegotiate|reuse_sessions|hibernate_after|log_level|user_lookup_fun)"
)
"""Keys without a consequence here, once the members are known."""
ON = True, "true", "on"


def take_cluster(found: Imported, name: Any, node: dict[str, Any], cluster: Any, rpc: Any) -> None:
    """Imports the sections `cluster` and `rpc`, and OWN_KEYS of `node`; `name`: that of the node, None if the file has none."""
    given: dict[str, Any] = {}
    for section, table in ("node", node), ("cluster", cluster), ("rpc", rpc):
        if table is not None and not isinstance(table, dict):
            found.remark(f"{section} = {table}: must be a table")
        given |= {".".join((section, *path)): value for path, value in flatten(table if isinstance(table, dict) else {})}
    if given:
        _Cluster(found, str(name or ""), given).take()


class _Cluster:
    """One import; `given` has the keys that are not dealt with yet."""

    def __init__(self, found: Imported, name: str, given: dict[str, Any]) -> None:
        self.found, self.name, self.given = found, name, given
        self.all = dict(given)
        self.strategy = str(given.pop("cluster.discovery_strategy", "manual"))
        role = given.get("node.db_role", "core")
        self.is_replicant = str(given.get("node.role", role)) == "replicant"
        self.is_lacking = False
        """Whether something is missing without which the node cannot be one of a cluster."""

    def take(self) -> None:
        for key, path in KEPT.items():
            if key in self.given:
                self._take_kept(key, path)
        self._take_healing()
        if self.strategy == "singleton":
            self.found.notes.append("cluster.discovery_strategy = singleton")
            self.given.pop("node.cookie", None)
        else:
            self._take_cookie()
            if any(key.startswith("cluster.") for key in self.all):
                self._take_members()
        for key in self.given:
            if HARMLESS.fullmatch(key) or self._is_unused(key):
                self.found.notes.append(self._said(key))
            else:
                self.found.remark(f"{self._said(key)}: there is nothing like it here")

    def _said(self, key: str) -> str:
        return f"{key} = {'******' if SECRET.search(key.rpartition('.')[2]) else self.all[key]}"

    def _lack(self, text: str) -> None:
        self.is_lacking = True
        self.found.remark(text)

    def _take_kept(self, key: str, path: KeyPath) -> None:
        value = self.given.pop(key)
        if key in SECONDS:
            try:
                value = round(parse_duration(int(value) if _is_whole(value) else value))
            except ValueError:
                pass  # named by the remark about it
        elif path[-1] not in ("name", "keepalive_count") and _is_whole(value):
            value = f"{value}ms"
        self.found.take(path, value, f"{key} = {value}")

    def _take_healing(self) -> None:
        key = "cluster.autoheal"
        if key in self.given:
            value = self.given.pop(key)
            if value in ON:
                self.found.notes.append(f"{key} = {value}: the sides of a split are always merged, without a restart")
            else:
                self.found.remark(f"{key} = {value}: the sides of a split are always merged here")

    def _take_cookie(self) -> None:
        value = str(self.given.pop("node.cookie", ""))
        size = len(value.encode())
        if not value:
            return
        if value == KNOWN_COOKIE:
            reason = "it is EMQX's default, which is public"
        elif not COOKIE_BYTES[0] <= size <= COOKIE_BYTES[1] or not value.isprintable():
            reason = f"must be text of {COOKIE_BYTES[0]} to {COOKIE_BYTES[1]} bytes, got {size}"
        elif value.startswith("file:"):
            reason = "it is in a file: name that by cluster.cookie_file"
        else:
            self.found.cookie = value
            return
        self.found.remark(f"node.cookie = ******: {reason}; make one for all nodes, docs/cluster.md")

    def _take_members(self) -> None:
        """Imports what makes the node one of a cluster: all of it, or none."""
        cores = _names(self.given.pop("cluster.core_nodes", []))
        values: dict[str, Any]
        match self.strategy:
            case "static":
                values = self._static(_names(self.given.pop("cluster.static.seeds", [])), cores)
            case "manual" if cores:
                values = self._core(cores)
            case "manual":
                values = {}
                self._lack(
                    "cluster.discovery_strategy = manual: nodes that have joined by command are not in the file; name them by "
                    "cluster.core.members, or by cluster.static.seeds with cluster.core.mode = none"
                )
            case "dns":
                values = self._dns(cores)
            case "k8s":
                values = self._k8s(cores)
            case "etcd":
                values = self._etcd()
            case _:
                values = {}
                self._lack(
                    f"cluster.discovery_strategy = {self.strategy}: must be manual, static, dns, etcd, k8s or singleton; see "
                    "docs/cluster.md"
                )
        if values:
            values |= self._links() | self._tls()
        if not self.is_lacking:
            values |= {"enable": True, "cookie_file": COOKIE_FILE}
            own: dict[KeyPath, Any] = {("cluster", *key.split(".")): value for key, value in values.items() if key != "node.id"}
            if "node.id" in values:
                own["node", "id"] = values["node.id"]
            self.is_lacking = not self.found.take_together(own, "cluster")
        if self.is_lacking:
            self.found.remark("cluster.enable: not set, so this node is not in a cluster yet")

    # --- members ---------------------------------------------------------------------------------------------------------------

    def _static(self, names: list[str], cores: list[str]) -> dict[str, Any]:
        """Returns the settings of a list of nodes: of all, or of those with the core if there are replicants."""
        if self.is_replicant or cores:
            return self._core(cores or names, key="cluster.core_nodes" if cores else "cluster.static.seeds")
        if not self._are_names("cluster.static.seeds", names):
            return {}
        if self.name not in names:
            self._lack(
                f"cluster.static.seeds: must have this node too ({self.name or 'node.name is not in the file'}), since all members "
                "are listed on every node"
            )
            return {}
        addresses = {name: self._address(name) for name in names}
        if len({*addresses.values()}) != len(names):
            self._lack(f"cluster.static.seeds: must be nodes with different addresses, got {', '.join(addresses.values())}")
        self.found.notes.append("node.id: the place of this node among the sorted names of cluster.static.seeds")
        number = sorted(names).index(self.name) + 1
        return {"core.mode": "none", "discovery": "static", "static.seeds": [*addresses.values()], "node.id": number}

    def _core(self, names: list[str], discovery: str = "manual", key: str = "cluster.core_nodes") -> dict[str, Any]:
        """Returns the settings of nodes that run etcd, as EMQX's core nodes have its database."""
        if not self._are_names(key, names):
            return {}
        hosts = [_host(name) for name in names]
        if len(names) not in CORES or len({*hosts}) != len(hosts):
            self._lack(f"{key}: must be 1, 3 or 5 nodes on different machines for cluster.core.members, got {', '.join(names)}")
        values: dict[str, Any] = {"core.mode": "managed", "discovery": discovery, "core.members": names}
        if self.is_replicant:
            values["role"] = "replicant"
            if self.name in names:
                self._lack(f"node.role = replicant: must be core, since {self.name} is one of {', '.join(names)}")
        elif self.name not in names:
            self.found.remark(
                f"node.role = core: must be one of {', '.join(names)}, got {self.name}: a replicant until ctl cluster core add"
            )
        elif _is_ip(_host(self.name)):
            values["core.bind"] = _joined(_host(self.name), CORE_PORT)
        else:
            self.found.remark(f"cluster.core.bind: has to be set to the IP address of {_host(self.name)} and port {CORE_PORT}")
        return values

    def _found(self, cores: list[str], discovery: str, values: dict[str, Any]) -> dict[str, Any]:
        """Returns the settings of a core that is looked up."""
        if cores:
            return values | self._core(cores, discovery)
        if self.is_replicant:
            values = values | {"role": "replicant"}
        else:
            self.found.remark(
                "cluster.core.members: has to be set on the 1, 3 or 5 nodes that run etcd, the same list on each; all others find "
                f"them by {discovery}"
            )
        return {"core.mode": "managed", "discovery": discovery, **values}

    def _dns(self, cores: list[str]) -> dict[str, Any]:
        values = {"dns.name": self.given.pop("cluster.dns.name", "localhost")}
        values["dns.record_type"] = kind = self.given.pop("cluster.dns.record_type", "a")
        if kind == "srv":
            self.found.remark(f"cluster.dns.record_type = srv: its ports have to be those of etcd, {CORE_PORT} by default")
        return self._found(cores, "dns", values)

    def _k8s(self, cores: list[str]) -> dict[str, Any]:
        theirs = {
            "apiserver": "https://kubernetes.default.svc", "namespace": "default", "service_name": "emqx", "address_type": "ip",
            "suffix": "pod.local",
        }  # fmt: skip
        values = {f"k8s.{key}": self.given.pop(f"cluster.k8s.{key}", other) for key, other in theirs.items()}
        return self._found(cores, "k8s", values)

    def _etcd(self) -> dict[str, Any]:
        """Returns the settings of an etcd elsewhere, with TLS if its URL or `ssl_options` demand it."""
        ssl = {
            key.rpartition(".")[2]: self.given.pop(key)
            for key in [*self.given]
            if re.fullmatch(r"cluster\.etcd\.ssl(_options)?\.(enable|cacertfile|certfile|keyfile|verify)", key)
        }
        is_on = ssl.get("enable", False) in ON
        servers = _names(self.given.pop("cluster.etcd.server", []))
        urls = [f"https://{one.partition('://')[2] or one}" if is_on or one.startswith("https:") else one for one in servers]
        values: dict[str, Any] = {"core.mode": "external", "discovery": "etcd"}
        values["etcd.endpoints"] = [one if "://" in one else f"http://{one}" for one in urls]
        if "cluster.etcd.prefix" in self.given:
            values["etcd.prefix"] = self.given.pop("cluster.etcd.prefix")
        if "cluster.etcd.node_ttl" in self.given:
            self._take_kept("cluster.etcd.node_ttl", ("cluster", "lease"))
        if is_on:
            values |= {f"etcd.tls.{key}": ssl[key] for key in ("cacertfile", "certfile", "keyfile") if ssl.get(key)}
            if ssl.get("verify", "verify_none") == "verify_none":
                self.found.remark("cluster.etcd.ssl_options.verify = verify_none: the certificate of etcd is always verified")
        return values

    # --- links -----------------------------------------------------------------------------------------------------------------

    def _links(self) -> dict[str, Any]:
        """Returns where the node takes connections of others: at its address, or at `rpc.listen_address`."""
        if "@" not in self.name or not _host(self.name):
            self._lack(f"node.name: must be in the file as NAME@HOST, got {self.name or 'nothing'}; the environment is not read")
            return {}
        address, listens_at = self._address(self.name), str(self.given.pop("rpc.listen_address", ""))
        if not listens_at:
            return {"link.bind": address}
        return {"link.bind": _joined(listens_at, int(address.rpartition(":")[2])), "advertise": address}

    def _tls(self) -> dict[str, Any]:
        """Returns the settings of TLS between nodes, which is for all connections if EMQX had it for some."""
        if not self._has_tls:
            return {}
        files = {key: self.given.pop(f"rpc.{key}", "") for key in ("cacertfile", "certfile", "keyfile")}
        if not files["cacertfile"] or not files["certfile"] or any("$" in str(file) for file in files.values()):
            self._lack(
                "TLS between nodes (cluster.proto_dist, rpc.driver): rpc.cacertfile and rpc.certfile must be paths in the file; "
                "set cluster.tls.*"
            )
            return {}
        self.found.remark(f"rpc.certfile = {files['certfile']}: has to name the node ({self.name}) as one of its names")
        return {"tls.enable": True, **{f"tls.{key}": file for key, file in files.items() if file}}

    @property
    def _has_tls(self) -> bool:
        names = self.all.get("cluster.proto_dist"), self.all.get("rpc.driver"), self.all.get("rpc.protocol")
        return names[0] in ("inet_tls", "inet6_tls") or "ssl" in names[1:]

    def _address(self, name: str) -> str:
        """Returns the address of a node: its host, and its port by EMQX's rule."""
        if self.all.get("rpc.port_discovery") == "manual":
            kind = "ssl" if self._has_tls else "tcp"
            text = self.all.get(f"rpc.{kind}_server_port", MANUAL_PORT)
            port = int(text) if _is_whole(text) else 0
        else:
            number = re.search(r"[0-9]{1,5}$", name.partition("@")[0])
            port = LINK_PORT + (int(number[0]) if number else 0)
        if not 0 < port < 65536:
            self._lack(
                f"{name}: must have a port from 1 to 65535 for links, got {port}; set cluster.link.bind and cluster.static.seeds"
            )
        return _joined(_host(name), port)

    def _are_names(self, key: str, names: list[str]) -> bool:
        wrong = [name for name in names if not name.partition("@")[0] or not _host(name)]
        if not names or wrong:
            self._lack(f"{key}: must be names of nodes as NAME@HOST, got {', '.join(wrong) or 'none'}")
        return not wrong and bool(names)

    def _is_unused(self, key: str) -> bool:
        """Returns whether EMQX ignores a key too, by its other keys."""
        section, part = key.split(".")[:2]
        if section == "rpc":
            return not self._has_tls and part in ("cacertfile", "certfile", "keyfile", "ciphers", "tls_versions")
        return part in ("static", "dns", "etcd", "k8s", "mcast") and part != self.strategy


def _names(value: Any) -> list[str]:
    """Returns different names of a list, or of a text with commas."""
    given: Iterable[Any] = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return [*dict.fromkeys(name for name in (str(one).strip() for one in given) if name)]


def _host(name: str) -> str:
    return name.partition("@")[2].strip("[]")


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_ip(host: str) -> bool:
    try:
        return bool(ip_address(host))
    except ValueError:
        return False


def _is_whole(value: Any) -> bool:
    return not isinstance(value, bool) and re.fullmatch(r"[0-9]{1,12}", str(value)) is not None
