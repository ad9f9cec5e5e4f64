"""Join and leave by command: what a member gives to a broker that becomes a node, and what that broker makes of it.

    `ctl cluster join`      request -> member -> admission     link/joins.py
                            checks, enrolment, files           here, and membership/enrol.py
                            drain and start                    supervisor
"""

import asyncio
import json
import os
import socket
import ssl
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import cbor2

from shardbroker import __version__
from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.handshake import PROTO_MAX, PROTO_MIN, cluster_uuid
from shardbroker.cluster.joining import CA_BYTES_MAX, Admission, JoinRequest
from shardbroker.config import Loaded
from shardbroker.config.cluster import CORES, LINK_PORT, Cluster, core_members, missing_etcd, own_address
from shardbroker.config.listeners import parse_address
from shardbroker.config.live import dump
from shardbroker.control import ControlError
from shardbroker.link.identity import CookieError
from shardbroker.link.joins import ask_to_join
from shardbroker.link.sockets import check_listening, tls_problem
from shardbroker.logs.phrases import log_line
from shardbroker.management.context import Context
from shardbroker.management.handlers.listeners import call_supervisor
from shardbroker.management.nodes import FAULTS, text_of
from shardbroker.stores.files import replace_file
from shardbroker.stores.node_file import (
    ENROLLED_FILE,
    Joined,
    forget_enrolled,
    forget_joined,
    node_uuid,
    read_enrolled,
    read_joined,
    write_joined,
)

__all__ = ["admit", "is_joined", "join", "leave"]

JOIN_S = 25.0
"""Longest time of a join: `ctl` waits for 30 s."""
MEMBERS_S = 3.0
"""Longest wait for the members of etcd; those of the configuration are given then."""
CA_FILE = Path("cluster", "etcd-ca.pem")
"""Below the data directory: issuers of the certificate of an external etcd, from the member that was asked."""
CA_KEY = "cluster.etcd.tls.cacertfile"
KEYS = (
    "cluster.enable", "cluster.name", "cluster.core.mode", "cluster.core.members", "cluster.discovery", "cluster.dns.name",
    "cluster.dns.record_type", "cluster.k8s.apiserver", "cluster.k8s.namespace", "cluster.k8s.service_name",
    "cluster.k8s.address_type", "cluster.k8s.suffix", "cluster.static.seeds", "cluster.etcd.endpoints", "cluster.etcd.prefix",
    "cluster.registry", "cluster.links",
)  # fmt: skip
"""Keys that a member may give: what is the same on all nodes. Whatever else it sends is refused."""


# --- the member -----------------------------------------------------------------------------------------------------------------


async def admit(context: Context, request: JoinRequest) -> Admission:
    """Returns what a broker has to know to be a node of this cluster. Raises PeerFault if it cannot be one."""
    topology, view = context.topology, context.view
    assert view is not None
    cluster: Cluster = topology.settings.cluster
    if request.uuid == view.uuid:
        raise PeerFault(ByeReason.SELF, f"{request.name} is node {topology.node_name} itself, or has a copy of its data directory")
    if request.name == topology.node_name:
        text = f"node.name: must be unique, got {request.name}, which is the name of the node that was asked"
        raise PeerFault(ByeReason.DUPLICATE_ID, text)
    if not cluster.has_core:
        _check_static(context, request)
    keys: dict[str, Any] = {
        "cluster.enable": True, "cluster.name": cluster.name, "cluster.core.mode": cluster.core.mode,
        "cluster.discovery": cluster.discovery, "cluster.registry": cluster.registry, "cluster.links": cluster.links,
    }  # fmt: skip
    if not cluster.has_core:
        keys["cluster.static.seeds"] = cluster.static.seeds
        return Admission(topology.node_name, topology.cluster_uuid or cluster_uuid(cluster.name), keys)
    keys["cluster.etcd.prefix"] = cluster.etcd.prefix
    if cluster.is_discovered:
        found = cluster.dns if cluster.discovery == "dns" else cluster.k8s
        keys |= {f"cluster.{cluster.discovery}.{name}": value for name, value in found.model_dump().items()}
    elif cluster.is_managed:
        keys["cluster.core.members"] = await _members(context, request)
    else:
        keys["cluster.etcd.endpoints"] = cluster.etcd.endpoints
    return Admission(topology.node_name, topology.cluster_uuid, keys, _ca(cluster))


