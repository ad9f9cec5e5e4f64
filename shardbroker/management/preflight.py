"""Checks settings by `python -m shardbroker.preflight`, so that the manager, which must not be delayed, loads nothing they name."""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import suppress

import cbor2

from shardbroker.config import Loaded, Settings
from shardbroker.config.live import dump
from shardbroker.control import ControlError

__all__ = ["Refused", "check"]

LONGEST_S = 20.0
"""Longest check, seconds: less than the timeout of `ctl`."""
LOADED_BY = (
    "process", "listeners", "api", "prometheus", "opentelemetry", "auth", "acl", "plugins", "exhook", "cluster", "gateways",
    "rules", "connectors", "actions", "sources",
)  # fmt: skip
"""Sections that name something to load; changes of other sections need no check."""


class Refused(ControlError):
    """Settings that cannot work; `found`: keys, each with what is wrong."""

    def __init__(self, text: str, found: Sequence[tuple[str, str]]) -> None:
        super().__init__("BAD_REQUEST", text)
        self.found = tuple(found)


async def check(loaded: Loaded, before: Settings | None) -> None:
    """Raises Refused for settings that cannot work, ControlError for a check that fails itself. `before`: findings of these
    settings are ignored, so that others can be changed; None: all are loaded again, and only findings that prevent a start of
    the broker count."""
    after = loaded.settings
    if before is not None and all(getattr(before, name) == getattr(after, name) for name in LOADED_BY):
        return
    known, found = (await _findings([before, after])) if before is not None else ([], *await _findings([after]))
    new = [(key, text) for key, text, fatal in found if (key, text, fatal) not in known and (fatal or before is not None)]
    if new:
        raise Refused("\n".join(f"{text} ({loaded.source(key)})" for key, text in new), new)


async def _findings(settings: list[Settings]) -> list[list[tuple[str, str, bool]]]:
    """Returns the findings of each. Raises ControlError."""
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "shardbroker.preflight", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(LONGEST_S):
            out, _ = await program.communicate(cbor2.dumps([dump(one) for one in settings]))
    except TimeoutError:
        raise ControlError("NOT_AVAILABLE", f"settings check took more than {LONGEST_S:g} s; nothing was changed") from None
    finally:
        if program.returncode is None:  # the caller has given up, or the manager stops
            with suppress(ProcessLookupError):
                program.kill()
            await program.wait()
    if program.returncode:
        raise ControlError("NOT_AVAILABLE", f"settings check failed with code {program.returncode}; nothing was changed")
    return [[(key, text, fatal) for key, text, fatal in one] for one in json.loads(out)]
