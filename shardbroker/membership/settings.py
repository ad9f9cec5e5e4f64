"""Settings of all nodes in the core: read for the manager, written for it, and what each node has applied of them.

    etcd config/  ----> <runtime_dir>/core-config  and  <data_dir>/cluster/config ----> manager, and the next start
    etcd applied/ <---- <runtime_dir>/core-applied <----------------------------------- manager
    etcd applied/ ----> <runtime_dir>/core-applied.json -----------------------------> manager

Files outlive a kill of either process; values pass through unchecked, since this process does not know the schema.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import cbor2

from shardbroker.cluster.core import SETTINGS_MAX, CoreKeys, CoreTable, is_applied, value_of
from shardbroker.config.cluster_values import COPY_FILE, COUNT_MAX, Rows, decode_rows, encode_rows
from shardbroker.membership.etcd import (
    Compacted,
    Etcd,
    EtcdError,
    EtcdUnavailable,
    Found,
    delete_op,
    end_of_prefix,
    put_op,
    unchanged,
)
from shardbroker.stores.files import Stamp, replace_file, stamp_of
from shm.topology import Topology

__all__ = ["CoreSettings", "NotKnown"]

WRITES_S = 1.0
"""Least time between two writes of what this node has applied: each is a write on all members of etcd."""
APPLY_S = 10.0
"""Longest wait of a node that joins for its manager to apply the settings of all nodes, before its members are published."""
LOOK_S = 0.05
ID_BYTES = 16


class NotKnown(Exception):
    """A change was sent and not answered: it may have been carried out."""


class CoreSettings:
    """failed, recovered: of a phrase of the log, as the process `cluster` has them."""

    def __init__(
        self, topology: Topology, keys: CoreKeys, failed: Callable[[str, Exception], None], recovered: Callable[[str], None]
    ) -> None:
        self._topology, self._keys, self._failed, self._recovered = topology, keys, failed, recovered
        self._copy = topology.data_dir / COPY_FILE
        self._written = self._reported = b""
        self._passed: tuple[Stamp | None, int] = None, 0
        """What was written to `applied/` last, and the lease under which."""
        self._due = 0.0
        self.is_read = False
        """Whether the table has what the core has."""

    # --- from the core ----------------------------------------------------------------------------------------------------

    async def read(self, etcd: Etcd, revision: int) -> Found | None:
        """Returns all values at a revision; None if that fails alone. Raises Compacted."""
        try:
            return await etcd.range(self._keys.settings, end_of_prefix(self._keys.settings), SETTINGS_MAX, revision)
        except Compacted:
            raise
        except EtcdError as error:
            self._failed("core settings not read", error)
            return None

    def load(self, table: CoreTable, found: Found | None) -> None:
        """Takes what `read` has found, right behind the members of the same revision; None: the values stay as they were."""
        self.is_read = found is not None
        if found is not None:
            table.load_settings([(kv.key, kv.value, kv.mod_revision) for kv in found.kvs], max(0, found.total - len(found.kvs)))
            self._recovered("core settings not read")

    def publish(self, table: CoreTable) -> None:
        """Writes the values for the manager and for the next start if they have changed; those of an etcd that was set up again, or
        has another cluster, do not count."""
        self._report(table)
        if not self.is_read or table.meta != self._topology.cluster_uuid:
            return
        rows = tuple((key, value, revision) for key, (value, revision) in sorted(table.settings.items()))
        text = encode_rows(Rows(table.settings_revision, table.changed[1], rows, table.left_out, self._keys.prefix.decode()))
        if text == self._written:
            return
        self._written = text
        replace_file(self._topology.cluster_values, text, sync=False)
        try:
            self._copy.parent.mkdir(mode=0o700, exist_ok=True)
            if not self._copy.exists() or self._copy.read_bytes() != text:
                replace_file(self._copy, text)
            self._recovered("core settings not stored")
        except OSError as error:
            self._failed("core settings not stored", error)

    def _report(self, table: CoreTable) -> None:
        nodes = [
            {
                "name": node.name, "state": node.state,
                "applied": row.value if (row := table.row("applied", node.node_id)) is not None and node.incarnation else None,
            }
            for node in table.view().nodes if not node.is_gone
        ]  # fmt: skip
        text = json.dumps(nodes).encode()
        if text != self._reported:
            self._reported = text
            replace_file(self._topology.cluster_report, text, sync=False)

    def lost(self, table: CoreTable) -> list[tuple[bytes, bytes]]:
        """Returns the values to restore in an etcd that was set up again: those that this node knows and the core lacks."""
        for path in (self._topology.cluster_values, self._copy):
            with suppress(OSError, ValueError):
                rows = decode_rows(path.read_bytes()).rows[:COUNT_MAX]
                return [(key, value) for key, value, _ in rows if key not in table.settings]
        return []

    async def applied(self, table: CoreTable) -> None:
        """Waits until the manager has applied the values that were published, but not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(APPLY_S):
                while self._written and (self._own() or {"revision": -1})["revision"] < table.settings_revision:
                    await asyncio.sleep(LOOK_S)

    def _own(self) -> dict[str, Any] | None:
        try:
            found = cbor2.loads(self._topology.cluster_applied.read_bytes())
        except (OSError, ValueError, cbor2.CBORError):
            return None
        return found if is_applied(found) else None

    # --- to the core ------------------------------------------------------------------------------------------------------

    async def pass_on(self, etcd: Etcd, lease: int) -> None:
        """Writes what the manager has applied, under the lease of this node. Raises EtcdError."""
        stamp = stamp_of(self._topology.cluster_applied)
        if stamp is None or (stamp, lease) == self._passed or time.monotonic() < self._due or (own := self._own()) is None:
            return
        await etcd.put(self._keys.applied_of(self._topology.node_id), value_of(**own), lease)
        self._passed, self._due = (stamp, lease), time.monotonic() + WRITES_S

    async def change(
        self, etcd: Etcd, table: CoreTable, request: dict[str, Any], read_again: Callable[[], Awaitable[None]]
    ) -> dict[str, int]:
        """Carries out a change, `puts` and `deletes`, if nothing has changed since the manager has read the values: `changed`, and
        `revisions` of the keys. Returns the `revision`; 0: something has. Raises EtcdError, NotKnown."""
        keys, own = self._keys, os.urandom(ID_BYTES)
        conditions = [unchanged(keys.changed, request["changed"])]
        conditions += [unchanged(keys.setting_of(key), revision) for key, revision in request["revisions"].items()]
        operations = [put_op(keys.setting_of(key), value) for key, value in request["puts"].items()]
        operations += [delete_op(keys.setting_of(key)) for key in request["deletes"]]
        operations.append(put_op(keys.changed, value_of(id=own, by=request["by"])))
        try:
            done = await etcd.txn(conditions, operations)
            if done.succeeded:
                return {"revision": done.revision}
            await read_again()
        except EtcdUnavailable as error:
            raise NotKnown(str(error)) from None
        # An attempt whose answer was lost has changed the row itself.
        return {"revision": table.changed[1] if table.changed[0] == own else 0}