def _check_static(context: Context, request: JoinRequest) -> None:
    """Raises PeerFault unless the seeds have a place for this broker that no other node has taken."""
    topology, view = context.topology, context.view
    assert view is not None
    seeds = topology.settings.cluster.static.seeds
    if not request.node_id:
        taken = ", ".join(map(str, sorted({topology.node_id, *view.read().nodes})))
        raise PeerFault(
            ByeReason.DUPLICATE_ID, f"node.id: must be set with cluster.core.mode = none, to another one than {taken}, got 0"
        )
    rows = {number: (row.name, row.uuid, row.address) for number, row in view.read().nodes.items() if row.is_member}
    rows[topology.node_id] = topology.node_name, view.uuid, topology.link_address
    for number, (name, uuid, address) in rows.items():
        if uuid == request.uuid:
            continue
        what = f"belongs to node {name} with the id {number} and another data directory"
        for key, own, other in (
            ("node.id", request.node_id, number),
            ("node.name", request.name, name),
            ("cluster.advertise", request.address, address),
        ):
            if own == other:
                raise PeerFault(ByeReason.DUPLICATE_ID, f"{key}: must be unique, got {own}, which {what}")
    if request.address not in seeds and not _is_any(request.address):
        text = f"cluster.static.seeds of node {topology.node_name}: must have {request.address}, got {', '.join(seeds)}"
        raise PeerFault(ByeReason.NOT_A_MEMBER, f"{text}; add it there and on all nodes, restart them, and repeat the command")


def _is_any(address: str) -> bool:
    """Returns whether a host is that of all addresses; which of the seeds it is, the broker finds itself."""
    with suppress(ValueError):
        return parse_address(address)[0] in ("0.0.0.0", "::")
    return False


async def _members(context: Context, request: JoinRequest) -> list[str]:
    """Returns the members of etcd for `core.members`: as they are now, or as the configuration has them. Raises PeerFault."""
    cluster = context.topology.settings.cluster
    found = [f"{one.name}={_host(one.host)}:{one.port}" for one in core_members(cluster)]
    with suppress(ControlError, TimeoutError):
        async with asyncio.timeout(MEMBERS_S):
            rows = await context.core.ask("core status")
        urls = {row["name"]: row["client"].partition(",")[0].partition("://")[2] for row in rows}
        found = [f"{name}={address}" for name, address in urls.items() if name and address] or found
    if any(one.rpartition("=")[0] == request.name for one in found):
        text = f"node.name: must be unique, got {request.name}, which is a member of the core"
        raise PeerFault(ByeReason.DUPLICATE_ID, f"{text}; if that node is lost: ctl cluster core remove {request.name}")
    return found[: max(count for count in CORES if count <= len(found))]


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _ca(cluster: Cluster) -> bytes:
    """Returns the issuers of the certificate of an external etcd. Raises PeerFault."""
    path = cluster.etcd.tls.cacertfile
    if cluster.is_managed or not path:
        return b""
    try:
        with open(path, "rb") as file:
            text = file.read(CA_BYTES_MAX + 1)
    except OSError as error:
        raise PeerFault(ByeReason.LIMIT, f"{CA_KEY} of the node that was asked: {error.strerror}") from None
    if len(text) > CA_BYTES_MAX:
        raise PeerFault(ByeReason.LIMIT, f"{CA_KEY} of the node that was asked: must have at most {CA_BYTES_MAX} bytes")
    return text


# --- the broker that becomes a node ----------------------------------------------------------------------------------------------


