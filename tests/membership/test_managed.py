"""etcd as a child of a process: its start, its log, its end."""

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from shardbroker.config.cluster import Cluster
from shardbroker.membership.core_file import CorePlan, endpoints_of, read_plan, write_plan
from shardbroker.membership.managed import LINES_MAX, ManagedEtcd, etcd_command
from tests.cluster.real.nodes import free_pair
from tests.harness.needed import needed

NAME = "n1@127.0.0.1"


def cluster(port: int = 12379, **tls: object) -> Cluster:
    core = {"members": [f"{NAME}=127.0.0.1:{port}"], "bind": f"127.0.0.1:{port}"}
    return Cluster.model_validate({"enable": True, "cookie_file": "c", "core": core, "tls": tls})


def managed(port: int, data_dir: Path) -> tuple[ManagedEtcd, list[tuple[str, str]]]:
    lines: list[tuple[str, str]] = []
    return ManagedEtcd(cluster(port), NAME, data_dir, lambda level, line: lines.append((level, line))), lines


def test_it_stops_within_its_time_and_leaves_nothing(tmp_path: Path) -> None:
    needed("etcd")

    async def work() -> int:
        port = free_pair()
        server, lines = managed(port, tmp_path)
        task = asyncio.create_task(server.run())
        async with asyncio.timeout(20):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                await asyncio.sleep(0.05)
        pid = server.pid
        assert psutil.Process(pid).name() == "etcd" and server.problem == ""
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not any("killed" in line for _, line in lines), lines
        return pid

    assert not psutil.pid_exists(asyncio.run(work()))
    assert (tmp_path / "etcd").stat().st_mode & 0o777 == 0o700


def test_one_that_cannot_start_is_tried_again_with_its_reason(tmp_path: Path) -> None:
    needed("etcd")

    async def work(port: int) -> list[tuple[str, str]]:
        server, lines = managed(port, tmp_path)
        task = asyncio.create_task(server.run())
        async with asyncio.timeout(20):
            while sum("etcd died" in line for _, line in lines) < 3:
                await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert "address already in use" in server.problem
        return lines

    port = free_pair()
    with socket.create_server(("127.0.0.1", port)):
        lines = asyncio.run(work(port))
    died = [line for level, line in lines if "etcd died" in line and level == "error"]
    assert [line.rpartition("restart_in=")[2] for line in died] == ["0s", "0.1s", "0.2s"]
    assert all("address already in use" in line and 'cause="exit code 1"' in line for line in died)


def test_its_log_is_bounded(tmp_path: Path) -> None:
    server, lines = managed(1, tmp_path)
    for number in range(LINES_MAX + 30):
        server._pass_on(json.dumps({"level": "warn", "msg": f"x{number}" * 1000}).encode())
    server._pass_on(b'{"level": "info", "msg": "all is well"}')
    server._pass_on(b"panic: \x1b[31mred")
    assert len(lines) == LINES_MAX and all(level == "warning" and len(line) < 400 for level, line in lines)
    server._lines.clear()
    server._pass_on(b'{"level": "fatal", "msg": "failed", "error": "no \\u001b room"}')
    assert lines[LINES_MAX:] == [
        ("warning", "etcd reports left out count=31"), ("error", 'etcd reports message=failed error="no \\x1b room"'),
    ]  # fmt: skip


@pytest.mark.parametrize("plan", [CorePlan(), CorePlan(("http://10.0.0.2:1", "http://127.0.0.1:12379"), "a=http://x:2", True)])
def test_the_plan_of_a_node(tmp_path: Path, plan: CorePlan) -> None:
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert endpoints_of(cluster(), NAME, plan)[0] == "http://127.0.0.1:12379"
    command = etcd_command("etcd", cluster(), NAME, tmp_path)
    state = command[command.index("--initial-cluster-state") + 1]
    assert state == ("existing" if plan.initial else "new")
    assert not any("cert" in one for one in command)


def test_a_damaged_plan_counts_as_unknown(tmp_path: Path) -> None:
    write_plan(tmp_path, CorePlan())
    (tmp_path / "cluster" / "core").write_bytes(b'{"endpoints": 3}')
    assert read_plan(tmp_path) == CorePlan()


def test_certificates_are_those_of_the_nodes(tmp_path: Path) -> None:
    command = etcd_command("etcd", cluster(enable=True, cacertfile="ca.pem", certfile="n1.pem"), NAME, tmp_path)
    for prefix in "", "peer-":
        for option, value in (("cert-file", "n1.pem"), ("key-file", "n1.pem"), ("trusted-ca-file", "ca.pem")):
            assert command[command.index(f"--{prefix}{option}") + 1] == value
        assert f"--{prefix}client-cert-auth" in command
    assert "https://127.0.0.1:12379" in command and "https://127.0.0.1:12380" in command
