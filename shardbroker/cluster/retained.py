"""A table that is on all nodes: changes as they are made, and a comparison of what two linked nodes have.

The tables are the retained messages (stores/replicated.py), and users, rules, bans, accounts and API keys (access/replicated.py,
access/replicated_accounts.py). A topic is the key of a row in its table; for retained messages it is a topic.

    change of this node  -> ROWS -> all peers; ACK opens the window

    comparison, begun by either side; its other side answers
    BEGIN(sums of 4096 buckets) ->
                                <- SUMMARY(ranges of digests in buckets that differ: id of each topic)
    ROWS(newer here, or missing there) ->
    WANT(newer there, or missing here) ->
                                <- ROWS
                                <- SUMMARY ... until the last one is answered
                                <- END

A row wins or is ignored by its stamp, so rows may be lost with a connection, repeated, and arrive in any order: the next comparison
finds what is missing. What a peer gets from a third node is not sent on to others: the comparison does that too.

Bounds: ROWS without ACK of a peer have WINDOW_BYTES and one row more; of a summary SUMMARY_ENTRIES topics, so a WANT has no more;
one comparison for each direction and peer. A call of `work` handles STEP_ENTRIES topics or one batch of rows for each peer.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from shardbroker.cluster.faults import ByeReason, PeerFault
from shardbroker.cluster.messages import (
    RetainedAck,
    RetainedBegin,
    RetainedEnd,
    RetainedMessages,
    RetainedRange,
    RetainedRows,
    RetainedSummary,
    RetainedWant,
)

__all__ = ["COMPARE_MS", "DIGEST", "ROWS_BYTES", "ROWS_MAX", "SUMMARY_ENTRIES", "SUMS_BYTES", "Replication", "Table"]

BUCKETS, SUM, DIGEST, ID = 4096, 8, 16, 16
SUMS_BYTES = BUCKETS * SUM
ENTRY = DIGEST + ID + 1
REFUSED = 2
"""State of a topic whose message a limit of its node has refused."""
ROWS_MAX = 200
"""Rows of a batch, which its receiver stores in one transaction: some 4 ms, for which workers with retained messages wait."""
ROWS_BYTES = 256 << 10
"""Bytes of a batch above which no further row follows."""
WINDOW_BYTES = 1 << 20
"""Bytes of rows on the way to a peer: pings of the connection must not wait behind more."""
SUMMARY_ENTRIES = 5_000
"""Topics of a summary: 165 KB; it takes 5 ms to make and to compare."""
STEP_ENTRIES = 1_000
"""Own topics compared with a summary in one step."""
COMPARE_MS = 60_000
"""Interval of comparisons of linked nodes. They find what a node that is gone has sent to some nodes only."""
LOST_MS = 2_000
"""Time from the end of a link to a comparison with the other peers."""
MAX_DIGEST = b"\xff" * DIGEST

Entry = tuple[bytes, bytes, int]
"""Digest of a topic, id of its newest change, state."""


class Table(Protocol):
    """The table of this node. A row is the newest change of a topic, as one node sends it to another."""

    def is_ready(self) -> bool:
        """Returns whether the sums are those of all rows."""

    def head(self) -> int:
        """Returns the number of the newest change of this node."""

    def changes_behind(self, number: int, most: int) -> tuple[int, list[bytes]] | None:
        """Returns the topics of changes, and the number of the last; None: some are not kept."""

    def sums(self) -> bytes:
        """Returns the sums of all buckets."""

    def entries(self, first: bytes, last: bytes, most: int) -> list[Entry]:
        """Returns topics with digests from `first` to `last`, in their order."""

    def rows(self, digests: Sequence[bytes], byte_limit: int) -> tuple[list[bytes], int]:
        """Returns rows of topics, and how many topics that covers: at least one."""

    def merge(self, rows: Sequence[bytes]) -> None:
        """Stores rows that win. Raises ValueError for one that is no row."""


@dataclass
class _Asked:
    """A comparison that this node has begun."""

    round: int
    summary: RetainedSummary | None = None
    steps: Iterator[list[bytes]] | None = None
    """Topics to be sent, a step at a time."""
    wanted: list[bytes] = field(default_factory=list)
    pushed: deque[bytes] = field(default_factory=deque)


@dataclass
class _Answered:
    """A comparison that the peer has begun."""

    round: int
    sums: bytes | None
    """Those of the peer, until this node's are ready."""
    buckets: deque[int] = field(default_factory=deque)
    """Buckets that differ and are not summarized yet."""
    first: bytes = b""
    """Where the first of them continues."""
    number: int = 0
    entries: int = 0
    """Topics of the summary that is to be answered."""
    is_waiting: bool = False
    is_last: bool = False
    wanted: deque[bytes] = field(default_factory=deque)


