"""Checks settings in a child process, so that nothing they name is loaded into this process."""

import json
import os
import signal

from shardbroker.config import ConfigError, Loaded, Settings
from shardbroker.preflight.checks import Finding, look

__all__ = ["check", "findings"]

LONGEST_S = 30
"""Longest check, seconds: it imports modules, and loads libraries from a possibly slow disk."""


def check(loaded: Loaded) -> list[str]:
    """Returns lines about faults that keep no client from the broker. Raises ConfigError for those that do."""
    found = findings(loaded.settings)
    if any(one.fatal for one in found):
        raise ConfigError("\n".join(one.line(loaded.source(one.key)) for one in found))
    return [one.line(loaded.source(one.key)) for one in found]


def findings(settings: Settings) -> list[Finding]:
    """Returns the findings of look(). Call it while this process has one thread."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(LONGEST_S)
            found = json.dumps(look(settings)).encode()
            with open(writing, "wb") as file:
                file.write(found)
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    if status:
        ended = f"ended by signal {status & 0x7F}" if status & 0x7F else "failed"
        return [Finding("settings", f"settings: must be such that they can be checked, got a check that {ended}")]
    return [Finding(*one) for one in json.loads(answer)]
