"""The members of the cluster in one segment; see view.pxd."""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy, memset

from shm.atomic cimport sb_fence, sb_load, sb_store

from collections import namedtuple

from shm import segment

__all__ = ["ViewNode", "ViewSegment", "ViewState"]

cdef enum:
    MAGIC = 0x3257454956425300             # "\0SBVIEW2"
    HEADER = 64                            # bytes
    VERSION = 1                            # words of the header
    INCARNATION = 2
    UUID_AT = 32                           # bytes from the start
    UUID_BYTES = 16
    COPY = sizeof(ViewTotals) + VIEW_ROWS * sizeof(ViewRow)
    SEGMENT = HEADER + 2 * COPY
    TRIES = 1000                           # a writer changes the view some hundred times a second at most

ViewNode = namedtuple(
    "ViewNode", "incarnation is_new gone acked lag is_member link routes uuid name address skew_ms",
    defaults=(0, 0, 0, 0, 0, False, 0, 0, bytes(UUID_BYTES), "", "", 0),
)
ViewNode.__doc__ = """One row; the meaning of the fields is in view.pxd."""

ViewState = namedtuple("ViewState", "version epoch isolated state joined_late nodes")
ViewState.__doc__ = """One version of the view. `nodes`: node id -> ViewNode, for rows in use."""


cdef class ViewSegment:
    """The view of a running broker. Raises ValueError for a node id that is out of range."""

    @staticmethod
    def create(str name not None, uint64_t incarnation, bytes uuid not None) -> ViewSegment:
        """Creates a view without members. Raises FileExistsError, OSError."""
        cdef ViewSegment view = ViewSegment.__new__(ViewSegment)
        if len(uuid) != UUID_BYTES:
            raise ValueError(f"uuid: must have {UUID_BYTES} bytes, got {len(uuid)}")
        view.map(name, segment.create(name, SEGMENT))
        (<uint64_t*>view.base)[INCARNATION] = incarnation
        memcpy(view.base + UUID_AT, PyBytes_AS_STRING(uuid), UUID_BYTES)
        sb_store(<uint64_t*>view.base, MAGIC)
        return view

    @staticmethod
    def attach(str name not None) -> ViewSegment:
        """Attaches to the segment that the supervisor created. Raises FileNotFoundError, PermissionError, ValueError."""
        cdef ViewSegment view = ViewSegment.__new__(ViewSegment)
        view.map(name, segment.attach(name, SEGMENT))
        if sb_load(<uint64_t*>view.base) != MAGIC or len(view.mapping) != SEGMENT:
            raise ValueError(f"segment {name} holds no view of this version")
        return view

    cdef int map(self, str name, object mapping) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(mapping, &view, PyBUF_WRITABLE)
        self.base = <uint8_t*>view.buf
        PyBuffer_Release(&view)
        self.mapping = mapping
        self.name = name
        return 0

    cdef ViewTotals* totals(self, uint64_t version) noexcept:
        return <ViewTotals*>(self.base + HEADER + (version & 1) * <uint64_t>COPY)

    cdef ViewRow* row(self, uint64_t version, int node) noexcept:
        return <ViewRow*>(<uint8_t*>self.totals(version) + sizeof(ViewTotals)) + node

    cdef uint64_t version(self) noexcept:
        return sb_load(<uint64_t*>self.base + VERSION)

    cdef int link_state(self, int node) noexcept:
        cdef ViewRow* row = self.row(self.version(), node)
        return row.link if row.is_member else 0

    cdef bint is_member(self, int node) noexcept:
        return self.row(self.version(), node).is_member

    @property
    def incarnation(self) -> int:
        """Returns the incarnation of this node: the same for all processes of one run of the broker."""
        return (<uint64_t*>self.base)[INCARNATION]

    @property
    def uuid(self) -> bytes:
        """Returns the uuid of this node's data directory."""
        return (<char*>self.base + UUID_AT)[:UUID_BYTES]

    def version_now(self) -> int:
        """Returns the number of changes so far."""
        return self.version()

    def link_of(self, int node) -> int:
        """Returns the LinkState of a node; 0 (DOWN) for an unknown one."""
        check(node)
        return self.link_state(node)

    def knows(self, int node) -> bool:
        """Returns whether a node of this id has proved itself since this broker started, and has not left."""
        check(node)
        return self.is_member(node)

    def read(self) -> ViewState:
        """Returns one version of the view."""
        cdef uint64_t version
        cdef bytes copy
        for _ in range(TRIES):
            version = self.version()
            copy = (<char*>self.totals(version))[:COPY]
            sb_fence()
            if self.version() == version:
                return decode(version, copy)
        raise RuntimeError(f"segment {self.name}: version has changed during each of {TRIES} reads")

    def write(self, uint64_t epoch, bint isolated, int state, bint joined_late, dict nodes not None) -> None:
        """Publishes a new version; for link-0 alone. Rows of ids that `nodes` does not name become empty."""
        cdef uint64_t version = self.version() + 1
        cdef ViewTotals* totals = self.totals(version)
        memset(totals, 0, COPY)
        totals.epoch = epoch
        totals.isolated = isolated
        totals.state = <uint8_t>state
        totals.joined_late = joined_late
        for node, one in nodes.items():
            check(node)
            encode(self.row(version, node), one)
        sb_store(<uint64_t*>self.base + VERSION, version)

    def unlink(self) -> None:
        """Removes the name of the segment."""
        segment.unlink(self.name)


