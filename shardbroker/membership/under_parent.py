"""Replaces this process by a program that is killed when the parent dies: python under_parent.py PARENT PROGRAM ARGUMENT...

The request for the death signal outlives the change of the program. It cannot be made between fork and exec by the parent, which
has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""

if __name__ == "__main__":
    parent, program, *arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the parent process has died")
    os.execv(program, [program, *arguments])
