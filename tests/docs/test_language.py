"""Plain technical English: the words that `scripts/language.py` counts are rare, in docs, docstrings, comments and strings."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LANGUAGE = runpy.run_path(str(ROOT / "scripts" / "language.py"))
CEILING = {"docs": 0.1, "docstrings": 0.1, "comments": 0.1, "strings": 0.1}
"""Avoided words per 1,000: a handful in the whole tree. A ceiling is never raised."""


def test_avoided_words_are_rare() -> None:
    result = LANGUAGE["tally"]([ROOT / name for name in LANGUAGE["TEXTS"]])
    for area, ceiling in CEILING.items():
        measured = result.per_1000(area)
        assert measured <= ceiling, f"{area}: {measured:.2f} per 1,000: see `python scripts/language.py --list`"


@pytest.mark.parametrize(
    ("name", "text", "area", "line", "phrase"),
    [
        ("a.md", "First.\n\nThere is\nnone.\n", "docs", 3, "is none"),
        ("a.py", '"""Title.\n\nNobody reads."""\n', "docstrings", 3, "nobody"),
        ("a.py", "LIMIT = 1\n'''Of before.'''\n", "docstrings", 2, "of before"),
        ("a.py", "x = 1  # written anew\n", "comments", 1, "anew"),
        ("a.py", "# A client\n# who\n# has left.\n", "comments", 2, "who has"),
        ("a.py", "log(f'for whoever reads {nobody}')\n", "strings", 1, "whoever"),
        ("a.pyx", 'cdef f():\n    """Returns.\n\n    It goes."""\n', "docstrings", 4, "goes"),
        ("a.pyx", "cdef int x   # as it stands\n", "comments", 1, "stands"),
        ("a.pxd", "DEF = 'for somebody'\n", "strings", 1, "somebody"),
    ],
)
def test_a_phrase_is_found_where_it_is(tmp_path: Path, name: str, text: str, area: str, line: int, phrase: str) -> None:
    (tmp_path / name).write_text(text)
    found = LANGUAGE["tally"]([tmp_path]).hits
    assert [(where, hit.line, hit.phrase) for where in found for hit in found[where]] == [(area, line, phrase)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "Text.\n\n```sh\necho nobody\n```\n\n    nobody | whoever\n\nUser `nobody`.\n"),
        ("a.md", "<!-- nobody -->\nThe [page](nobody.md).\n"),
        ("a.py", 'nobody = "nobody"  # `nobody()` is None\n'),
        ("a.pyx", "nobody = x is None  # stands for\n"),
    ],
)
def test_code_is_no_text(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert not any(LANGUAGE["tally"]([tmp_path]).hits.values())
