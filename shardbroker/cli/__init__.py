"""The command line: `main` parses it, asks `config` for the settings, and runs what was asked for.

Exit codes: 0 all went well, 1 the broker cannot run (port or data directory taken, a process that does not start), 2 wrong
configuration or usage.
"""