async def join(context: Context, address: str, restart: bool) -> dict[str, Any]:
    """Makes this broker a node of the cluster of another one. Raises ControlError; nothing is in force then."""
    cluster = context.topology.settings.cluster
    if cluster.enable:
        text = f"{context.topology.node_name} is a node of the cluster {cluster.name} already"
        raise ControlError("ALREADY_EXISTS", f"{text}; to join another one: ctl cluster leave, and restart it")
    address = _address(address)
    try:
        async with asyncio.timeout(JOIN_S):
            done = await _join(context, address, restart)
    except TimeoutError:
        raise ControlError("NOT_AVAILABLE", f"join took more than {JOIN_S:g} s; repeat the command") from None
    if restart:
        reason = f"joins the cluster {done['cluster']}"
        answered = await call_supervisor(context, {"verb": "restart", "reason": reason})
        if answered["problem"]:
            raise ControlError("TRY_AGAIN", f"the keys are stored, and the broker was not restarted: {answered['problem']}")
    return {**done, "restart": "begun" if restart else "needed"}


async def _join(context: Context, address: str, restart: bool) -> dict[str, Any]:
    if restart and (problem := (await call_supervisor(context, {"verb": "restart check"}))["problem"]):
        raise ControlError("TRY_AGAIN", problem)
    data_dir = context.topology.data_dir
    loaded = context.configuration.read()
    cluster, node = loaded.settings.cluster, loaded.settings.node
    if not cluster.cookie_file:
        raise ControlError("BAD_REQUEST", "cluster.cookie_file: must be a file with the cookie of the cluster, mode 0600, got none")
    if problem := tls_problem(cluster.tls):
        raise ControlError("BAD_REQUEST", problem)
    own = cluster.advertise or cluster.link_bind
    if address == own:
        raise ControlError("BAD_REQUEST", f"address: must be that of another node, got {address}, which is that of this one")
    try:
        uuid, joined, enrolled = node_uuid(data_dir), read_joined(data_dir), read_enrolled(data_dir)
    except (OSError, ValueError) as error:
        raise ControlError("NOT_AVAILABLE", f"data directory {data_dir}: {text_of(error)}") from None
    request = JoinRequest(node.name, node.id, uuid, own, PROTO_MIN, PROTO_MAX, __version__)
    try:
        admission = await ask_to_join(address, cluster, request)
    except CookieError as error:
        raise ControlError("BAD_REQUEST", f"cluster.cookie_file: {error}") from None
    except FAULTS as error:
        code = "BAD_REQUEST" if isinstance(error, PeerFault) else "NOT_AVAILABLE"
        raise ControlError(code, f"node at {address}: {_cause(error)}") from None
    keys = _checked(admission)
    for known, hint in (joined, "ctl cluster leave"), (enrolled, f"remove {data_dir / ENROLLED_FILE} if it has left that one"):
        if known is not None and known.cluster != admission.cluster:
            text = f"data directory {data_dir}: belongs to the cluster {known.cluster.hex()}, and node {admission.node} to"
            hint = f"use another data directory, or {hint}"
            raise ControlError("BAD_REQUEST", f"{text} {keys['cluster.name']} ({admission.cluster.hex()}): {hint}")
    if admission.ca and cluster.etcd.tls.cacertfile in ("", str(data_dir / CA_FILE)):
        keys[CA_KEY] = str(data_dir / CA_FILE)
    found: dict[str, Any] = {}

    async def confirm(wanted: Loaded, new: dict[str, str]) -> None:
        found["keys"] = sorted(new)
        _check_start(wanted)
        _write_ca(data_dir, admission.ca if CA_KEY in keys else b"")
        found["id"] = await _enrol(wanted, admission) if wanted.settings.cluster.has_core else node.id
        try:
            write_joined(data_dir, Joined(admission.cluster, new))
        except OSError as error:
            raise ControlError("NOT_AVAILABLE", f"data directory {data_dir}: {error.strerror}") from None

    replaceable = joined.keys if joined is not None else {}
    await context.configuration.adopt(keys, replaceable, confirm)
    name = keys["cluster.name"]
    context.log.add("warning", log_line("cluster chosen", cluster=name, node=admission.node, address=address, id=found["id"]))
    context.log.flush()
    return {"cluster": name, "node": admission.node, "id": found["id"], "keys": found["keys"]}


