"""Log lines, which every plane writes.

`log` writes lines in batches on a thread of its own, so that a slow standard error stops nothing and fills no memory. `lines` makes
the lines of clients from the events that workers send.
"""
