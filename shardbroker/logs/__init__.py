"""Log lines, written by every plane.

`log` writes lines in batches on a thread of its own, so that a slow standard error neither blocks the process nor fills its memory.
`lines` formats the lines about clients from the events of workers.
"""