def _cause(error: BaseException) -> str:
    """Returns why a member could not be asked."""
    if isinstance(error, TimeoutError) and not error.errno:
        return "must answer within cluster.link.connect_timeout and cluster.link.auth_timeout, got no answer"
    if isinstance(error, socket.gaierror):
        return f"must be HOST or HOST:PORT with a known host: {error.strerror}"
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError) or not error.errno:
        return text_of(error)
    return f"{os.strerror(error.errno)}: the address must be that of cluster.link.bind of a member"


def _address(text: str) -> str:
    """Returns HOST:PORT of HOST or HOST:PORT. Raises ControlError."""
    for one in (text, f"{text}:{LINK_PORT}"):
        with suppress(ValueError):
            if parse_address(one)[1]:
                return one
    raise ControlError("BAD_REQUEST", f"address: must be HOST or HOST:PORT, such as 10.0.0.1:5370 or [fd00::1]:5370, got {text}")


def _checked(admission: Admission) -> dict[str, Any]:
    """Returns the keys of an admission. Their values are checked with the schema. Raises ControlError."""
    unknown = sorted({*admission.keys} - {*KEYS})
    missing = sorted({"cluster.name", "cluster.core.mode", "cluster.discovery"} - {*admission.keys})
    if admission.keys.get("cluster.enable") is not True:
        missing.append("cluster.enable = true")
    if unknown or missing:
        text = f"unknown {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        expected = "must be of a version that this one knows, its answer has"
        raise ControlError("NOT_AVAILABLE", f"node {admission.node}: {expected} {text}")
    return dict(admission.keys)


def _check_start(wanted: Loaded) -> None:
    """Raises ControlError if a start with these settings would fail."""
    cluster = wanted.settings.cluster
    problem = cluster.missing or missing_etcd(cluster, wanted.settings.node.name)
    if problem is not None:
        raise ControlError("BAD_REQUEST", problem)
    try:
        own_address(cluster)
    except ValueError as error:
        raise ControlError("BAD_REQUEST", f"cluster.advertise: {error}") from None
    try:
        check_listening(cluster.link_bind)
    except OSError as error:
        raise ControlError("BAD_REQUEST", f"cluster.link.bind: {cluster.link_bind}: {error.strerror or error}") from None


def _write_ca(data_dir: Path, text: bytes) -> None:
    """Raises ControlError."""
    if not text:
        return
    path = data_dir / CA_FILE
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise ControlError("NOT_AVAILABLE", f"{path}: {error.strerror}") from None


async def _enrol(wanted: Loaded, admission: Admission) -> int:
    """Returns the id that the core has allotted to this data directory. Raises ControlError."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shardbroker.membership.enrol", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        given = cbor2.dumps({"settings": dump(wanted.settings), "cluster": admission.cluster})
        out, _ = await program.communicate(given)
    except BaseException:
        with suppress(ProcessLookupError):
            program.kill()
        raise
    found = json.loads(out) if program.returncode == 0 else {"problem": f"enrolment failed with code {program.returncode}"}
    if "problem" in found:
        raise ControlError("NOT_AVAILABLE", found["problem"])
    return int(found["id"])


# --- the way back -----------------------------------------------------------------------------------------------------------------


async def leave(context: Context) -> dict[str, Any] | None:
    """Removes what a join by command has stored, so that the next start is that of a broker alone; returns the keys, or None if
    there was no such join. Raises ControlError."""
    data_dir = context.topology.data_dir
    try:
        joined = read_joined(data_dir)
        if joined is None:
            return None
        await context.configuration.disown(joined.keys)
        forget_enrolled(data_dir)
        forget_joined(data_dir)
    except (OSError, ValueError) as error:
        raise ControlError("NOT_AVAILABLE", f"data directory {data_dir}: {text_of(error)}") from None
    return {"keys": sorted(joined.keys), "restart": "needed"}


def is_joined(data_dir: Path) -> bool:
    """Returns whether a join by command has stored keys. Raises ControlError."""
    try:
        return read_joined(data_dir) is not None
    except (OSError, ValueError) as error:
        raise ControlError("NOT_AVAILABLE", f"data directory {data_dir}: {text_of(error)}") from None
