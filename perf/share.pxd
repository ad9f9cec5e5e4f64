from libc.stdint cimport uint64_t


# What one load process tells all others; one writer each, so no locks.
cdef struct Totals:
    uint64_t opened, failed                # clients that are let in, or not
    uint64_t gone                          # connections that the broker closed
    uint64_t published, acked
    uint64_t delivered, unique             # with and without second copies
    uint64_t changes                       # subscriptions made or given up, or clients that came and went
    uint64_t finished                      # 1: publishes no more
    uint64_t p99_ns                        # of end-to-end latency so far
    uint64_t unused[6]                     # 128 bytes: no two processes write one cache line


cdef class Share:
    cdef readonly int processes, publishers
    cdef object memory
    cdef Totals* totals                    # of each process
    cdef uint64_t* seqs                    # of each publisher: messages published; written by the process that has it
    cdef uint64_t* delivered               # process after process, of each publisher: first copies at the process's subscribers