@dataclass
class _Peer:
    """One connection to a node that takes the table."""

    begins: bool
    position: int
    due_ms: int
    number: int = 0
    """Batches of rows that were sent."""
    unacked: deque[int] = field(default_factory=deque)
    """Sizes of those without ACK, oldest first."""
    taken: int = 0
    """Batches of rows that were received."""
    live: deque[bytes] = field(default_factory=deque)
    rounds: int = 0
    asked: _Asked | None = None
    answered: _Answered | None = None
    is_synced: bool = False
    is_behind: bool = False
    """Changes of this node were not kept for it: this node has to begin a comparison."""

    @property
    def has_room(self) -> bool:
        return sum(self.unacked) < WINDOW_BYTES


Sent = tuple[int, RetainedMessages]


class Replication:
    """The table of one node and its peers. A connection is a number that is never used twice."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._peers: dict[int, _Peer] = {}

    def follow(self, connections: Mapping[int, bool], now_ms: int) -> None:
        """Takes the present connections to nodes that take the table, and which of them this node compares regularly."""
        lost = [number for number in self._peers if number not in connections]
        for number in lost:
            del self._peers[number]
        for number, begins in connections.items():
            if number not in self._peers:
                self._peers[number] = _Peer(begins, self._table.head(), now_ms)
            elif lost:
                self._peers[number].due_ms = min(self._peers[number].due_ms, now_ms + LOST_MS)

    def drop(self, number: int) -> None:
        """Forgets a connection whose peer is at fault."""
        self._peers.pop(number, None)

    def is_synced(self, number: int) -> bool:
        """Returns whether a peer has been compared, and nothing waits to be sent to it."""
        peer = self._peers.get(number)
        return peer is not None and peer.is_synced and not peer.live and not peer.unacked

    # --- messages ------------------------------------------------------------------------------------------------------

    def received(self, number: int, message: RetainedMessages, now_ms: int) -> list[Sent]:
        """Takes a message of a connection, in the order of sending; returns what to send. Raises PeerFault."""
        peer = self._peers.get(number)
        if peer is None:
            return []
        match message:
            case RetainedRows(batch, rows):
                if batch != peer.taken + 1:
                    raise _fault(f"RETAINED_ROWS: must have the number {peer.taken + 1}, got {batch}")
                try:
                    self._table.merge(rows)
                except ValueError as error:
                    raise _fault(str(error)) from None
                peer.taken = batch
                return [(number, RetainedAck(batch))]
            case RetainedAck(batch):
                behind = peer.number - batch
                if not 0 <= behind < len(peer.unacked):
                    raise _fault(f"RETAINED_ACK: must be of a batch on the way, got {batch} of {peer.number}")
                while len(peer.unacked) > behind:
                    peer.unacked.popleft()
            case RetainedBegin(round, sums):
                if len(sums) != SUMS_BYTES:
                    raise _fault(f"RETAINED_BEGIN: must have {SUMS_BYTES} bytes, got {len(sums)}")
                peer.answered = _Answered(round, sums)
            case RetainedSummary():
                self._summarized(peer, message)
            case RetainedWant(round, of_summary, digests):
                self._wanted(peer, round, of_summary, digests)
            case RetainedEnd(round):
                if peer.asked is None or peer.asked.round != round or peer.asked.summary is not None:
                    raise _fault(f"RETAINED_END: must be of the round that was begun, got {round}")
                self._ended(peer, now_ms)
        return []

    def _ended(self, peer: _Peer, now_ms: int) -> None:
        peer.asked = None
        peer.is_synced = not peer.is_behind
        peer.due_ms = now_ms + COMPARE_MS

    def _summarized(self, peer: _Peer, summary: RetainedSummary) -> None:
        asked = peer.asked
        if asked is None or summary.round != asked.round or asked.summary is not None:
            raise _fault(f"RETAINED_SUMMARY: must be of the round that was begun, got {summary.round}")
        before = b""
        for first, last, entries in summary.ranges:
            if len(first) != DIGEST or len(last) != DIGEST or not before < first <= last or len(entries) % ENTRY:
                raise _fault("RETAINED_SUMMARY: must have ranges in their order")
            digests = [entries[at : at + DIGEST] for at in range(0, len(entries), ENTRY)]
            if digests and (digests[0] < first or digests[-1] > last or any(one >= other for one, other in pairwise(digests))):
                raise _fault("RETAINED_SUMMARY: must have the topics of its ranges, in their order")
            before = last
        asked.summary = summary
        asked.steps = self._compare(asked, summary.ranges)

    def _compare(self, asked: _Asked, ranges: Sequence[RetainedRange]) -> Iterator[list[bytes]]:
        """Yields the topics that are newer here, after each step; those that are newer there are noted."""
        for first, last, entries in ranges:
            theirs = {
                entries[at : at + DIGEST]: (entries[at + DIGEST : at + DIGEST + ID], entries[at + ENTRY - 1])
                for at in range(0, len(entries), ENTRY)
            }
            start: bytes | None = first
            while start is not None:
                own = self._table.entries(start, last, STEP_ENTRIES)
                newer = []
                for digest, id, state in own:
                    their_id, their_state = theirs.pop(digest, (b"", REFUSED))
                    if id > their_id:
                        if state != REFUSED:
                            newer.append(digest)
                    elif id < their_id and their_state != REFUSED:
                        asked.wanted.append(digest)
                start = _behind(own[-1][0]) if len(own) == STEP_ENTRIES and own[-1][0] < last else None
                yield newer
            asked.wanted += [digest for digest, (_, state) in theirs.items() if state != REFUSED]

    def _wanted(self, peer: _Peer, round: int, number: int, digests: bytes) -> None:
        answered = peer.answered
        if answered is None or not answered.is_waiting or (round, number) != (answered.round, answered.number):
            raise _fault(f"RETAINED_WANT: must answer the last summary, got {number} of round {round}")
        if len(digests) % DIGEST or len(digests) > answered.entries * DIGEST:
            raise _fault(f"RETAINED_WANT: must have at most {answered.entries} topics, got {len(digests)} bytes")
        answered.is_waiting = False
        answered.wanted.extend(digests[at : at + DIGEST] for at in range(0, len(digests), DIGEST))

    # --- work ----------------------------------------------------------------------------------------------------------

    def work(self, now_ms: int) -> tuple[list[Sent], bool]:
        """Does a bounded part of what is due. Returns what to send, and whether there is more to do at once."""
        sent: list[Sent] = []
        has_more = False
        is_ready = self._table.is_ready()
        for number, peer in self._peers.items():
            found: list[RetainedMessages] = [*self._rows(peer)]
            if is_ready:
                found += self._ask(peer, now_ms)
                found += self._answer(peer)
            sent += [(number, message) for message in found]
            has_more = has_more or bool(found) or self._is_comparing(peer)
        return sent, has_more

    def _is_comparing(self, peer: _Peer) -> bool:
        return peer.asked is not None and peer.asked.steps is not None and peer.has_room

    def _rows(self, peer: _Peer) -> Iterator[RetainedRows]:
        """Yields the next batch of rows, changes of this node first."""
        if not peer.has_room:
            return
        if not peer.live:
            found = self._table.changes_behind(peer.position, ROWS_MAX)
            if found is None:
                peer.position = self._table.head()
                peer.is_synced, peer.is_behind = False, True
            else:
                peer.position = found[0]
                peer.live.extend(dict.fromkeys(found[1]))
        queue = peer.live
        if not queue and peer.answered is not None:
            queue = peer.answered.wanted
        if not queue and peer.asked is not None:
            queue = peer.asked.pushed
        while queue:
            batch = [queue[at] for at in range(min(ROWS_MAX, len(queue)))]
            rows, covered = self._table.rows(batch, ROWS_BYTES)
            for _ in range(covered):
                queue.popleft()
            if rows:
                peer.number += 1
                peer.unacked.append(sum(map(len, rows)))
                yield RetainedRows(peer.number, tuple(rows))
                return

    def _ask(self, peer: _Peer, now_ms: int) -> list[RetainedMessages]:
        asked = peer.asked
        if asked is None:
            if not peer.is_behind and not (peer.begins and now_ms >= peer.due_ms):
                return []
            peer.is_behind = False
            peer.rounds += 1
            peer.asked = _Asked(peer.rounds)
            return [RetainedBegin(peer.rounds, self._table.sums())]
        if asked.steps is None or asked.pushed or not peer.has_room:
            return []
        newer = next(asked.steps, None)
        if newer is not None:
            asked.pushed.extend(newer)
            return []
        assert asked.summary is not None
        answer = RetainedWant(asked.round, asked.summary.number, b"".join(asked.wanted))
        asked.summary = asked.steps = None
        asked.wanted = []
        return [answer]

    def _answer(self, peer: _Peer) -> list[RetainedMessages]:
        answered = peer.answered
        if answered is None or answered.is_waiting or answered.wanted:
            return []
        if answered.sums is not None:
            own = self._table.sums()
            theirs = answered.sums
            answered.buckets.extend(at // SUM for at in range(0, SUMS_BYTES, SUM) if own[at : at + SUM] != theirs[at : at + SUM])
            answered.sums = None
            answered.is_last = not answered.buckets
        if answered.is_last:
            peer.answered = None
            peer.is_synced = not peer.is_behind
            return [RetainedEnd(answered.round)]
        return [self._summary(answered)]

    def _summary(self, answered: _Answered) -> RetainedSummary:
        ranges: list[RetainedRange] = []
        left = SUMMARY_ENTRIES
        while answered.buckets and left > 0:
            first, last = _range_of(answered.buckets[0])
            first = answered.first or first
            entries = self._table.entries(first, last, left)
            answered.first = b""
            if len(entries) == left and entries[-1][0] < last:
                last = entries[-1][0]
                answered.first = _behind(last)
            else:
                answered.buckets.popleft()
            left -= len(entries)
            ranges.append(RetainedRange(first, last, b"".join(digest + id + bytes([state]) for digest, id, state in entries)))
        answered.number += 1
        answered.entries = SUMMARY_ENTRIES - left
        answered.is_waiting, answered.is_last = True, not answered.buckets
        return RetainedSummary(answered.round, answered.number, tuple(ranges))


def _range_of(bucket: int) -> tuple[bytes, bytes]:
    """Returns the first and the last digest of a bucket."""
    first = (bucket << 4).to_bytes(2, "big")
    return first + bytes(DIGEST - 2), bytes([first[0], first[1] | 0x0F]) + MAX_DIGEST[2:]


def _behind(digest: bytes) -> bytes:
    return (int.from_bytes(digest, "big") + 1).to_bytes(DIGEST, "big")


def _fault(text: str) -> PeerFault:
    return PeerFault(ByeReason.PROTOCOL_ERROR, text)
