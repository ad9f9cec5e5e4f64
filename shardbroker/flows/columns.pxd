"""Columns of a message record."""


cpdef dict columns_of(tuple record, long long at_ms, publisher, str node)
