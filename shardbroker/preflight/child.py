"""Checks settings in a child process, so that nothing they name is loaded into this process."""

import json
import os
import signal

from shardbroker.config import ConfigError, Loaded, Settings
from shardbroker.config.cluster_values import CLUSTER, concerned
from shardbroker.preflight.checks import Finding, look

__all__ = ["check", "findings", "usable"]

LONGEST_S = 30
"""Longest check, seconds: it imports modules, and loads libraries from a possibly slow disk."""


def check(loaded: Loaded) -> list[str]:
    """Returns lines about faults that keep no client from the broker. Raises ConfigError for those that do."""
    return usable(loaded)[1]


def usable(loaded: Loaded) -> tuple[Loaded, list[str]]:
    """Returns settings that the broker starts with, and lines about their faults: without those settings of all nodes that would
    keep it from starting. Raises ConfigError if others do."""
    refused: dict[str, str] = {}
    while True:
        found = findings(loaded.settings)
        fatal = [one for one in found if one.fatal]
        if not fatal:
            unusable = [f"{key} ({CLUSTER}): not applied: {reason}" for key, reason in loaded.unusable.items()]
            return loaded, [*(one.line(loaded.source(one.key)) for one in found), *unusable]
        in_force = [value for value in loaded.cluster.values if value.key not in loaded.unusable]
        culprits = {value.key: one.text for one in fatal for value in concerned(in_force, one.key)}
        if not culprits:
            raise ConfigError("\n".join(one.line(loaded.source(one.key)) for one in found))
        refused |= culprits
        loaded = loaded.again(cluster=loaded.cluster, refused=refused)


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
