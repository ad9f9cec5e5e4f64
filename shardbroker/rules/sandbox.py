"""Evaluation of rules that people try: in a child process with little memory and time.

    parent                  child: python -m shardbroker.rules.sandbox
    {"sql", "context"} -->  run_rule() in 64 MB and 1 s  --> {"result"} or {"error", "detail"}

A rule may make large values and run long before a limit of the language stops it: then this child ends, and no other process waits.
"""

import asyncio
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

from shardbroker.rules.encoding import decoded, encoded
from shardbroker.rules.tester import Tested

__all__ = ["in_child", "limit", "try_rule"]

SECONDS = 1
"""CPU time and, once it has started, about the longest time of a rule."""
START_SECONDS = 10.0
"""Longest time of the child as a whole: the interpreter starts in 0.1 s, on a busy machine in some seconds."""
MEMORY_BYTES = 64 << 20
"""Address space beyond what the interpreter and the functions take."""
REQUEST_MAX = 4 << 20
"""Bytes of SQL and columns."""
AT_ONCE = 2
"""Children that run at a time; further ones wait."""

_turns: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}


async def try_rule(sql: str, context: dict[str, Any]) -> Tested:
    """Evaluates a rule over these columns, which are as in rules/encoding.py."""
    request = json.dumps({"sql": sql, "context": context}).encode()
    if len(request) > REQUEST_MAX:
        return Tested("eval", f"sql and context: must be at most {REQUEST_MAX} bytes, got {len(request)}")
    answer = await in_child(__name__, request)
    if not answer:
        return Tested("eval", f"must end within {SECONDS} s and {MEMORY_BYTES >> 20} MB")
    found = json.loads(answer)
    return Tested(found["error"], found["detail"], found["result"])


async def in_child(module: str, request: bytes) -> bytes:
    """Runs a module that reads a request from its standard input and calls limit(); returns its output, none if it was ended."""
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE)):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", module, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            answer, _ = await asyncio.wait_for(child.communicate(request), START_SECONDS)
        except TimeoutError:
            answer = b""
        finally:
            with suppress(ProcessLookupError):  # also of programs of jq
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    return answer


def main() -> None:
    """Answers one request from standard input."""
    from shardbroker.rules.tester import run_rule

    request = json.loads(sys.stdin.buffer.read())
    limit()
    try:
        context = decoded(request["context"])
        if not isinstance(context, dict):
            raise ValueError("must be an object of columns")
        tested = run_rule(request["sql"], context)
        if tested.detail.startswith(MemoryError.__name__):  # an error of the rule, as any in a function
            return
        answer = {"error": tested.error, "detail": tested.detail, "result": encoded(tested.result)}
        sys.stdout.write(json.dumps(answer))
    except (ValueError, RecursionError) as error:
        sys.stdout.write(json.dumps({"error": "eval", "detail": f"context: {error}", "result": None}))
    except MemoryError:
        return


def limit(seconds: int = SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
    """Limits this process to so much beyond what it has taken. Only the soft limits: a child for jq sets its own."""
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory_bytes, resource.RLIM_INFINITY))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    until = int(spent.ru_utime + spent.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
