"""CRC-32 of zlib, which each reader has in its standard library, computed by the fastest library available.

ISA-L computes it at 20 GB/s and more, zlib 1.2.13 at 3 to 5: journals cost less, and readers need no further library. CRC-32C would
be no faster (docs/design/0002-durability.md).
"""

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # no wheel for this machine
    from zlib import crc32 as _crc32

__all__ = ["crc32"]

cdef extern from *:
    """
    #if defined(__x86_64__)
    static void sb_leave_vectors(void) { if (__builtin_cpu_supports("avx")) __asm__ volatile ("vzeroupper"); }
    #else
    static void sb_leave_vectors(void) {}
    #endif
    """
    void sb_leave_vectors() noexcept


def crc32(data, value: int = 0) -> int:
    """Returns the checksum of `data`, a buffer, that continues the checksum `value`."""
    # ISA-L 2.32 leaves the upper halves of AVX-512 registers in use. This delays all SSE code that runs afterwards: a worker took
    # 0.55 µs for a message instead of 0.2 (docs/performance.md, sessions that stay).
    checksum = _crc32(data, value)
    sb_leave_vectors()
    return checksum
