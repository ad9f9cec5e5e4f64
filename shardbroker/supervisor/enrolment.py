"""The first start of a node in a cluster with a core, which allots its id; later starts have it from the data directory."""

import time
from pathlib import Path
from typing import Any

import multiprocess
from multiprocess.connection import wait

from shardbroker.cluster.handshake import cluster_uuid
from shardbroker.config import Settings
from shardbroker.config.cluster import missing_etcd, own_address
from shardbroker.stores.adoption import ADOPTED_FILE, read_adopted
from shardbroker.stores.node_file import Enrolled, node_uuid, read_enrolled, write_enrolled
from shardbroker.supervisor.listening import StartError
from shardbroker.supervisor.signals import StopSignals

__all__ = ["enrolled"]


def enrolled(settings: Settings, signals: StopSignals) -> Enrolled | None:
    """Returns the id of this node and the uuid of its cluster; None if a signal has ended the wait. Raises StartError.

    Only the first start asks the core, so later ones do not depend on it.
    """
    cluster, node = settings.cluster, settings.node
    _check_adopted(settings.process.data_dir.resolve())
    if not cluster.has_core:
        return Enrolled(node.id, cluster_uuid(cluster.name) if cluster.enable else b"", "")
    if cluster.missing is not None:
        raise StartError(cluster.missing)
    if (problem := missing_etcd(cluster, node.name)) is not None:
        raise StartError(problem)
    data_dir = settings.process.data_dir.resolve()
    try:
        known, uuid = read_enrolled(data_dir), node_uuid(data_dir)
        if known is not None and known.place == cluster.place:
            if node.id not in (0, known.node_id):
                raise StartError(f"node.id: must be {known.node_id}, as the core has allotted it, or 0, got {node.id}")
            return known
    except ValueError as error:
        raise StartError(str(error)) from None
    except OSError as error:
        raise StartError(f"data directory {data_dir}: {error.strerror}") from None
    try:
        address = own_address(cluster)
    except ValueError as error:
        raise StartError(f"cluster.advertise: {error}") from None
    found = _asked(signals, cluster, node.id, node.name, address, uuid, data_dir)
    if isinstance(found, str):
        raise StartError(found)
    if found is not None:
        _note(data_dir, found)
    return found


def _check_adopted(data_dir: Path) -> None:
    """Raises StartError for a data directory whose sessions are at another node."""
    try:
        adopted = read_adopted(data_dir)
    except OSError as error:
        raise StartError(f"data directory {data_dir}: {error.strerror}") from None
    if adopted is not None:
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(adopted.since))
        text = f"data directory {data_dir}: was adopted by node {adopted.by} at {at}, which has its sessions"
        raise StartError(f"{text}: start with another, empty data directory ({ADOPTED_FILE} in it names the adoption)")


def _note(data_dir: Path, found: Enrolled) -> None:
    try:
        write_enrolled(data_dir, found)
    except OSError as error:
        raise StartError(f"data directory {data_dir}: {error.strerror}") from None


def _asked(signals: StopSignals, *arguments: Any) -> Enrolled | str | None:
    """Returns the answer of the core, or why it is missing; None after a signal. In a process: gRPC does not outlive a fork."""
    context = multiprocess.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_ask, args=(writer, *arguments), name="enrolment")
    with signals.held():
        process.start()
    writer.close()
    try:
        while True:
            ended = wait([reader, signals])
            if signals.count:
                return None
            signals.clear()
            if reader in ended:
                return Enrolled(*answer) if isinstance(answer := reader.recv(), tuple) else str(answer)
    except EOFError:
        return "cluster.core: the process that asks the core has died; see the lines above"
    finally:
        process.kill()
        process.join()
        reader.close()


def _ask(writer: Any, *arguments: Any) -> None:
    StopSignals.forget()
    from shardbroker.membership.enrolment import EnrolmentError, run_enrolment

    try:
        writer.send(tuple(run_enrolment(*arguments)))
    except EnrolmentError as error:
        writer.send(str(error))
