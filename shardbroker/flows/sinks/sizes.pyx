"""Estimates of the memory of values, for the bounds of buffers: each row of a rule is measured."""

__all__ = ["size_of"]

cdef enum:
    VALUE_BYTES = 64  # memory of a value and its name besides the text of either


def size_of(value) -> int:
    """Returns an estimate of the memory of a value, bytes. Not recursive: a client may have nested it deeply."""
    cdef list waiting = []
    cdef Py_ssize_t total = _size(value, waiting)
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            total += _names_and_values(<dict>value, waiting)
        else:
            for one in value:
                total += _size(one, waiting)
    return total


cdef Py_ssize_t _names_and_values(dict values, list waiting):
    cdef Py_ssize_t total = 0
    for name, value in values.items():
        if type(name) is str:
            total += len(<str>name)
        total += _size(value, waiting)
    return total


cdef inline Py_ssize_t _size(value, list waiting):
    """Returns the memory of a value without what is in it, which waits."""
    cdef type kind = type(value)
    if kind is str:
        return VALUE_BYTES + len(<str>value)
    if kind is bytes:
        return VALUE_BYTES + len(<bytes>value)
    if kind is dict or kind is list or kind is tuple:
        waiting.append(value)
    return VALUE_BYTES
