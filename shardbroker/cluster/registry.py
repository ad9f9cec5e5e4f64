"""The registrar: which node holds which session, for the partitions that this node owns.

    p = crc32(client id) % 1024        registrar of p = the member with the highest score of p (rendezvous)

    CLAIM -> [queue of the key] -> [WHO to members that are not known] -> GRANT -> DONE
                                     HERE                                  (the key is locked until then)

The table is in memory only. A new registrar has none: it sends REBUILD to all members, which answer with their sessions once they
have the same member set; until then each claim is preceded by WHO. A claim carries the digest of the claimant's member set: with
another one it is void (RETRY). A provisional claim is answered whatever the member sets are, by any node.

Invariants: at most one claim of a key is granted and not done; a generation is larger than all that this registrar has seen of the
key; a GRANT that is not provisional is given only if all members have answered for the partition or the key under one digest.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import Struct
from typing import Any
from zlib import crc32

from shardbroker.cluster.clock import HybridClock
from shardbroker.cluster.merge import wins
from shardbroker.cluster.messages import (
    Claim,
    Done,
    Find,
    Found,
    Grant,
    Held,
    Here,
    Key,
    Moved,
    Rebuild,
    Refuse,
    Release,
    Retry,
    Revoke,
    Sessions,
    Starting,
    Wait,
    Who,
)
from shardbroker.cluster.outputs import ToNode
from shardbroker.cluster.plain import from_plain, records_of, to_plain
from shardbroker.cluster.rendezvous import PARTITIONS

__all__ = ["ALL_PARTITIONS", "ENTRIES_MAX", "STARTING_MS", "Registry", "bitmap", "client_key", "filter_key", "partitions_of"]

ENTRIES_MAX = 20_000_000
"""Sessions in the table of one node; above it a claim is preceded by WHO."""
QUEUE_MAX = 16
"""Claims that wait for one key: the next one is refused."""
QUEUE_MS = 5_000
"""A claim waits so long, then CONNACK has 0x89."""
WHO_MS = 300
"""For the answers to WHO; the grant is then provisional."""
ASK_MS = 100
"""Between two WHO or REBUILD to a node that has not answered."""
ASK_MS_MAX = 1_600
"""The pause between two REBUILD doubles up to it: a node with millions of sessions needs a second for its answer."""
STARTING_MS = 10_000
"""A claim waits so long for a worker that is being started and may have the session: the worker has to read its journal. After that
the session counts as lost."""
LOCK_MS = 60_000
"""For DONE; the next claim is then preceded by WHO."""
IMAGE_ENTRIES_MAX = 200_000
"""Entries that move to the process that replaces the worker: some 0.4 s at both ends. More are asked for again, while each claim is
preceded by WHO."""
FREED_A_TICK = 5_000
"""Entries that are freed in one tick: some 5 ms."""
BITMAP_BYTES = PARTITIONS // 8
ALL_PARTITIONS = frozenset(range(PARTITIONS))


def client_key(cluster: bytes, client_id: str) -> Key:
    """Returns the key of a client id."""
    return _key(cluster, client_id.encode(), b"shard-client")


def filter_key(cluster: bytes, topic_filter: bytes) -> Key:
    """Returns the key of an exclusive subscription. It never equals that of a client id `x:...`."""
    return _key(cluster, b"x:" + topic_filter, b"shard-exclusive")


def _key(cluster: bytes, text: bytes, kind: bytes) -> Key:
    digest = blake2b(text, digest_size=8, key=cluster, person=kind).digest()
    return Key(crc32(text) % PARTITIONS, int.from_bytes(digest, "big"))


def bitmap(partitions: Iterable[int]) -> bytes:
    """Returns the bitmap of a set of partitions."""
    found = bytearray(BITMAP_BYTES)
    for partition in partitions:
        found[partition >> 3] |= 1 << (partition & 7)
    return bytes(found)


def partitions_of(bits: bytes) -> set[int]:
    """Returns the set of partitions of a bitmap."""
    return {partition for partition in range(PARTITIONS) if bits[partition >> 3] >> (partition & 7) & 1}


@dataclass
class _Holder:
    """Entry of the table."""

    node: int
    held: Held


@dataclass
class _Table:
    """One partition."""

    entries: dict[int, _Holder] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)
    """Members whose sessions are all in the table."""
    unsure: set[int] = field(default_factory=set)
    """Hashes whose last claim did not end with DONE: WHO precedes the next one."""


@dataclass
class _Waiting:
    """A claim that has no grant yet."""

    node: int
    claim: Claim
    deadline_ms: int


@dataclass
class _Lock:
    """A key with a claim that is being answered or is granted."""

    key: Key
    queue: deque[_Waiting]
    current: _Waiting | None = None
    asked: int = 0
    """Number of the WHO."""
    waiting: set[int] = field(default_factory=set)
    """Nodes without HERE."""
    found: dict[int, Held] = field(default_factory=dict)
    """Sessions that nodes have reported since the claim."""
    generation: int = 0
    holder: int = 0
    held_generation: int = 0
    """Of the holder's session when the claim was granted."""
    deadline_ms: int = 0
    ask_ms: int = 0
    begun_ms: int = 0
    """When WHO was sent first."""


