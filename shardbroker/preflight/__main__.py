"""For the manager: settings on standard input, findings on standard output; see `shardbroker.management.preflight`."""

import json
import os
import sys

import cbor2

from shardbroker.config.live import parse
from shardbroker.preflight.checks import look


def main() -> None:
    out = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # output of a module is not a finding
    found = [look(parse(one)) for one in cbor2.loads(sys.stdin.buffer.read())]
    with open(out, "w", encoding="utf-8") as file:
        json.dump(found, file)


main()
