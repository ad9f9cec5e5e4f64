"""The check of the file of retained messages before it is opened, and the rescue of messages from a damaged one.

LMDB trusts its pages: one with a flipped bit can end a reader with SIGSEGV or SIGBUS. So the check runs in processes that may die.
One reads all pages. If it finds damage, or dies of it, others copy the messages that can be read, one from the front and one from
the back, so that all outside the damaged pages are kept. The damaged file is set aside.
"""

import gc
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from shardbroker.stores.retained import MAP_BYTES, RetainedStore, read_whole

__all__ = ["check_retained"]

PAGE, LAST_PAGE_AT, TXNID_AT = 4096, 136, 144
"""Page size, and offsets in a meta page of the last page and the transaction number (MDB_meta of LMDB 0.9), bytes."""
BATCH = 1000
"""Messages copied in one transaction: those of the last one are lost if the process dies of a damaged page."""


def check_retained(path: Path) -> str | None:
    """Repairs the store in `path` if it is damaged; returns what was done, or None if the store is sound or missing.

    No other process may use the store meanwhile.
    """
    clean = path.with_name(f"{path.name}.new")
    if clean.exists() and not path.exists():
        os.rename(clean, path)  # left by a check that was killed before this last step
    if not (path / "data.mdb").exists():
        return None
    as_of = "" if _metas_fit(path / "data.mdb") else ", perhaps as they were before the last change"
    problem = _in_child(lambda: _read(path))
    if problem is None and not as_of:
        return None
    problem = problem or "the numbers of its last two changes do not follow one another"
    shutil.rmtree(clean, ignore_errors=True)
    _salvage(path, clean)
    if not (clean / "data.mdb").exists() or _in_child(lambda: _is_not_empty(clean)) is not None:
        # The root page itself is damaged. The state before the last change has another root, and all its pages still exist.
        older = path.with_name(f"{path.name}.older")
        shutil.rmtree(older, ignore_errors=True)
        older.mkdir(mode=0o700)
        _copy_older(path / "data.mdb", older / "data.mdb")
        _salvage(older, clean)
        shutil.rmtree(older, ignore_errors=True)
        as_of = ", as they were before the last change"
    aside = path.with_name(f"{path.name}.bad-{time.time_ns() // 1_000_000}")
    os.rename(path, aside)
    if not clean.exists() or _in_child(lambda: _read(clean)) is not None:
        shutil.rmtree(clean, ignore_errors=True)
        return f"{aside}/data.mdb: {problem}; nothing of it can be read, and no message is retained any more"
    os.rename(clean, path)
    path.with_name(f"{clean.name}.lock").unlink(missing_ok=True)
    with RetainedStore(path) as store:
        count = store.count()
    return f"{aside}/data.mdb: {problem}; {count} retained messages that can be read were kept{as_of}"


def _salvage(path: Path, clean: Path) -> None:
    for backwards in (False, True):
        _in_child(lambda: _copy(path, clean, backwards))  # noqa: B023


def _is_not_empty(path: Path) -> None:
    with RetainedStore(path) as store:
        if next(store.whole_messages(backwards=False), None) is None:
            raise ValueError("empty")


def _metas_fit(file: Path) -> bool:
    """Returns whether the two meta pages are of successive transactions; the lowest bit of the number selects the page.

    The greater number wins. A wrong number may select the state before, which is sound, so that reading finds nothing.
    """
    with file.open("rb") as opened:
        pages = [os.pread(opened.fileno(), PAGE, page * PAGE) for page in (0, 1)]
    numbers = [int.from_bytes(page[TXNID_AT : TXNID_AT + 8], "little") for page in pages]
    last_pages = [int.from_bytes(page[LAST_PAGE_AT : LAST_PAGE_AT + 8], "little") for page in pages]
    if numbers == [0, 0]:
        return True  # nothing was ever written
    newer = numbers[1] > numbers[0]
    follow = abs(numbers[0] - numbers[1]) == 1 and numbers[0] % 2 == 0
    return follow and last_pages[newer] >= last_pages[not newer]  # a file never becomes shorter


def _copy_older(file: Path, target: Path) -> None:
    """Copies a file and makes the newer of its two meta pages the older one."""
    shutil.copyfile(file, target)
    with target.open("r+b") as copy:
        metas = [os.pread(copy.fileno(), 8, page * PAGE + TXNID_AT) for page in (0, 1)]
        newer = max((0, 1), key=lambda page: int.from_bytes(metas[page], "little"))
        os.pwrite(copy.fileno(), bytes(8), newer * PAGE + TXNID_AT)


def _read(path: Path) -> None:
    """Reads all pages and all messages. Raises lmdb.Error."""
    with read_whole(path, MAP_BYTES) as store:
        store.verify()
        with open(os.devnull, "wb") as nowhere:
            store.copy_to(nowhere.fileno())  # visits the free pages as well


def _copy(path: Path, clean: Path, backwards: bool) -> None:
    """Copies the intact messages up to the first damage."""
    with read_whole(path, MAP_BYTES) as store, RetainedStore(clean, sync=True) as target:
        batch = []
        try:
            for message in store.whole_messages(backwards):
                batch.append(message)
                if len(batch) == BATCH:
                    target.update(batch)
                    batch = []
        finally:
            target.update(batch)


def _in_child(work: Callable[[], None]) -> str | None:
    """Runs `work` in a process of its own; returns None if it succeeds, else a description of the error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 0
        gc.disable()  # a collection would run finalizers of objects that are the parent's, and copy the pages of all objects
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            work()
        except BaseException as error:
            os.write(writing, str(error).encode()[:1000])
            code = 1
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"damaged ({signal.Signals(os.WTERMSIG(status)).name} on reading it)"
    return None if status == 0 else text or "damaged"
