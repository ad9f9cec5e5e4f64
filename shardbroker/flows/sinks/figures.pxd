"""Counts of an action, with the names of EMQX."""


cdef class Figures:
    cdef public long long matched, success, failed
    cdef public long long inflight, queuing    # at this moment
    cdef public long long late_reply           # written, but after request_ttl
    cdef public long long expired
    cdef public long long lost                 # records of a journal that were removed before they were read: the hold has given way
    cdef public long long retried