@dataclass
class _Ask:
    """A REBUILD under way, and those before it that the node may still answer."""

    first: int
    """Number of the oldest one whose answer is valid."""
    number: int
    partitions: set[int]
    """Partitions of all of them."""
    due_ms: int
    pause_ms: int = ASK_MS
    parts: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of a REBUILD and first partition of an answer to it to the last part of that answer."""


RECORDS = records_of(Key, Held, Claim, _Waiting, _Lock, _Ask)
"""What an image of the registrar has."""
_ENTRY = Struct("<QBQQB")
"""An entry in an image: hash, node, generation, stamp, flags."""
_IS_CONNECTED, _IS_MOVING = 1, 2


def _best(found: dict[int, Held]) -> int:
    """Returns the node whose session stays, or 0."""
    best = 0
    for node, held in found.items():
        if not best or wins(held, node, found[best], best):
            best = node
    return best


def _packed(table: _Table) -> bytes:
    found = []
    for number, one in table.entries.items():
        held = one.held
        flags = _IS_CONNECTED * held.is_connected | _IS_MOVING * held.is_moving
        found.append(_ENTRY.pack(number, one.node, held.generation, held.stamp, flags))
    return b"".join(found)


class Registry:
    """The registrar of one node, for those of its partitions that are in `partitions`. Each call returns messages to nodes, this
    node included. `number`: larger than any that an earlier registrar of these partitions has used here."""

    def __init__(self, node_id: int, clock: HybridClock, partitions: Collection[int] = ALL_PARTITIONS, number: int = 0) -> None:
        self.node_id = node_id
        self.clock = clock
        self.partitions = frozenset(partitions)
        self.digest = b""
        self.members: dict[int, int] = {}
        self._tables: dict[int, _Table] = {}
        self._locks: dict[Key, _Lock] = {}
        self._asks: dict[int, _Ask] = {}
        self._number = number
        self._entries = 0
        self._ended: list[dict[int, _Holder]] = []
        """Entries of partitions that another node has now. They are freed some at a time: a million take a second."""

    # --- views ---------------------------------------------------------------------------------------------------------

    def set_view(
        self,
        members: Sequence[tuple[int, int]],
        digest: bytes,
        owners: Sequence[int],
        now_ms: int,
        is_new_run: bool = False,
    ) -> list[ToNode]:
        """Takes a change of the member set; to be called for each one, even if the next one takes it back. `is_new_run`: changes
        or messages of members may be missing since the last one."""
        done: list[ToNode] = []
        now = dict(members)
        known = {} if is_new_run else self.members
        stayed = {node for node, incarnation in known.items() if now.get(node) == incarnation}
        self.members, self.digest = now, digest
        owned = {partition for partition, node in enumerate(owners) if node == self.node_id} & self.partitions
        for partition in self._tables.keys() - owned:
            entries = self._tables.pop(partition).entries
            self._entries -= len(entries)
            self._ended.append(entries)
        for partition in owned:
            self._tables.setdefault(partition, _Table()).known &= stayed
        for lock in [*self._locks.values()]:
            done += self._review(lock, stayed, now_ms)
        self._asks.clear()
        return [*done, *self._ask(now_ms)]

    def _review(self, lock: _Lock, stayed: set[int], now_ms: int) -> list[ToNode]:
        """Ends the claims that the change of the member set has made void."""
        done: list[ToNode] = []
        is_owned = lock.key.partition in self._tables
        for one in [*lock.queue]:
            if one.node not in stayed or not (one.claim.is_provisional or (is_owned and one.claim.digest == self.digest)):
                lock.queue.remove(one)
                done.append(ToNode(one.node, Retry(one.claim.number, lock.key)))
        current = lock.current
        if current is None:
            return done
        if current.node not in stayed:
            return [*done, *self._unlock(lock, now_ms, is_sure=False)]
        if not lock.generation and not current.claim.is_provisional:
            done.append(ToNode(current.node, Retry(current.claim.number, lock.key)))
            return [*done, *self._unlock(lock, now_ms, is_sure=False)]
        if lock.waiting:
            lock.waiting &= self.members.keys()
            done += self._decide(lock, now_ms)
        return done

    def _ask(self, now_ms: int) -> list[ToNode]:
        """Sends REBUILD to members for the partitions for which they are not known."""
        done = []
        for node in self.members:
            wanted = {partition for partition, table in self._tables.items() if node not in table.known}
            known = self._asks.get(node)
            if not wanted or (known is not None and now_ms < known.due_ms):
                continue
            self._number += 1
            if known is None:
                self._asks[node] = _Ask(self._number, self._number, wanted, now_ms + ASK_MS)
            else:
                known.number, known.pause_ms = self._number, min(2 * known.pause_ms, ASK_MS_MAX)
                known.due_ms = now_ms + known.pause_ms
                known.partitions |= wanted
            done.append(ToNode(node, Rebuild(self._number, self.digest, bitmap(wanted))))
        return done

    def sessions(self, node: int, message: Sessions, now_ms: int) -> list[ToNode]:
        """Takes a part of the sessions of a node. Behind a part that is missing the rest of that answer is ignored."""
        ask = self._asks.get(node)
        if ask is None or not ask.first <= message.number <= ask.number:
            return []
        answered = partitions_of(message.partitions) & ask.partitions
        stream = message.number, min(answered, default=-1)
        if not answered or message.part != ask.parts.get(stream, 0) + 1:
            return []
        ask.parts[stream] = message.part
        done: list[ToNode] = []
        ask.due_ms = max(ask.due_ms, now_ms + ASK_MS)
        for held in message.held:
            done += self._reported(node, held)
        if message.is_last:
            for partition in answered & self._tables.keys():
                self._tables[partition].known.add(node)
            if all(node in self._tables[partition].known for partition in ask.partitions & self._tables.keys()):
                del self._asks[node]
        return done

    def moved(self, node: int, message: Moved, now_ms: int) -> list[ToNode]:
        """Takes a member's word that it had another registrar for partitions, or that its worker has been started again."""
        partitions = partitions_of(message.partitions)
        for partition in partitions & self._tables.keys():
            self._tables[partition].known.discard(node)
        self._asks.pop(node, None)
        done = self._ask(now_ms) if node in self.members else []
        for lock in [*self._locks.values()]:
            current = lock.current
            if current is None or not lock.generation or lock.key.partition not in partitions:
                continue
            if current.node == node and current.claim.number <= message.number:
                # DONE of a process that has ended would never arrive.
                done += self._unlock(lock, now_ms, is_sure=False)
        return done

    # --- the process that replaces this one ------------------------------------------------------------------------------

    def shift(self, paused_ms: int) -> None:
        """Takes the end of a time in which nothing was received: it does not count as silence of nodes."""
        for lock in self._locks.values():
            for one in (*lock.queue, *((lock.current,) if lock.current is not None else ())):
                one.deadline_ms += paused_ms
            lock.deadline_ms += paused_ms
            lock.ask_ms += paused_ms
            lock.begun_ms += paused_ms
        for ask in self._asks.values():
            ask.due_ms += paused_ms

    def image(self) -> dict[str, Any]:
        """Returns everything as plain values: for the process that replaces the worker, and continues its clock."""
        is_whole = self._entries <= IMAGE_ENTRIES_MAX
        return {
            "digest": self.digest, "members": to_plain(self.members), "number": self._number, "locks": to_plain(self._locks),
            "asks": to_plain(self._asks if is_whole else {}),
            "tables": [
                [partition, to_plain(table.known), to_plain(table.unsure), _packed(table)] if is_whole
                else [partition, to_plain(set()), to_plain(table.unsure), b""]
                for partition, table in self._tables.items()
            ],
        }  # fmt: skip

    def take_image(self, image: dict[str, Any]) -> None:
        """Continues where another process was. Raises KeyError, TypeError, ValueError, struct.error."""
        self.digest, self._number = image["digest"], image["number"]
        self.members, self._locks, self._asks = (from_plain(image[name], RECORDS) for name in ("members", "locks", "asks"))
        for partition, known, unsure, entries in image["tables"]:
            table = self._tables[partition] = _Table({}, from_plain(known, RECORDS), from_plain(unsure, RECORDS))
            for number, node, generation, stamp, flags in _ENTRY.iter_unpack(entries):
                is_connected, is_moving = bool(flags & _IS_CONNECTED), bool(flags & _IS_MOVING)
                table.entries[number] = _Holder(node, Held(Key(partition, number), generation, stamp, is_connected, is_moving))
            self._entries += len(table.entries)

    # --- entries -------------------------------------------------------------------------------------------------------

    def entry(self, key: Key) -> tuple[int, Held] | None:
        """Returns the holder of a key, as far as this node knows."""
        table = self._tables.get(key.partition)
        holder = None if table is None else table.entries.get(key.hash)
        return None if holder is None else (holder.node, holder.held)

    def __len__(self) -> int:
        return self._entries

    def _set(self, key: Key, holder: _Holder | None) -> None:
        table = self._tables.get(key.partition)
        if table is None:
            return
        self._entries -= key.hash in table.entries
        if holder is None:
            table.entries.pop(key.hash, None)
        elif key.hash in table.entries or self._entries < ENTRIES_MAX:
            table.entries[key.hash] = holder
        else:
            # The table is full: the next claim asks all nodes.
            table.unsure.add(key.hash)
        self._entries += key.hash in table.entries

    def _reported(self, node: int, held: Held) -> list[ToNode]:
        """Takes a session that a node holds. Of two holders one is revoked."""
        key = held.key
        self.clock.last = max(self.clock.last, held.generation)
        lock = self._locks.get(key)
        if lock is not None and lock.current is not None and (lock.generation or lock.waiting):
            lock.found[node] = held
            return []
        if key.partition not in self._tables:
            return []
        return self._settle(key, {node: held})

    def _settle(self, key: Key, found: dict[int, Held]) -> list[ToNode]:
        """Makes the best of some holders and the known one the entry, and revokes the others."""
        if not found:
            return []
        known = self.entry(key)
        if known is not None and known[0] not in found and known[0] in self.members:
            found = {**found, known[0]: known[1]}
        best = _best(found)
        self._set(key, _Holder(best, found[best]))
        losers = [(node, held) for node, held in found.items() if node != best and not held.is_moving]
        return [ToNode(node, Revoke(key, held.generation, best)) for node, held in losers]

    def announce(self, node: int, held: Held, now_ms: int, clock_ms: int) -> list[ToNode]:
        """Takes a session that a node holds without a grant of this registrar."""
        lock = self._locks.get(held.key)
        if lock is None or lock.current is None or not lock.generation or lock.current.node != node:
            return self._reported(node, held)
        # A node with a session has no claim: GRANT or DONE was lost.
        self.clock.last = max(self.clock.last, held.generation)
        lock.found[node] = held
        return self._unlock(lock, now_ms, is_sure=False, clock_ms=clock_ms)

    def release(self, node: int, message: Release) -> None:
        """Takes the end of a session."""
        known = self.entry(message.key)
        if known is not None and known[0] == node and known[1].generation <= message.generation:
            self._set(message.key, None)

    def find(self, node: int, message: Find) -> list[ToNode]:
        """Answers where a session is. Without knowledge there is no answer."""
        key = message.key
        known, table = self.entry(key), self._tables.get(key.partition)
        if known is not None and known[0] != message.denied:
            return [ToNode(node, Found(key, known[0]))]
        if known is not None and key in self._locks:
            # The claim under way asks the holder itself, and the denial may be older than the entry.
            return []
        if known is not None and table is not None:
            # The entry is wrong: its node is asked again for all of its sessions.
            self._set(key, None)
            table.known.discard(message.denied)
        if table is not None and key.hash in table.unsure and key not in self._locks:
            # Its last claim had no end, so all members are asked.
            table.unsure.discard(key.hash)
            table.known.clear()
        is_known = table is not None and key.hash not in table.unsure and key not in self._locks and self._is_complete(table)
        return [ToNode(node, Found(key, 0))] if is_known else []

    def _is_complete(self, table: _Table) -> bool:
        return table.known >= self.members.keys()

    # --- claims --------------------------------------------------------------------------------------------------------

    def claim(self, node: int, claim: Claim, now_ms: int, clock_ms: int) -> list[ToNode]:
        """Takes a claim of a node."""
        if not claim.is_provisional and (claim.digest != self.digest or claim.key.partition not in self._tables):
            return [ToNode(node, Retry(claim.number, claim.key))]
        lock = self._locks.setdefault(claim.key, _Lock(claim.key, deque()))
        one = _Waiting(node, claim, now_ms + QUEUE_MS)
        if lock.current is not None and lock.current.node == node:
            # A node has one claim of a key, and this one has replaced the other.
            lock.queue.appendleft(one)
            return self._unlock(lock, now_ms, is_sure=not lock.generation, clock_ms=clock_ms)
        for old in [old for old in lock.queue if old.node == node]:
            lock.queue.remove(old)
        if len(lock.queue) >= QUEUE_MAX:
            return [ToNode(node, Refuse(claim.number, claim.key))]
        lock.queue.append(one)
        return [ToNode(node, Wait(claim.number, claim.key))] if lock.current is not None else self._next(lock, now_ms, clock_ms)

    def _next(self, lock: _Lock, now_ms: int, clock_ms: int) -> list[ToNode]:
        """Begins with the next claim of a key."""
        if not lock.queue:
            del self._locks[lock.key]
            return []
        lock.current = lock.queue.popleft()
        table = self._tables.get(lock.key.partition)
        lock.deadline_ms = now_ms + WHO_MS
        if table is None or lock.key.hash in table.unsure:
            lock.waiting = {*self.members} or {self.node_id}
        else:
            lock.waiting = self.members.keys() - table.known
        if not lock.waiting:
            return self._grant(lock, now_ms, clock_ms)
        self._number += 1
        lock.asked, lock.ask_ms, lock.begun_ms = self._number, now_ms, now_ms
        return self._who(lock, now_ms)

    def _who(self, lock: _Lock, now_ms: int) -> list[ToNode]:
        if now_ms < lock.ask_ms:
            return []
        assert lock.current is not None
        lock.ask_ms = now_ms + ASK_MS
        digest = b"" if lock.current.claim.is_provisional else self.digest
        return [ToNode(node, Who(lock.asked, lock.key, digest)) for node in sorted(lock.waiting)]

    def here(self, node: int, message: Here, now_ms: int, clock_ms: int) -> list[ToNode]:
        """Takes the answer to WHO."""
        key = message.key
        lock = self._locks.get(key)
        if lock is None or message.ends or lock.asked != message.number or node not in lock.waiting:
            return []
        lock.waiting.discard(node)
        if message.held is not None:
            lock.found[node] = message.held
        else:
            # What it reported before it was revoked is no session any more.
            lock.found.pop(node, None)
            known = self.entry(key)
            if known is not None and known[0] == node:
                self._set(key, None)
        return self._decide(lock, now_ms, clock_ms)

    def starting(self, node: int, message: Starting, now_ms: int) -> list[ToNode]:
        """Waits for a node of which the worker that may have the session is being started, unless another node has it."""
        lock = self._locks.get(message.key)
        if lock is None or lock.current is None or lock.asked != message.number or node not in lock.waiting:
            return []
        if now_ms - lock.begun_ms >= STARTING_MS or any(not held.is_moving for held in lock.found.values()):
            return []
        lock.deadline_ms = max(lock.deadline_ms, now_ms + WHO_MS)
        return [ToNode(lock.current.node, Wait(lock.current.claim.number, lock.key))]

    def _decide(self, lock: _Lock, now_ms: int, clock_ms: int = 0) -> list[ToNode]:
        return [] if lock.waiting else self._grant(lock, now_ms, clock_ms)

    def _grant(self, lock: _Lock, now_ms: int, clock_ms: int) -> list[ToNode]:
        """Grants the current claim. Of several holders the best one gives its session, and the others are revoked with DONE."""
        one = lock.current
        assert one is not None
        is_provisional = one.claim.is_provisional or bool(lock.waiting)
        lock.waiting = set()
        candidates = dict(lock.found)
        known = self.entry(lock.key)
        if known is not None and known[0] not in candidates:
            candidates[known[0]] = known[1]
        own = candidates.pop(one.node, None)
        reachable = {node: held for node, held in candidates.items() if node in self.members}
        holder = _best(reachable or candidates)
        highest = max((held.generation for held in candidates.values()), default=0)
        self.clock.last = max(self.clock.last, highest)
        lock.generation = self.clock.now(clock_ms)
        lock.holder, lock.held_generation = holder, candidates[holder].generation if holder else 0
        # They count if the claim is given up.
        lock.found = candidates if own is None else {**candidates, one.node: own}
        lock.deadline_ms = now_ms + LOCK_MS
        return [ToNode(one.node, Grant(one.claim.number, lock.key, lock.generation, holder, is_provisional))]

    def done(self, node: int, message: Done, now_ms: int, clock_ms: int) -> list[ToNode]:
        """Takes the end of a granted claim."""
        lock = self._locks.get(message.key)
        if lock is None or lock.current is None or (lock.current.node, lock.generation) != (node, message.generation):
            return [] if message.held is None else self._reported(node, message.held)
        done: list[ToNode] = []
        if message.held is not None:
            known = self.entry(message.key)
            old = {} if known is None or known[0] == node else {known[0]: known[1]}
            old.update(lock.found)
            if message.was_taken and lock.holder in old and old[lock.holder].generation == lock.held_generation:
                del old[lock.holder]  # another one that the node has reported since was not taken
            if (table := self._tables.get(message.key.partition)) is not None:
                table.unsure.discard(message.key.hash)
            self._set(message.key, _Holder(node, message.held))
            for one, held in old.items():
                if table is not None and one != node:
                    # The REVOKE may be lost, so the node is asked again.
                    table.known.discard(one)
                if one in self.members and one != node and not held.is_moving:
                    done.append(ToNode(one, Revoke(message.key, held.generation, node)))
            if lock.holder and not message.was_taken and lock.holder not in old and lock.holder in self.members:
                done.append(ToNode(lock.holder, Revoke(message.key, message.generation, node)))
            lock.found = {}
        # Without a session the holder may have given it up.
        return [*done, *self._unlock(lock, now_ms, is_sure=message.held is not None, clock_ms=clock_ms)]

    def _unlock(self, lock: _Lock, now_ms: int, is_sure: bool, clock_ms: int = 0) -> list[ToNode]:
        table = self._tables.get(lock.key.partition)
        if not is_sure and table is not None:
            table.unsure.add(lock.key.hash)
        found, lock.found = lock.found, {}
        lock.current, lock.generation, lock.holder, lock.asked, lock.waiting = None, 0, 0, 0, set()
        return [*self._settle(lock.key, found), *self._next(lock, now_ms, clock_ms)]

    # --- time ----------------------------------------------------------------------------------------------------------

    def _free(self) -> None:
        left = FREED_A_TICK
        while self._ended and left > 0:
            entries = self._ended[-1]
            for _ in range(min(left, len(entries))):
                entries.popitem()
                left -= 1
            if not entries:
                self._ended.pop()

    def tick(self, now_ms: int, clock_ms: int) -> list[ToNode]:
        """Does what is due by the clock; to be called every 50 ms or so."""
        done = self._ask(now_ms)
        self._free()
        for lock in [*self._locks.values()]:
            for one in [one for one in lock.queue if now_ms >= one.deadline_ms]:
                lock.queue.remove(one)
                done.append(ToNode(one.node, Refuse(one.claim.number, lock.key)))
            if lock.current is None or now_ms < lock.deadline_ms:
                if lock.waiting:
                    done += self._who(lock, now_ms)
            elif lock.generation:
                done += self._unlock(lock, now_ms, is_sure=False, clock_ms=clock_ms)
            else:
                done += self._grant(lock, now_ms, clock_ms)
        return done
