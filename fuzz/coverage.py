"""Finds the branches of each compiled module that some inputs reach (fuzz/run.py runs it after the targets).

    python -m fuzz.coverage TARGET RESULT DIRECTORY ...      inputs are the files of the directories

clang counts each branch in a byte of the section __sancov_cntrs of its module. libFuzzer clears these bytes after each input, so
this runs without libFuzzer. RESULT is a directory that gets a file for each module, with a byte for each branch: REACHED, FIRST of
its function, both or 0.
"""

import ctypes
import struct
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fuzz.engine import exact, load

__all__ = ["Share", "reached"]

REACHED, FIRST = 1, 2


@dataclass
class Module:
    """A loaded compiled module."""

    counters: "ctypes.Array[ctypes.c_ubyte]"
    first: bytes
    """For each counter FIRST or 0."""


@dataclass
class Share:
    """Coverage of a module. Most functions of a module are Cython's own: module start, arguments, errors."""

    functions: int
    entered: int
    branches: int
    """Branches in the functions entered, including those for errors that no input causes."""
    reached: int


def main() -> None:
    name, result, *directories = sys.argv[1:]
    target = load(name)
    modules = {name: _module(path) for name, path in _loaded().items()}
    found = dict.fromkeys(modules, 0)
    for module in modules.values():
        _clear(module)  # the import of a module is not an input
    for path in sorted(path for directory in directories for path in Path(directory).iterdir()):
        target.check(exact(path.read_bytes()))
        for name, module in modules.items():
            found[name] |= int.from_bytes(module.counters, "little")
            _clear(module)  # a counter that overflows is 0
    for name, module in modules.items():
        counted = found[name].to_bytes(len(module.first), "little")
        (Path(result) / name).write_bytes(bytes(bool(count) | first for count, first in zip(counted, module.first, strict=True)))


def reached(results: list[Path]) -> dict[str, Share]:
    """Returns what any of these results has reached, by name of the module; modules without reached branches are left out."""
    together: dict[str, bytes] = {}
    for path in sorted(path for result in results for path in result.iterdir()):
        data = path.read_bytes()
        together[path.name] = bytes(a | b for a, b in zip(data, together.get(path.name, data), strict=True))
    shares = {name: _share(data) for name, data in sorted(together.items())}
    return {name: share for name, share in shares.items() if share.reached}


def _share(data: bytes) -> Share:
    starts = [at for at, flags in enumerate(data) if flags & FIRST]
    functions = [[flags & REACHED for flags in data[start:end]] for start, end in pairwise([*starts, len(data)])]
    entered = [function for function in functions if any(function)]
    return Share(len(functions), len(entered), sum(map(len, entered)), sum(map(sum, entered)))


def _clear(module: Module) -> None:
    ctypes.memset(module.counters, 0, len(module.counters))


def _loaded() -> dict[str, Path]:
    """Returns the files of the loaded compiled modules of this build, by their dotted names."""
    files = {name: getattr(module, "__file__", None) or "" for name, module in sys.modules.items()}
    return {name: Path(file) for name, file in files.items() if file.endswith(".so") and Path(file).is_relative_to(Path.cwd())}


def _module(path: Path) -> Module:
    elf = path.read_bytes()
    address, _, size = _section(elf, b"__sancov_cntrs")
    _, offset, table = _section(elf, b"__sancov_pcs")
    # A pair of 8 bytes for each counter: address of the branch, and 1 if that is the start of a function.
    first = bytes(FIRST * (flags & 1) for _, flags in struct.iter_unpack("=2Q", elf[offset : offset + table]))
    lines = Path("/proc/self/maps").read_text().splitlines()
    start = min(int(line.split("-")[0], 16) for line in lines if line.endswith(f" {path}"))
    return Module((ctypes.c_ubyte * size).from_address(start + address), first)


def _section(elf: bytes, wanted: bytes) -> tuple[int, int, int]:
    """Returns address, relative to the module, offset in the file, and size in bytes. Raises ValueError without this section."""
    (table,) = struct.unpack_from("=Q", elf, 0x28)
    size, count, names = struct.unpack_from("=3H", elf, 0x3A)
    # Name, type, flags, address, offset in the file, size.
    sections = [struct.unpack_from("=2I4Q", elf, table + size * number) for number in range(count)]
    for section in sections:
        if elf.startswith(wanted + b"\0", sections[names][4] + section[0]):
            return section[3:6]
    raise ValueError(f"no {wanted.decode()}: the module was not built with -fsanitize=fuzzer-no-link")


if __name__ == "__main__":
    main()
