"""Looks at settings in a child process, so that nothing of what they name is loaded into this one."""

import json
import os
import signal

from shardbroker.config import ConfigError, Loaded, Settings
from shardbroker.preflight.checks import Finding, look

__all__ = ["check", "findings"]

LONGEST_S = 30
"""How long a check may take, seconds: modules are made in it, and libraries loaded from a slow disk."""


def check(loaded: Loaded) -> list[str]:
    """Lines about what does not work but keeps no client from the broker. Raises ConfigError for what does."""
    found = findings(loaded.settings)
    if any(one.fatal for one in found):
        raise ConfigError("\n".join(one.line(loaded.source(one.key)) for one in found))
    return [one.line(loaded.source(one.key)) for one in found]


def findings(settings: Settings) -> list[Finding]:
    """As look(). To be called while this process has one thread."""
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
