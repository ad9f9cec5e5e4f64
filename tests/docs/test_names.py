"""Code names in backticks exist: paths of Python and Cython files, and members of classes."""

import re
from pathlib import Path

import pytest

from tests.docs.names import ROOT, named_classes, source

PAGES = [ROOT / "README.md", ROOT / "THREAT_MODEL.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOREIGN = {"SSLContext"}
"""Classes of other libraries."""
EXAMPLES = {"NAME/__init__.py", "connectors/KIND.py", "integrations/auth/redis_token.py"}
"""Files that a page shows how to write."""

_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FILE = re.compile(r"[\w.]+(?:/[\w.]+)+\.(?:py|pyx|pxd)")
_MEMBER = re.compile(r"(_?[A-Z]\w*[a-z]\w*)\.([a-z_]\w*)(?:\(.*)?")


def missing_names(text: str) -> list[str]:
    """The code names in a page that are not in the repository."""
    found = []
    for code in _CODE.findall(text):
        member = _MEMBER.fullmatch(code)
        if _FILE.fullmatch(code):
            if source(code) is None and code not in EXAMPLES:
                found.append(code)
        elif member and member[1] not in FOREIGN and member[2] not in named_classes().get(member[1], ()):
            found.append(code)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_names_exist(page: Path) -> None:
    assert missing_names(page.read_text()) == []


def test_a_name_that_is_not_there_is_found() -> None:
    text = "`Turn.share_out`, `Turn.shared_out(3)`, `Roundabout.share_out`, `worker/turn.pyx`, `worker/roundabout.pyx`, `turn.pyx`"
    assert missing_names(text) == ["Turn.shared_out(3)", "Roundabout.share_out", "worker/roundabout.pyx"]
