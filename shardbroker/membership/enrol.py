"""Enrols the node of a data directory: `python -m shardbroker.membership.enrol`, for a manager that makes its broker a node.

A program of its own, since gRPC has threads, which the manager does not need otherwise. Standard input has a CBOR map: `settings`,
`cluster`, the uuid of the cluster; standard output gets JSON: `id`, or `problem`. What is allotted is in the data directory then.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import cbor2

from shardbroker.config import Settings
from shardbroker.config.cluster import own_address
from shardbroker.config.cluster_values import COPY_FILE
from shardbroker.config.live import parse
from shardbroker.membership.core_file import PLAN_FILE
from shardbroker.membership.enrolment import EnrolmentError, run_enrolment
from shardbroker.stores.node_file import MEMBERS_FILE, node_uuid, read_enrolled, write_enrolled

__all__ = ["enrolled_in"]

ENROL_S = 10.0
"""Longest time of an enrolment: `ctl` waits for 30 s, and nothing has changed without an answer."""


def enrolled_in(settings: Settings, cluster: bytes) -> dict[str, Any]:
    """Returns {"id"} of this node in a cluster, or {"problem"}."""
    data_dir = settings.process.data_dir.resolve()
    wanted = settings.cluster.model_copy(update={"join_timeout": min(settings.cluster.join_timeout, ENROL_S)})
    try:
        known = read_enrolled(data_dir)
        if known is None:
            _forget_others(data_dir)
        uuid, address = node_uuid(data_dir), own_address(wanted)
        found = run_enrolment(wanted, settings.node.id, settings.node.name, address, uuid, data_dir, cluster)
        write_enrolled(data_dir, found)
    except (EnrolmentError, ValueError) as error:
        return {"problem": str(error)}
    except OSError as error:
        return {"problem": f"data directory {data_dir}: {error.strerror}"}
    return {"id": found.node_id}


def _forget_others(data_dir: Path) -> None:
    """Removes what is known of the core of another cluster: addresses, members and settings. Raises OSError."""
    for name in (PLAN_FILE, MEMBERS_FILE, COPY_FILE):
        (data_dir / name).unlink(missing_ok=True)


def main() -> None:
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a library is no answer
    try:
        given = cbor2.loads(sys.stdin.buffer.read())
    except cbor2.CBORDecodeEOF:
        sys.exit(1)  # the manager was killed while it wrote
    found = enrolled_in(parse(given["settings"]), given["cluster"])
    with suppress(BrokenPipeError), open(out, "w", encoding="utf-8") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
