"""Fixtures of the black-box tests. One broker serves all tests with default settings: client ids and topics
are unique to each test."""

import itertools
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.known_differences import KNOWN_DIFFERENCES
from tests.conformance.outcomes import Outcomes, pytest_collection_modifyitems
from tests.harness.broker import AnyBroker, Broker, ExternalBroker, client_id_on
from tests.harness.client import Client
from tests.skips import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_collection_modifyitems", "pytest_make_collect_report", "pytest_runtest_makereport"]

WORKERS = 3
OPEN_FILES = 20_000
"""Descriptors for thousands of clients; the usual soft limit is 1,024."""
SHOWN_MAX = 200
"""Characters of a reason when a test fails."""
MAX_BROKERS = 2
"""Brokers with settings of their own that run at a time; a new one replaces the one unused for longest."""

_numbers = itertools.count(1)
_RUN = f"{time.time_ns() // 1_000_000 % 36**5:x}"
"""Part of client ids and topics: a broker that outlives the run may still hold sessions of an earlier one."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--broker", metavar="HOST:PORT", help="test this running broker")
    parser.addoption("--statements", metavar="FILE", help="note which statements of MQTT have tests that passed")
    parser.addoption("--until", metavar="SECONDS", type=float, help="begin no test after that time, in seconds since 1970")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "statement(version, *ids): statements of MQTT that the test covers")
    config.addinivalue_line("markers", "torture: minutes of killing (tests/torture)")
    config.addinivalue_line("markers", "own_broker: needs a shardbroker of its own; skipped with --broker")
    # A shell without job control ignores SIGINT for what it starts in the background, and every process of the tests inherits that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
    file = config.getoption("--statements")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(Path(file)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip("no time is left")


class FailuresAtOnce:
    """Names a test when it fails, not at the end alone, which a run that is stopped does not reach."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = str(crash.message).partition("\n")[0] if crash else str(report.longrepr).rpartition("\n")[2]
            terminal.ensure_newline()
            terminal.write_line(f"{report.when} of {report.nodeid} after {report.duration:.0f} s: {reason[:SHOWN_MAX]}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file is for one process, so that its fixtures are made once; all of `tests/api` is, since its last test asks what no
    other has."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "tests/api" if file.startswith("tests/api/") else file

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def _external_broker(request: pytest.FixtureRequest) -> None:
    """With --broker: skips what that broker cannot do, and expects its known differences to show."""
    if not request.config.getoption("--broker"):
        return
    if request.node.get_closest_marker("own_broker"):
        pytest.skip("needs a shardbroker")
    known = KNOWN_DIFFERENCES.get(request.getfixturevalue("broker").known, {})
    node = request.node
    case = getattr(node, "callspec", None) and node.callspec.params.get("case")
    for name in (node.name, node.originalname, getattr(case, "name", None)):
        if name in known:
            node.add_marker(pytest.mark.xfail(reason=known[name], strict=True))


@pytest.fixture(autouse=True)
def _no_crashes() -> Iterator[None]:
    """A process that died during a test fails it, though the broker has started another one."""
    yield
    for one in list(Broker.started):
        one.check()


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Iterator[AnyBroker]:
    """The shared broker: three workers and defaults, or the one given by --broker."""
    given = request.config.getoption("--broker")
    if given:
        host, _, port = given.rpartition(":")
        yield ExternalBroker((host or "127.0.0.1", int(port)))
        return
    with Broker(WORKERS) as own:
        yield own


@pytest.fixture(scope="session")
def _broker_cache(request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    running: dict[tuple[tuple[str, object], ...], tuple[Broker, ExitStack]] = {}

    def start(**settings: object) -> Broker:
        if request.config.getoption("--broker"):
            pytest.skip("needs settings that a running broker cannot be given")
        key = tuple(sorted(settings.items()))
        if key in running:
            running[key] = running.pop(key)
            return running[key][0]
        if len(running) >= MAX_BROKERS:
            running.pop(next(iter(running)))[1].close()
        stack = ExitStack()
        workers = int(str(settings.pop("workers", WORKERS)))
        dotted = {name.replace("__", "."): value for name, value in settings.items()}
        running[key] = stack.enter_context(Broker(workers, dotted)), stack
        return running[key][0]

    with ExitStack() as all_of_them:
        yield start
        for _, stack in running.values():
            all_of_them.callback(stack.close)


@pytest.fixture
def broker_with(_broker_cache: Callable[..., Broker]) -> Callable[..., Broker]:
    """broker_with(mqtt__max_inflight=1, workers=2): a broker with these settings, kept for later tests.

    `__` in a name stands for the dot in the key. Skips the test if the broker is external. A broker from an
    earlier call may be stopped by a later one (MAX_BROKERS), so a test takes all it needs first.
    """
    return _broker_cache


@pytest.fixture(params=["same", "different"])
def placement(request: pytest.FixtureRequest) -> str:
    """For tests with several clients: they run with all client ids on one worker, and spread over workers."""
    if request.param == "different" and request.config.getoption("--broker"):
        pytest.skip("an external broker has no workers to spread clients over")
    return str(request.param)


@pytest.fixture
def new_id(request: pytest.FixtureRequest) -> Callable[..., str]:
    """new_id(slot=None, workers=3): an unused client id, at most 23 alphanumeric bytes.

    With the fixture `placement` the slots (0, 1, 2, ... in the order of calls) go to one worker or to
    different ones.
    """
    slots = itertools.count()
    spread = "placement" in request.fixturenames and request.getfixturevalue("placement") == "different"

    def make(slot: int | None = None, workers: int = WORKERS) -> str:
        place = next(slots) if slot is None else slot
        return client_id_on(place % workers if spread else 0, workers, f"t{_RUN}n{next(_numbers)}x")

    return make


@pytest.fixture
def connect(request: pytest.FixtureRequest, new_id: Callable[..., str]) -> Iterator[Callable[..., Client]]:
    """connect(version=5, client_id=None, on=None, **arguments of Client): a client, closed at the end.

    Without an id it gets a new one; `on` is the broker, the shared one by default. With the fixture `version`
    (a parameter of the test) that is the default version.
    """
    with ExitStack() as stack:

        def make(
            version: int | None = None,
            client_id: str | None = None,
            on: AnyBroker | None = None,
            **options: Any,
        ) -> Client:
            target = request.getfixturevalue("broker") if on is None else on
            if version is None:
                version = request.getfixturevalue("version") if "version" in request.fixturenames else 5
            if client_id is None:
                client_id = new_id(workers=max(target.workers, 1))
            return stack.enter_context(Client(target.address, version, client_id, **options))

        yield make


@pytest.fixture
def topic() -> str:
    """A topic prefix of this test's own, such as "test/2f0a1-17"; no message of another test matches it."""
    return f"test/{_RUN}-{next(_numbers)}"
