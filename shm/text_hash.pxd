"""Hash of a text for tables of one process. The seed keeps clients from choosing texts that collide."""
from libc.stdint cimport uint8_t, uint64_t

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t sb_mix(uint64_t a, uint64_t b) {
        __uint128_t product = (__uint128_t)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    /* Eight bytes a step, folded products. */
    static inline uint64_t sb_hash(const uint8_t *text, size_t size, uint64_t seed) {
        uint64_t hash = seed ^ size, word;
        for (; size > 8; text += 8, size -= 8) {
            memcpy(&word, text, 8);
            hash = sb_mix(hash ^ word, 0x9E3779B97F4A7C15ull);
        }
        word = 0;
        memcpy(&word, text, size);
        return sb_mix(hash ^ word, 0xD6E8FEB86659FD93ull ^ seed);
    }
    """
    uint64_t sb_hash(const uint8_t* text, size_t size, uint64_t seed) noexcept
