"""The targets of fuzz/ accept what is right, and each of them notices a fault that is put in on purpose.

Reads beyond a packet are AddressSanitizer's matter: `python -m fuzz.run` reads one byte too many first and wants a report.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz import engine
from fuzz.engine import TARGETS, exact, inputs, load, pieces

KEPT_MAX = 100_000
"""Bytes of a file in fuzz/corpus."""


@pytest.mark.parametrize("name", TARGETS)
def test_no_finding_in_the_corpus(name: str) -> None:
    target = load(name)
    for data in [b"", *inputs(name)]:
        target.check(data)


def changed(real: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function with another result."""
    return lambda *arguments: change(real(*arguments))


class Forgetful:
    """A decoder that loses the last byte of what it is given, if that is more than one."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def decode(self, data: bytes) -> bytes:
        return bytes(self._real.decode(data[:-1] if len(data) > 1 else data))


def one_byte_less(found: Any) -> Any:
    return found[:-1] if isinstance(found, bytes) and found else found


def wrong_end(found: Any) -> Any:
    return found and (found[0], found[1] + 1)


def too_patient(real: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Wants one byte more than there has to be."""
    return lambda data: real(data[:-1])


def put_fault(name: str, target: Any, patch: pytest.MonkeyPatch) -> None:
    """Replaces what this target tests by something with a fault."""
    if name == "coap":
        patch.setattr(target, "decode", changed(target.decode, lambda found: found._replace(payload=found.payload + b"!")))
    elif name == "codec":
        real = target._Core.answers
        # Byte by byte, the last one never arrives.
        patch.setattr(target._Core, "answers", lambda core, parts: real(core, parts[:-1] if len(parts) > 2 else parts))
    elif name == "bridge":
        patch.setattr(target, "open_record", changed(target.open_record, lambda found: (found[0] + 1, *found[1:])))
    elif name == "journal":
        patch.setattr(target, "crc32", lambda data: 0)
    elif name == "mqttsn":
        patch.setattr(target, "decode", changed(target.decode, lambda found: replace(found, data=found.data + b"!")))
    elif name == "packets":
        patch.setattr(target, "decode", changed(target.decode, wrong_end))
    elif name == "peek":
        patch.setattr(target, "peek_client_id", changed(target.peek_client_id, one_byte_less))
    elif name == "proxy":
        patch.setattr(target, "parse_proxy_header", too_patient(target.parse_proxy_header))
    elif name == "records":
        patch.setattr(target, "open_record", changed(target.open_record, lambda found: (found[0], found[1], found[2] + b"!")))
    elif name == "stomp":
        real_feed = target.FrameReader.feed
        patch.setattr(target.FrameReader, "feed", lambda reader, data: real_feed(reader, data[:-1] if len(data) > 1 else data))
    elif name == "tls":
        real_records = target.Records
        patch.setattr(target, "Records", SimpleNamespace(unpack=lambda state: Forgetful(real_records.unpack(state))))
    else:
        real_framing = target.Framing
        patch.setattr(target, "Framing", lambda limit: Forgetful(real_framing(limit)))


@pytest.mark.parametrize("name", TARGETS)
def test_a_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = load(name)
    put_fault(name, target, monkeypatch)
    with pytest.raises(AssertionError):
        for data in inputs(name):
            target.check(data)


def test_corpus_is_small() -> None:
    for name in TARGETS:
        assert sum(map(len, inputs(name))) < KEPT_MAX


def test_exact_is_the_same_bytes() -> None:
    for data in (b"", b"a", b"abc"):
        assert exact(data) == data
        assert b"".join(pieces(data, 2)) == data


def test_findings_stay_in_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that reach nothing more go, but for those that were findings once."""
    monkeypatch.setattr(engine, "CORPUS", tmp_path)
    (tmp_path / "tls.txt").write_text("0a0b  # was wrong\n0c\n")
    found = tmp_path / "found"
    found.mkdir()
    for number, data in enumerate((b"\x0d\x0e\x0f", b"\x0a\x0b", b"\x0d", next(iter(load("tls").seeds())))):
        (found / str(number)).write_bytes(data)
    engine._keep("tls", found)
    assert (tmp_path / "tls.txt").read_text() == "0a0b  # was wrong\n0d\n0d0e0f\n"
    assert inputs("tls")[-3:] == [b"\x0a\x0b", b"\x0d", b"\x0d\x0e\x0f"]
