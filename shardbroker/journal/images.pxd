from shardbroker.journal.recorder cimport BufferRecorder


cdef class StateRecorder(BufferRecorder):
    cdef set written                       # ids of messages
