"""The clock of a worker, which is that of the machine at its start, and monotonic from then on."""

import subprocess
import time
from pathlib import Path

import pytest

from shardbroker.control import Control
from tests.harness import Broker, Client, client_id_on

pytestmark = pytest.mark.own_broker
WORKERS, PAUSE_S, ROUNDING_MS = 2, 2, 1
SHIM = f"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {{
    static int (*real)(clockid_t, struct timespec *);
    static pid_t paused;
    Dl_info caller;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    if (clock == CLOCK_REALTIME && paused != getpid() && dladdr(__builtin_return_address(0), &caller)
        && strstr(caller.dli_fname, "/worker/assembly")) {{
        paused = getpid();
        sleep({PAUSE_S});
    }}
    return real(clock, now);
}}
"""
"""The first time that a worker reads the clock of the machine, it does not run for a while."""


def test_a_worker_that_does_not_run_while_it_reads_the_clock_has_the_right_time(tmp_path: Path) -> None:
    (tmp_path / "pause.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "pause.so", tmp_path / "pause.c", "-ldl"], check=True)
    broker = Broker(WORKERS)
    broker.environment["LD_PRELOAD"] = str(tmp_path / "pause.so")
    started = time.monotonic()
    with broker, Control(broker.data_dir) as control:
        assert time.monotonic() - started > PAUSE_S, "no worker has paused"
        for worker in range(WORKERS):
            name = client_id_on(worker, WORKERS, "clock")
            before_ms = time.time() * 1000
            with Client(broker.address, 5, name):
                after_ms = time.time() * 1000
                connected_ms = control.call("clients show", clientid=name)["connected_at"]
                assert before_ms - ROUNDING_MS <= connected_ms <= after_ms + ROUNDING_MS
