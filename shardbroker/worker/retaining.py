"""Retained messages at level `machine`: a thread commits them, so that the loop does not wait for the disk.

    loop: update(batch)   asked 7        thread: commits what has gathered, with syncs        done 5, and rings the worker

What promises a retained message waits until `done` has reached the `asked` of its time. Until then the message is not visible: a
subscription's replay waits for what was asked for before it.
"""

import os
import signal
from queue import SimpleQueue
from threading import Event, Thread

from shardbroker.logs.phrases import log_line, print_line
from shardbroker.stores.retained import Cursor, Mark, RetainedChange, RetainedMessage, RetainedStore

__all__ = ["SyncedRetained"]

BATCH = 512
"""Changes in one transaction: a commit costs two syncs, and while it runs other workers wait for theirs."""
RETRY_S = 1.0
"""Between two tries while the disk refuses."""
STOP_S = 5.0
"""How long the end waits for what is under way."""


class SyncedRetained:
    """What a worker uses of a `RetainedStore` that syncs. bell: an eventfd that is written when something is done."""

    def __init__(self, store: RetainedStore, worker: int, bell: int) -> None:
        self._store = store
        self._worker = worker
        self._bell = bell
        self._queue: SimpleQueue[tuple[list[RetainedChange], Mark] | None] = SimpleQueue()
        self._refused = 0
        self._closing = Event()
        self.asked = 0
        """Batches that update() was given."""
        self.done = 0
        """Batches that are on the disk, or were refused."""
        self.incarnation = 0
        """Incarnation of the journal that has the noted changes."""
        self.noted = 0
        """Changes that are in the journal too; numbered from 1."""
        self.is_replicated = store.is_replicated
        self._thread = Thread(target=self._run, daemon=True)
        # A signal that this thread took would not wake the loop from its epoll_wait.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._thread.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def max_messages(self) -> int:
        return self._store.max_messages

    @max_messages.setter
    def max_messages(self, number: int) -> None:
        self._store.max_messages = number

    @property
    def max_bytes(self) -> int:
        return self._store.max_bytes

    @max_bytes.setter
    def max_bytes(self, number: int) -> None:
        self._store.max_bytes = number

    def update(self, operations: list[RetainedChange]) -> int:
        """Queues changes, in order. Returns how many earlier changes were refused since the last call."""
        self.asked += 1
        self._queue.put((operations, (self.incarnation, self.noted)))
        refused, self._refused = self._refused, 0
        return refused

    def scan(
        self, filter: bytes, after: Cursor | None, limit: int, byte_limit: int, now_ms: int
    ) -> tuple[list[RetainedMessage], Cursor | None]:
        return self._store.scan(filter, after, limit, byte_limit, now_ms)

    def holds_only_sys(self) -> bool:
        return self.done == self.asked and self._store.holds_only_sys()

    def arrived(self, incarnation: int) -> int:
        """One past the number of the last change, of those in the journal of this incarnation, that the store has."""
        mark = self._store.mark(self._worker)
        return mark[1] + 1 if mark[0] == incarnation else 0

    def close(self) -> None:
        """Ends the thread behind what it was asked for."""
        self._queue.put(None)
        self._thread.join(STOP_S)
        self._closing.set()

    def _run(self) -> None:
        ended = False
        while not ended:
            batches = 0
            changes: list[RetainedChange] = []
            mark = (0, 0)
            while not ended and (not batches or (len(changes) < BATCH and not self._queue.empty())):
                batch = self._queue.get()
                ended = batch is None
                if batch is not None:
                    batches += 1
                    changes += batch[0]
                    mark = batch[1]
            if batches and self._commit(changes, mark):
                self.done += batches
                os.eventfd_write(self._bell, 1)

    def _commit(self, changes: list[RetainedChange], mark: Mark) -> bool:
        """Tries until the disk takes it: until then nothing that promises these changes leaves. False: the worker ends first."""
        while not self._closing.is_set():
            try:
                self._refused += self._store.update(changes, self._worker, mark)
                return True
            except Exception as error:
                line = log_line("retained messages not stored", reason=repr(error), retry_in=f"{RETRY_S:g}s")
                print_line("error", f"worker-{self._worker}", line)
                self._closing.wait(RETRY_S)
        return False
