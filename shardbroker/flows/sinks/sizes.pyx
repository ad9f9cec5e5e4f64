"""Estimates of the memory of values, for the bounds of buffers: each row of a rule is measured."""

from cpython.bytes cimport PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_CheckExact, PyDict_Next, PyDict_Size
from cpython.list cimport PyList_CheckExact
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact
from cpython.unicode cimport PyUnicode_CheckExact, PyUnicode_GET_LENGTH

__all__ = ["size_of"]

cdef enum:
    VALUE_BYTES = 64  # memory of a value and its name besides the text of either


cpdef Py_ssize_t size_of(value) except -1:
    """Returns an estimate of the memory of a value, bytes. Not recursive: a client may have nested it deeply."""
    cdef list waiting = []
    cdef Py_ssize_t total = _size(value, waiting)
    while waiting:
        value = waiting.pop()
        if PyDict_CheckExact(value):
            total += _names_and_values(value, waiting)
        else:
            for one in value:
                total += _size(one, waiting)
    return total


cdef Py_ssize_t _names_and_values(values, list waiting) except -1:
    cdef PyObject* name
    cdef PyObject* value
    cdef Py_ssize_t total = 0, at = 0
    while PyDict_Next(values, &at, &name, &value):
        if PyUnicode_CheckExact(<object>name):
            total += PyUnicode_GET_LENGTH(<object>name)
        total += _size(<object>value, waiting)
    return total


cdef inline Py_ssize_t _size(value, list waiting) except -1:
    """Returns the memory of a value without what is in it, which waits."""
    if PyUnicode_CheckExact(value):
        return VALUE_BYTES + PyUnicode_GET_LENGTH(value)
    if PyBytes_CheckExact(value):
        return VALUE_BYTES + PyBytes_GET_SIZE(value)
    if PyDict_CheckExact(value):
        if PyDict_Size(value):
            waiting.append(value)
    elif PyList_CheckExact(value) or PyTuple_CheckExact(value):
        waiting.append(value)
    return VALUE_BYTES
