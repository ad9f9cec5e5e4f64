"""`shardbroker` with journals that turn over every second, so that checkpoints and removed segments come into a short run.

    python -m tests.torture.small serve ...
"""

import functools
import sys

from shardbroker.cli.main import main
from shardbroker.worker import loop, recover

CYCLE_BYTES = 1 << 17
"""Of journal, after which all sessions are written anew."""
SEGMENT_BYTES = 1 << 16

if __name__ == "__main__":
    loop.CYCLE_BYTES = CYCLE_BYTES
    recover.open_journal = functools.partial(recover.open_journal, segment_bytes=SEGMENT_BYTES)
    sys.exit(main())
