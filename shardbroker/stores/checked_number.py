"""A number in a file of its own, with a CRC-32 of its digits: `<digits> <8 hex digits>`."""

from pathlib import Path
from zlib import crc32

from shardbroker.stores.files import replace_file

__all__ = ["read_number", "write_number"]


def read_number(path: Path) -> int | None:
    """Returns the number in a file; None if there is no such file. Raises ValueError if the checksum does not fit, OSError."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    digits, _, checksum = text.rstrip(b"\n").partition(b" ")
    if not digits.isdigit() or checksum != b"%08x" % crc32(digits):
        raise ValueError(f"{path}: {text[:40]!r} is not a number with its checksum")
    return int(digits)


def write_number(path: Path, number: int, *, sync: bool = False) -> None:
    """Replaces the number atomically, with `sync` even across a power cut. Raises OSError."""
    digits = b"%d" % number
    replace_file(path, b"%b %08x\n" % (digits, crc32(digits)), sync=sync)
