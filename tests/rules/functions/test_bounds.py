"""Inputs of a hostile client: bombs, expressions that backtrack, widths, depths."""

import gzip
import os
import resource
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shardbroker.rules.functions import libraries
from shardbroker.rules.functions.arguments import MAX_RESULT_BYTES
from shardbroker.rules.functions.jq import stop
from shardbroker.rules.functions.stores import MAX_KEYS, Store
from shardbroker.rules.values import EvaluationError
from tests.rules.functions.expressions import call

BOMB = b"\0" * (64 << 20)
MANY = 1_024
"""Descriptors: select() takes none from this number on."""


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("pad", ("a", 10**12)),
        ("pad", ("a", MAX_RESULT_BYTES, "both", "你")),
        ("replace", ("a" * 10_000, "a", "b" * 10_000)),
        ("regex_replace", ("a" * 10_000, "a", "&" * 10_000)),
        ("concat", ("a" * MAX_RESULT_BYTES, "b")),
        ("join_to_string", ("x" * 10_000, ["a"] * 1_000)),
        ("sprintf", ("~999999999s", "a")),
        ("sprintf", ("~.999999999f", 1.5)),
        ("sprintf", ("~4096s" * 300, *["a"] * 32)),
        ("split", ("," * MAX_RESULT_BYTES, ",", "notrim")),
        ("tokens", ("a," * 100_000, ",")),
        ("bin2hexstr", ("a" * MAX_RESULT_BYTES,)),
        ("base64_encode", ("a" * MAX_RESULT_BYTES,)),
        ("gunzip", (gzip.compress(BOMB),)),
        ("zip_uncompress", (zlib.compress(BOMB),)),
        ("unzip", (zlib.compress(BOMB)[2:-4],)),
        ("bitsl", (1, 10**12)),
        ("bitsr", (1, -(10**12))),
        ("subbits", ("a" * 10_000, 1, 80_000)),
        ("power", (10, 10**6)),
        ("int", ("9" * 100_000,)),
        ("json_encode", (nested(500),)),
        ("json_decode", ("[" * 100_000,)),
        ("json_decode", ("[1" * 1_000 + "1" * 30,)),
        ("term_encode", (nested(500),)),
        ("term_decode", (b"\x83" + b"l\0\0\0\1" * 500 + b"j" * 501,)),
        ("term_decode", (b"\x83l\xff\xff\xff\xff" + b"j" * 100_000,)),
        ("map_put", (".".join("a" * 1_000), 1, {})),
        ("regex_match", ("a" * 5_000 + "!", "(a+)+$")),
        ("regex_match", ("a" * 5_000 + "!", "(a|aa|aaa)*$")),
        ("regex_match", ("a", "(?:(?:(?:a{1000}){1000}){1000}){1000}")),
        ("regex_match", ("a", "a{1,65535}")),
        ("regex_match", ("a", "(?x)#[\n(a{1000}){1000}#]")),
        ("regex_match", ("a", "(?#[)(a{1000}){1000}(?#])")),
        ("regex_match", ("a", "(" * 2_000 + ")" * 2_000)),
        ("format_date", ("second", "Z", "%Y", 10**20)),
        ("format_date", ("second", "Z", "%Y" * 1_000, 0)),
        ("unescape", ("\\x" + "F" * 100_000,)),
        ("getenv", ("PATH\0",)),
    ],
)
def test_is_refused(name: str, arguments: tuple[Any, ...]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((EvaluationError, ArithmeticError, ValueError, RecursionError)):
        call(name, *arguments)
    # Kilobytes: refused before the memory is taken.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_repetitions_of_a_uuid_are_not_too_many() -> None:
    expression = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
    assert call("regex_match", call("uuid_v4"), expression)


@pytest.fixture(autouse=True, scope="module")
def _child_of_jq() -> Iterator[None]:
    yield
    stop()


class TestJq:
    @pytest.mark.parametrize("program", ["def f: f; f", "repeat(.)", "[range(1000000000)]"])
    def test_a_program_without_end_is_stopped(self, program: str) -> None:
        with pytest.raises(EvaluationError, match="jq: must end within"):
            call("jq", program, 1, 100)
        assert call("jq", ".+1", 5) == [6]

    def test_a_process_with_many_descriptors_has_results(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < MANY + 64:
            resource.setrlimit(resource.RLIMIT_NOFILE, (MANY + 64, hard))
        stop()
        with ExitStack() as stack:
            try:
                for _ in range(MANY):
                    stack.enter_context(open(os.devnull))
                assert call("jq", ".+1", 5) == [6]
            finally:
                stop()
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    @pytest.mark.parametrize(("program", "value"), [(".", "{"), (".a", 5), ("(", 1), ("." * 100_000, 1)])
    def test_an_error_is_told(self, program: str, value: Any) -> None:
        with pytest.raises(EvaluationError):
            call("jq", program, value)

    def test_results_are_bounded(self) -> None:
        with pytest.raises(EvaluationError):
            call("jq", '"a" * 2000000', 1)

    def test_the_child_sees_no_environment_of_the_broker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stop()
        monkeypatch.setenv("SECRET", "x")
        assert call("jq", "env.SECRET, $ENV.SECRET", 1) == [None, None]

    def test_a_program_reads_no_files(self, tmp_path: Path) -> None:
        (tmp_path / "secret.json").write_text("1")
        with pytest.raises(EvaluationError):
            call("jq", f'import "secret" as $s {{search: "{tmp_path}"}}; $s', 1)
        assert call("jq", ".", ["\u2028"]) == [["\u2028"]]


def test_the_environment_is_read_behind_its_prefix_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDBROKERVAR_NAME", "x")
    monkeypatch.setenv("SECRET", "y")
    assert call("getenv", "NAME") == "x"
    assert call("getenv", "SECRET") == ""


def test_a_store_has_bounds() -> None:
    store = Store()
    for key in range(MAX_KEYS):
        store.put(key, key)
    with pytest.raises(EvaluationError, match="key: must be one of the 10000"):
        store.put("one more", 1)
    store.put(1, "again")
    store.delete(2)
    store.put("one more", 1)
    with pytest.raises(EvaluationError, match="value: must be at most"):
        store.put(1, "a" * 100_000)
    with pytest.raises(EvaluationError, match="key: must be at most"):
        store.get("a" * 2_000)
    with pytest.raises(EvaluationError, match="store: must be at most"):
        for key in range(3, 1_000):
            store.put(key, "a" * 60_000)


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    libraries.library.cache_clear()
    monkeypatch.setattr(libraries.importlib, "import_module", missing)
    with pytest.raises(EvaluationError, match=r"pip install 'shardbroker\[rules\]'"):
        call("json_encode", 1)
