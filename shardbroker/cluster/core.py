"""Membership by a core, which is etcd: its keys, and what a node makes of them.

    <prefix>meta           uuid of the cluster
    <prefix>ids/<n>        name, address, uuid of the data directory: for ever, until `forget`
    <prefix>members/<n>    incarnation, state, core (HOST:PORT of the etcd that it could run): under the lease of the node
    <prefix>gone/<n>       uuid, by: until the node joins again
    <prefix>lock/core      name of the node that changes the members of etcd: under its lease
    <prefix>config/<key>   a setting of all nodes: shardbroker/config/cluster_values.py
    <prefix>changed/config id, by: replaced by every change of a setting, so that of two changes at the same time one fails
    <prefix>applied/<n>    what a node has applied of them: revision, errors, restart, shadowed: under its lease
    <prefix>adopted/<uuid> of a data directory: cluster/adoption.py: for ever, so that it is served by its adopter alone

Values are CBOR maps. A node of `ids/` is linked; one of `members/` with state `up` owns partitions; one of `gone/` loses what
others keep for it. Only `gone/` removes: a key that is missing proves nothing, since an etcd that was set up again has none. All
nodes have the same view at the same revision, and `epoch` is the revision of the last change of a member.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cbor2

__all__ = [
    "ADOPTIONS_MAX",
    "APPLIED_MAX",
    "APPLIED_TEXT_MAX",
    "DRAINING",
    "JOINING",
    "NODE_ID_MAX",
    "SETTINGS_MAX",
    "SETTING_BYTES_MAX",
    "UP",
    "CoreKeys",
    "CoreNode",
    "CoreTable",
    "CoreView",
    "Row",
    "decode_view",
    "encode_view",
    "is_applied",
    "value_of",
]  # fmt: skip

JOINING, UP, DRAINING = "joining", "up", "draining"
"""States of a member."""
STATES = (JOINING, UP, DRAINING)
NODE_ID_MAX = 250
UUID_BYTES = 16
TEXT_BYTES_MAX = 255
"""Bytes of a name and of an address, as in HELLO."""
VALUE_BYTES_MAX = 4096
"""Bytes of a value that is decoded."""
INCARNATION_MAX = 1 << 53
PROBLEMS_MAX = 20
"""Unusable keys that are reported."""
SETTINGS_MAX = 200
"""Rows of `config/` that are kept: twice as many as are used, so that too many can be named."""
SETTING_BYTES_MAX = 20_000
"""Bytes that are kept of a row of `config/`: more than one that can be used has."""
REVISION_MAX = 1 << 63
ADOPTIONS_MAX = 10_000
"""Rows of `adopted/` that are kept, one for each data directory that was ever adopted."""
TERM_MAX = 1 << 32
APPLIED_BYTES_MAX = 1 << 16
"""Bytes of a row of `applied/` that is decoded."""
APPLIED_MAX = 50
"""Entries of a kind in it."""
APPLIED_TEXT_MAX = 300
"""Characters of a key or a reason in it."""


class CoreNode(NamedTuple):
    """A node that the core knows."""

    node_id: int
    name: str
    address: str
    uuid: bytes
    incarnation: int = 0
    """Of the broker that has the lease; 0: none has."""
    state: str = ""
    """Of STATES; empty without a lease."""
    is_gone: bool = False
    """Removed by `autoclean`, `force-leave` or `forget`, until it joins again."""


class CoreView(NamedTuple):
    """All nodes in the order of ids, at one revision."""

    epoch: int = 0
    nodes: tuple[CoreNode, ...] = ()
    is_current: bool = False
    """Read by this broker; otherwise it is what an earlier one knew."""

    def node(self, node_id: int) -> CoreNode | None:
        """Returns a node by its id."""
        return next((node for node in self.nodes if node.node_id == node_id), None)

    @property
    def owners(self) -> dict[int, int]:
        """Returns node id -> incarnation of the members that own partitions."""
        return {node.node_id: node.incarnation for node in self.nodes if node.state == UP and not node.is_gone}


class CoreKeys:
    """The keys of one cluster."""

    def __init__(self, prefix: str, cluster: str) -> None:
        self.prefix = f"/{prefix.strip('/')}/{cluster}/".encode()
        self.meta = self.prefix + b"meta"
        self.lock = self.prefix + b"lock/core"
        self.settings = self.prefix + b"config/"
        self.changed = self.prefix + b"changed/config"
        self.adopted = self.prefix + b"adopted/"

    def id_of(self, node_id: int) -> bytes:
        return self.prefix + b"ids/%d" % node_id

    def member_of(self, node_id: int) -> bytes:
        return self.prefix + b"members/%d" % node_id

    def gone_of(self, node_id: int) -> bytes:
        return self.prefix + b"gone/%d" % node_id

    def applied_of(self, node_id: int) -> bytes:
        return self.prefix + b"applied/%d" % node_id

    def adoption_of(self, uuid: bytes) -> bytes:
        return self.adopted + uuid.hex().encode()

    def setting_of(self, key: bytes) -> bytes:
        return self.settings + key

    def parsed(self, key: bytes) -> tuple[str, int] | None:
        """Returns (table, node id) of a key; None for another one."""
        table, slash, number = key.removeprefix(self.prefix).partition(b"/")
        if not key.startswith(self.prefix) or not slash or table not in (b"ids", b"members", b"gone", b"applied"):
            return None
        if not number.isdigit() or number.startswith(b"0") or len(number) > 3 or not 1 <= int(number) <= NODE_ID_MAX:
            return None
        return table.decode(), int(number)


class Row(NamedTuple):
    """One key: its decoded value, and the revision of its last change."""

    value: dict[str, Any]
    mod_revision: int


def value_of(**fields: Any) -> bytes:
    """Returns a value."""
    return cbor2.dumps(fields, canonical=True)


def _decoded(text: bytes, most: int = VALUE_BYTES_MAX) -> dict[str, Any]:
    """Raises ValueError for what is no map of a bounded size."""
    if len(text) > most:
        raise ValueError(f"must have at most {most} bytes, got {len(text)}")
    try:
        value = cbor2.loads(text)
    except (cbor2.CBORError, ValueError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(f"must be CBOR: {type(error).__name__}") from None
    if not isinstance(value, dict):
        raise ValueError(f"must be a map, got {type(value).__name__}")
    return value


def _check(table: str, value: dict[str, Any]) -> None:
    """Raises ValueError for a value that is not of its table."""
    if table == "applied":
        if not is_applied(value):
            raise ValueError("must have revision, errors, restart and shadowed")
        return
    _check_uuids(value, "uuid")
    if table == "ids":
        _check_texts(value, "name", "address")
        if not value["address"].rpartition(":")[2].isdigit():
            raise ValueError("address: must be HOST:PORT")
    if table == "members":
        if value.get("state") not in STATES:
            raise ValueError(f"state: must be one of {', '.join(STATES)}")
        _check_number(value, "incarnation", INCARNATION_MAX)


def _check_adoption(value: dict[str, Any]) -> None:
    """Raises ValueError for a value that is not of `adopted/`."""
    _check_uuids(value, "uuid", "owner_uuid")
    _check_texts(value, "name", "owner")
    for name, most in (("id", NODE_ID_MAX), ("term", TERM_MAX), ("since", INCARNATION_MAX)):
        _check_number(value, name, most)
    if not isinstance(value.get("done"), bool):
        raise ValueError("done: must be true or false")


def _check_uuids(value: dict[str, Any], *names: str) -> None:
    for name in names:
        uuid = value.get(name)
        if not isinstance(uuid, bytes) or len(uuid) != UUID_BYTES:
            raise ValueError(f"{name}: must have {UUID_BYTES} bytes")


def _check_texts(value: dict[str, Any], *names: str) -> None:
    for name in names:
        text = value.get(name)
        if not isinstance(text, str) or not 0 < len(text.encode(errors="replace")) <= TEXT_BYTES_MAX or not text.isprintable():
            raise ValueError(f"{name}: must be a text of 1 to {TEXT_BYTES_MAX} bytes")


def _check_number(value: dict[str, Any], name: str, most: int) -> None:
    number = value.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= most:
        raise ValueError(f"{name}: must be 1 to {most}")


def is_applied(value: Any) -> bool:
    """Returns whether a value says what a node has applied, within all bounds."""
    if not isinstance(value, dict) or not _is_revision(value.get("revision")):
        return False
    errors, restart, shadowed = (value.get(name) for name in ("errors", "restart", "shadowed"))
    if not isinstance(errors, dict) or not isinstance(restart, list) or not isinstance(shadowed, dict):
        return False
    texts = [*errors, *errors.values(), *restart, *shadowed, *shadowed.values()]
    is_bounded = all(len(one) <= APPLIED_MAX for one in (errors, restart, shadowed))
    return is_bounded and all(isinstance(one, str) and len(one) <= APPLIED_TEXT_MAX for one in texts)


def _is_revision(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < REVISION_MAX


@dataclass
class CoreTable:
    """The keys of a cluster as one node has read them. `before`: what was known of nodes, for keys that are missing."""

    keys: CoreKeys
    before: CoreView = field(default_factory=CoreView)
    meta: bytes = b""
    """Uuid of the cluster; empty: no cluster."""
    revision: int = 0
    """Up to which all changes are known."""
    epoch: int = 0
    rows: dict[tuple[str, int], Row] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Keys whose values cannot be used; the caller clears it."""
    settings: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    """Rows of `config/`, unchecked: key -> the beginning of its value, revision of its last change."""
    settings_revision: int = 0
    """Of the last change of one of them."""
    changed: tuple[bytes, int] = (b"", 0)
    """The id of the last change that a node has made, and its revision."""
    left_out: int = 0
    """Rows of `config/` that are not kept."""
    adoptions: dict[bytes, Row] = field(default_factory=dict)
    """Rows of `adopted/` by the uuid of the data directory."""

    def __post_init__(self) -> None:
        self.epoch = self.before.epoch

    def load(self, kvs: Iterable[tuple[bytes, bytes, int]], revision: int) -> None:
        """Takes all keys at a revision: (key, value, revision of its last change)."""
        self.before = self.view()
        self.rows.clear()
        self.adoptions.clear()
        self.meta, self.changed = b"", (b"", 0)
        for key, value, mod_revision in kvs:
            self._take(key, value, mod_revision)
        self.revision = revision

    def load_settings(self, kvs: Iterable[tuple[bytes, bytes, int]], left_out: int) -> None:
        """Takes all rows of `config/`, behind `load`; `left_out`: further ones that were not read."""
        self.settings.clear()
        self.left_out, self.settings_revision = left_out, self.changed[1]
        for key, value, mod_revision in kvs:
            self._take_setting(key, value, mod_revision)

    def apply(self, changes: Iterable[tuple[bytes, bytes | None, int]]) -> None:
        """Takes changes in their order, whole revisions each; value None: the key was deleted. Those that `load` has had are left
        out."""
        known, before = self.revision, self.view()
        for key, value, mod_revision in changes:
            if mod_revision > known:
                if value is None:
                    self.before = before  # what is deleted was known
                self._take(key, value, mod_revision)
                self.revision = mod_revision

    def _take(self, key: bytes, value: bytes | None, mod_revision: int) -> None:
        if key == self.keys.meta:
            self.meta = self._uuid_of(value)
            return
        if key == self.keys.changed:
            self.changed = self._id_of(value), mod_revision
            self.settings_revision = max(self.settings_revision, mod_revision)
            return
        if key.startswith(self.keys.settings):
            self._take_setting(key, value, mod_revision)
            return
        if key.startswith(self.keys.adopted):
            self._take_adoption(key, value, mod_revision)
            return
        parsed = self.keys.parsed(key)
        if parsed is None:
            return
        if parsed[0] == "members":
            self.epoch = max(self.epoch, mod_revision)
        self.rows.pop(parsed, None)
        if value is None:
            return
        try:
            decoded = _decoded(value, APPLIED_BYTES_MAX if parsed[0] == "applied" else VALUE_BYTES_MAX)
            _check(parsed[0], decoded)
        except ValueError as error:
            self._note(key, error)
            return
        self.rows[parsed] = Row(decoded, mod_revision)

    def _note(self, key: bytes, error: Exception) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"{key.decode(errors='replace')}: {error}")

    def _take_adoption(self, key: bytes, value: bytes | None, mod_revision: int) -> None:
        try:
            uuid = bytes.fromhex(key.removeprefix(self.keys.adopted).decode())
            self.adoptions.pop(uuid, None)
            if value is None:
                return
            decoded = _decoded(value)
            _check_adoption(decoded)
            if decoded["uuid"] != uuid:
                raise ValueError("uuid: must be that of the key")
            if len(self.adoptions) >= ADOPTIONS_MAX:
                raise ValueError(f"must be one of {ADOPTIONS_MAX} rows at most")
        except ValueError as error:
            self._note(key, error)
            return
        self.adoptions[uuid] = Row(decoded, mod_revision)

    def _take_setting(self, key: bytes, value: bytes | None, mod_revision: int) -> None:
        name = key.removeprefix(self.keys.settings)
        self.settings_revision = max(self.settings_revision, mod_revision)
        if value is None:
            if self.settings.pop(name, None) is None:
                self.left_out = max(0, self.left_out - 1)
        elif name in self.settings or len(self.settings) < SETTINGS_MAX:
            self.settings[name] = value[:SETTING_BYTES_MAX], mod_revision
        else:
            self.left_out += 1

    @staticmethod
    def _id_of(value: bytes | None) -> bytes:
        try:
            found = _decoded(value).get("id") if value is not None else b""
        except ValueError:
            found = b""
        return found if isinstance(found, bytes) else b""

    def _uuid_of(self, value: bytes | None) -> bytes:
        try:
            uuid = _decoded(value).get("uuid") if value is not None else b""
        except ValueError:
            uuid = None
        return uuid if isinstance(uuid, bytes) and len(uuid) in (0, UUID_BYTES) else b"?" * UUID_BYTES

    def row(self, table: str, node_id: int) -> Row | None:
        """Returns a row of `ids`, `members` or `gone`."""
        return self.rows.get((table, node_id))

    def revision_of(self, table: str, node_id: int) -> int:
        """Returns the revision of the last change of a row; 0: no such row."""
        row = self.row(table, node_id)
        return row.mod_revision if row is not None else 0

    def view(self) -> CoreView:
        """Returns what the keys say, and for those that are missing what was known."""
        nodes = {}
        for node_id in {number for _, number in self.rows} | {node.node_id for node in self.before.nodes}:
            if (node := self._node(node_id)) is not None:
                nodes[node_id] = node
        return CoreView(self.epoch, tuple(nodes[node_id] for node_id in sorted(nodes)), True)

    def _node(self, node_id: int) -> CoreNode | None:
        found, known, gone = self.row("ids", node_id), self.before.node(node_id), self.row("gone", node_id)
        if found is not None:
            value = found.value
            node = CoreNode(node_id, value["name"], value["address"], value["uuid"])
        elif known is not None:
            node = known._replace(incarnation=0, state="", is_gone=False)
        else:
            return None
        member = self.row("members", node_id)
        if member is not None and member.value["uuid"] == node.uuid:
            return node._replace(incarnation=member.value["incarnation"], state=member.value["state"])
        return node._replace(is_gone=gone is not None and gone.value["uuid"] == node.uuid)


def encode_view(view: CoreView) -> bytes:
    """Returns a view for `decode_view`."""
    return cbor2.dumps([view.epoch, [list(node) for node in view.nodes], view.is_current])


def decode_view(text: bytes) -> CoreView:
    """Returns an encoded view. Raises ValueError."""
    try:
        epoch, nodes, is_current = cbor2.loads(text)
        return CoreView(int(epoch), tuple(CoreNode(*node) for node in nodes), bool(is_current))
    except (cbor2.CBORError, TypeError, ValueError) as error:
        raise ValueError(f"must be a list of members: {type(error).__name__}") from None
