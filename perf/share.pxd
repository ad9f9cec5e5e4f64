from libc.stdint cimport uint64_t


# Counters that one load process publishes to all others; one writer each, so no locks.
cdef struct Totals:
    uint64_t opened, failed                # clients that were accepted, or not
    uint64_t gone                          # connections that the broker closed
    uint64_t published, acked
    uint64_t delivered, unique             # with and without second copies
    uint64_t changes                       # subscribes and unsubscribes, or completed connections
    uint64_t finished                      # 1: all messages published
    uint64_t p99_ns                        # of end-to-end latency so far
    uint64_t unused[6]                     # 128 bytes: no two processes write one cache line


cdef class Share:
    cdef readonly int processes, publishers
    cdef object memory
    cdef Totals* totals                    # by process
    cdef uint64_t* seqs                    # by publisher: messages published; written by the process that has it
    cdef uint64_t* delivered               # process after process, by publisher: first copies at the process's subscribers
