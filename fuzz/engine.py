"""Runs one target under libFuzzer, within a process that has the sanitizers' runtime loaded (fuzz/run.py starts it).

    python -m fuzz.engine TARGET [option of libFuzzer or directory with inputs ...]
    python -m fuzz.engine TARGET --write DIRECTORY       its inputs, a file each
    python -m fuzz.engine TARGET --keep DIRECTORY        makes fuzz/corpus from those files

A target is a module of fuzz/targets: `check(data)` raises on a finding, `seeds()` gives valid inputs, `MAX_LEN` is the longest
input in bytes. libFuzzer comes from a preloaded library and is called through ctypes; compiled modules report branches to it.
"""

import ctypes
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, cast

__all__ = ["CORPUS", "TARGETS", "Target", "exact", "inputs", "load", "pieces"]

CORPUS = Path(__file__).parent / "corpus"
TARGETS = sorted(path.stem for path in (Path(__file__).parent / "targets").glob("[!_]*.py"))
KEPT_MAX = 60_000
"""Bytes of a file in fuzz/corpus, which is small enough to review."""
_CONTENT_AT = bytes.__basicsize__ - 1
"""Offset of the first byte within a bytes object. The last byte is followed by a 0 that no C code may rely on."""


class Target(Protocol):
    """The interface of a module of fuzz/targets."""

    MAX_LEN: int

    def seeds(self) -> Iterable[bytes]:
        """Returns valid inputs, from which libFuzzer derives others."""
        ...

    def check(self, data: bytes) -> None:
        """Raises an exception on a finding."""
        ...


def load(name: str) -> Target:
    """Returns the target of this name."""
    return cast("Target", importlib.import_module(f"fuzz.targets.{name}"))


def inputs(name: str) -> list[bytes]:
    """Returns the seeds of a target and the findings of earlier runs: a line of hex each in fuzz/corpus."""
    return [*load(name).seeds(), *(bytes.fromhex(line.partition("#")[0]) for line in _lines(name))]


def _lines(name: str) -> list[str]:
    """Returns inputs that reach further branches, and past findings, which have a comment with the fault."""
    path = CORPUS / f"{name}.txt"
    return path.read_text().splitlines() if path.exists() else []


_library = ctypes.CDLL(None)
_poison = getattr(_library, "__asan_poison_memory_region", None)
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_ssize_t]


def exact(data: bytes, readable: int | None = None) -> bytes:
    """Returns a copy after whose last byte AddressSanitizer permits no read, not even of CPython's terminating 0.

    `readable`: bytes of it that may be read, by default all. Without the sanitizer the same object is returned. The empty bytes
    object is shared by the whole process and stays as it is.
    """
    if _poison is None or not data:
        return data
    copy: bytes = _new_bytes(None, len(data))  # one of its own, even for a single byte
    start = id(copy) + _CONTENT_AT
    ctypes.memmove(start, data, len(data))
    size = len(data) if readable is None else readable
    _poison(ctypes.c_void_p(start + size), ctypes.c_size_t(len(data) + 1 - size))
    return copy


def pieces(data: bytes, size: int) -> list[bytes]:
    """Returns `data` in pieces of `size` bytes, each exact()."""
    return [exact(data[at : at + size]) for at in range(0, len(data), size)]


def _fuzz(name: str, check: Callable[[bytes], None], arguments: list[str]) -> int:
    def one(start: int, size: int) -> int:
        try:
            check(exact(ctypes.string_at(start, size)))
        except BaseException:
            traceback.print_exc()
            os.abort()  # libFuzzer catches the signal and keeps the input
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(one)
    own = f"{sys.executable} -m fuzz.engine {name}"  # -merge=1 runs this in a shell with other options
    words = [os.fsencode(word) for word in (own, *arguments)]
    vector = ctypes.cast((ctypes.c_char_p * (len(words) + 1))(*words), ctypes.POINTER(ctypes.c_char_p))
    return int(_library.LLVMFuzzerRunDriver(ctypes.byref(ctypes.c_int(len(words))), ctypes.byref(vector), callback))


def _write(name: str, directory: Path) -> None:
    for number, data in enumerate(inputs(name)):
        (directory / f"{number:05d}").write_bytes(data)


def _keep(name: str, directory: Path) -> None:
    """Keeps findings, then the shortest inputs that are not seeds."""
    kept = [line for line in _lines(name) if "#" in line]
    known = {data.hex() for data in load(name).seeds()} | {line.partition("#")[0].strip() for line in kept}
    found = {path.read_bytes().hex() for path in directory.iterdir()} - known - {""}
    size = 0
    for line in sorted(found, key=lambda line: (len(line), line)):
        size += len(line) + 1
        if size > KEPT_MAX:
            break
        kept.append(line)
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.txt").write_text("".join(f"{line}\n" for line in kept))


def main() -> None:
    name, *arguments = sys.argv[1:]
    target = load(name)
    if arguments[0] in ("--write", "--keep"):
        {"--write": _write, "--keep": _keep}[arguments[0]](name, Path(arguments[1]))
        return
    sys.exit(_fuzz(name, target.check, [f"-max_len={target.MAX_LEN}", *arguments]))


if __name__ == "__main__":
    main()
