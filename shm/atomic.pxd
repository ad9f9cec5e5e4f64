"""Atomic access to 64-bit words in shared memory (GCC builtins)."""
from libc.stdint cimport uint64_t

cdef extern from * nogil:
    """
    #include <stdint.h>
    static inline uint64_t sb_load(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
    static inline void sb_store(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
    static inline uint64_t sb_add(uint64_t* word, uint64_t value) { return __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL); }
    static inline uint64_t sb_exchange(uint64_t* word, uint64_t value) { return __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST); }
    static inline int sb_replace(uint64_t* word, uint64_t* before, uint64_t value) {
        return __atomic_compare_exchange_n(word, before, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    static inline void sb_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    """
    uint64_t sb_load(const uint64_t* word) noexcept
    void sb_store(uint64_t* word, uint64_t value) noexcept
    uint64_t sb_add(uint64_t* word, uint64_t value) noexcept
    uint64_t sb_exchange(uint64_t* word, uint64_t value) noexcept
    # Returns 1 if the word was `before`, and is `value` now; else 0, with the word's value in `before`.
    int sb_replace(uint64_t* word, uint64_t* before, uint64_t value) noexcept
    void sb_fence() noexcept
