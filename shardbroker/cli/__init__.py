"""The command line: `main` parses the arguments, loads the settings through `config`, and runs the command.

Exit codes: 0 success, 1 the broker cannot run (port or data directory in use, a process that does not start), 2 invalid
configuration or usage.
"""
