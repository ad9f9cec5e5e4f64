"""Downloads what tests start that no Debian package has: `python -m tests.downloads`. Nothing is done twice in one clone.

A test may do the same for itself, but its time limit is that of a broker, not of a network.
"""

import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.harness import mqtt_js, npm, wheelhouse
from tests.servers import pulsar, s3
from tests.servers.maven import classpath

ATTEMPTS = 3
"""Of each download; a registry or the way to it may fail for a moment."""
PAUSE_S = 5.0
SERVERS = Path(__file__).parent / "servers"
NODE_RED = Path(__file__).parent / "clients" / "node_red"


def main() -> int:
    """Returns 1 if a download failed."""
    wanted: dict[str, Callable[[], object]] = {"moto": s3.installed, "wheels": wheelhouse.filled}
    if shutil.which("npm"):
        wanted["MQTT.js"] = mqtt_js.install
        wanted["Node-RED"] = partial(npm.installed, NODE_RED, "node-red")
    if shutil.which("mvn"):
        wanted["pulsar"] = pulsar.distribution
        for pom in sorted(SERVERS.glob("*/pom.xml")):
            wanted[pom.parent.name] = partial(classpath, pom)
    with ThreadPoolExecutor(len(wanted)) as pool:
        return max(pool.map(_attempt, wanted, wanted.values()))


def _attempt(name: str, download: Callable[[], object]) -> int:
    started = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            download()
        except (AssertionError, OSError) as error:
            print(f"{name}: attempt {attempt} of {ATTEMPTS} failed: {error}", file=sys.stderr)
            time.sleep(PAUSE_S)
        else:
            print(f"{name}: there after {time.monotonic() - started:.0f} s")
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
