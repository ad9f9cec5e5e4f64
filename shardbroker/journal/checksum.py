"""CRC-32 of zlib, which every reader has in its standard library, from the fastest library that is there.

ISA-L computes it at 20 GB/s and more, zlib 1.2.13 at 3, so journals cost less without asking more of those who read them.
CRC-32C would be no faster (docs/design/0002-the-journal.md).
"""

try:
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this machine
    from zlib import crc32

__all__ = ["crc32"]
