"""A layout of shared memory does not change without a decision about its number: `ctl upgrade` trusts the numbers alone.

The digest of a layout is that of the declarations of its files, without comments. If this test fails, either processes of the
earlier code cannot read what the present code writes, or the other way round: then raise the number in shm/layouts.py, and write
number and digest here. Or they can: then write the digest alone.
"""

import ast
import hashlib
import re

import pytest

from shm.layouts import LAYOUTS
from tests.docs.pages import ROOT

FILES = {
    "counters": ("shm/counters.pxd", "shm/counters.pyx"),
    "epochs": ("shm/epochs.pxd", "shm/epochs.pyx"),
    "inbox": ("shm/ring.pxd", "shm/ring.pyx"),
    "records": ("shm/records.pxd", "shm/records.pyx", "shm/bridged.pxd"),
    "routes": ("shm/routes.py",),
    "registry": ("shardbroker/stores/registry.py",),
    "exclusive": ("shardbroker/stores/exclusive.py",),
    "view": ("shm/view.pxd", "shm/view.pyx"),
    "handover": ("acceptor/handover.pxd", "acceptor/handover.pyx"),
}
KNOWN = {
    "counters": (2, "f5788a13acc3fc59"),
    "epochs": (1, "01d977acfae6fd24"),
    "inbox": (1, "e210e7c4e68573cb"),
    "records": (2, "65479dcca0ef0f21"),
    "routes": (1, "a300056a4e1f89b9"),
    "registry": (1, "04cc6e4e4fe3185b"),
    "exclusive": (1, "772d1be987a7afdc"),
    "view": (1, "88564cf7c75c17f5"),
    "handover": (1, "795f0e8ab47ed20e"),
}
DECLARATION = re.compile(r"c(?:p)?def (?:packed )?(?:enum|struct)\b")
COMPARED_BY_NAME = "cpdef enum Counter:"
"""The image of the supervisor has the names of all counters."""


def _of_cython(text: str) -> list[str]:
    """Returns the enums and structs."""
    found: list[str] = []
    is_inside = False
    for line in text.splitlines():
        code = line.split("#")[0].rstrip()
        if code and not code[0].isspace():
            is_inside = DECLARATION.match(code) is not None and code != COMPARED_BY_NAME
        if is_inside and code:
            found.append(" ".join(code.split()))
    return found


def _of_python(text: str) -> list[str]:
    """Returns the constants of the module."""
    return [ast.unparse(one) for one in ast.parse(text).body if isinstance(one, ast.Assign) and "__all__" not in ast.unparse(one)]


def digest(layout: str) -> str:
    found: list[str] = []
    for name in FILES[layout]:
        text = (ROOT / name).read_text()
        found += _of_python(text) if name.endswith(".py") else _of_cython(text)
    assert found, f"{layout}: no declarations"
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def test_every_layout_is_known() -> None:
    assert {*FILES} == {*KNOWN} == {*LAYOUTS}


@pytest.mark.parametrize("layout", FILES)
def test_a_layout_changes_with_its_number(layout: str) -> None:
    assert (LAYOUTS[layout], digest(layout)) == KNOWN[layout], "read the docstring of this file"


def test_comments_and_spaces_are_no_change() -> None:
    text = "cdef struct One:   # of two\n    int a      # first\n\ncdef inline int f() noexcept:\n    return 1\n"
    assert _of_cython(text) == ["cdef struct One:", "int a"]
    assert _of_cython(text.replace("int a", "long a")) != _of_cython(text)
