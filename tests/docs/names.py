"""Names of code that pages give in backticks: files, and what is defined in them."""

import re
from functools import cache
from pathlib import Path

__all__ = ["ROOT", "attributes", "definitions", "named_classes", "source"]

ROOT = Path(__file__).parents[2]
_PLACES = (ROOT, ROOT / "shardbroker")
"""Paths on a page begin in one of these."""
_TREES = ("shardbroker", "shm", "acceptor", "perf", "spark", "tests")
_CLASS = re.compile(r"(?:cdef )?class (\w+)")
_FUNCTION = re.compile(r"( {4})?(?:async def|def|cdef|cpdef)\b[^=(]*?(\w+)\(")
_FIELD = re.compile(r" {4}(?:cdef (?:public |readonly )?[\w.]+[*\[\], \w]*?\s\**)?(\w+(?:, \w+)*)(?:\[.*\])?\s*(?:#|:|=|$)")
_OWN = re.compile(r"\bself\.(\w+)")


def source(path: str) -> Path | None:
    """The file that a page means by a path, or None."""
    return next((place / path for place in _PLACES if (place / path).is_file()), None)


@cache
def definitions(path: Path) -> frozenset[str]:
    """Classes, functions, and methods as `Class.method`, that a .py, .pyx or .pxd file defines."""
    found, owner = set(), None
    for line in path.read_text().splitlines():
        if new := _CLASS.match(line):
            owner = new[1]
            found.add(owner)
        elif function := _FUNCTION.match(line):
            if not function[1]:
                owner = None
            found.add(f"{owner}.{function[2]}" if owner else function[2])
        elif line and not line[0].isspace() and line[0] not in ")#@":
            owner = None
    return frozenset(found)


@cache
def attributes(path: Path) -> frozenset[str]:
    """Fields as `Class.field`: those declared, and those used as `self.field`."""
    found, owner = set(), None
    for line in path.read_text().splitlines():
        if new := _CLASS.match(line):
            owner = new[1]
        elif owner:
            found |= {f"{owner}.{name}" for name in _OWN.findall(line)}
            if declared := _FIELD.match(line):
                found |= {f"{owner}.{name}" for name in declared[1].split(", ")}
    return frozenset(found)


@cache
def named_classes() -> dict[str, frozenset[str]]:
    """Each class of the repository with the names of its methods and fields, those of classes of the same name together."""
    found: dict[str, set[str]] = {}
    for tree in _TREES:
        for path in (ROOT / tree).rglob("*"):
            if path.suffix in (".py", ".pyx", ".pxd"):
                for name in definitions(path) | attributes(path):
                    owner, _, member = name.partition(".")
                    if member or owner[0].isupper():
                        found.setdefault(owner, set()).add(member)
    return {owner: frozenset(members) for owner, members in found.items()}