cdef int check(int node) except -1:
    if not 0 < node < VIEW_ROWS:
        raise ValueError(f"node id: must be 1 to {VIEW_ROWS - 1}, got {node}")
    return 0


cdef int encode(ViewRow* row, one) except -1:
    cdef bytes uuid = one.uuid, name = one.name.encode(), address = one.address.encode()
    for field, text, most in ("uuid", uuid, UUID_BYTES), ("name", name, VIEW_TEXT), ("address", address, VIEW_TEXT):
        if len(text) > most:
            raise ValueError(f"{field}: must have at most {most} bytes, got {len(text)}")
    row.incarnation = one.incarnation
    row.is_new = one.is_new
    row.gone = one.gone
    row.acked = one.acked
    row.lag = one.lag
    row.skew_ms = one.skew_ms
    row.is_member = one.is_member
    row.link = one.link
    row.routes = one.routes
    row.name_size = <uint8_t>len(name)
    row.address_size = <uint8_t>len(address)
    memcpy(row.uuid, PyBytes_AS_STRING(uuid), PyBytes_GET_SIZE(uuid))
    memcpy(row.name, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
    memcpy(row.address, PyBytes_AS_STRING(address), PyBytes_GET_SIZE(address))
    return 0


cdef object decode(uint64_t version, bytes copy):
    cdef ViewTotals* totals = <ViewTotals*>PyBytes_AS_STRING(copy)
    cdef ViewRow* rows = <ViewRow*>(PyBytes_AS_STRING(copy) + sizeof(ViewTotals))
    cdef ViewRow* row
    cdef int node
    cdef dict nodes = {}
    for node in range(1, VIEW_ROWS):
        row = rows + node
        if not (row.incarnation or row.is_new or row.gone):
            continue
        nodes[node] = ViewNode(
            row.incarnation, row.is_new, row.gone, row.acked, row.lag, bool(row.is_member), row.link, row.routes,
            (<char*>row.uuid)[:UUID_BYTES], text(row.name, row.name_size), text(row.address, row.address_size),
            row.skew_ms,
        )
    return ViewState(version, totals.epoch, bool(totals.isolated), totals.state, bool(totals.joined_late), nodes)


cdef str text(const uint8_t* start, size_t size):
    return (<const char*>start)[:size].decode(errors="replace")
