"""Estimates of the memory of values, for the bounds of buffers."""


cpdef Py_ssize_t size_of(value) except -1
