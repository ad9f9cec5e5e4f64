"""The examples of README and docs/ are run as they stand there, page by page, on a machine with a systemd of its own.

The machine (tests/deploy/machine.py) is a view of this one with a loopback of its own, so ports and paths are those of the pages,
to the letter. What is made there is gone with it. Rules, which pages need not mention:

- A page is one shell in the source tree, which is built already, without a directory `data`. The installed command comes before
  that of `.venv`. Everybody is root, so `sudo` only runs what stands behind it.
- A command that would go on for ever goes on beside the next ones, once it is under way; at the end of the page it is ended.
- What another terminal would be opened for is run in the same one.
- TOML is a configuration, and passes `config check`; Python is run.

`pages.py` has the marks by which a page says more, and the reasons for which an example is not run.
"""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.machine import ENVIRONMENT, Machine, why_not
from tests.docs.pages import PAGES, REASONS, ROOT, Example, parts_of, with_reasons

pytestmark = pytest.mark.own_broker

WALK = (
    "README.md", "docs/index.md", "docs/rest.md", "docs/dashboard.md", "docs/metrics.md", "docs/topics.md", "docs/rules.md",
    "docs/coming-from.md",
    "docs/cluster.md", "docs/performance.md", "docs/spark.md", "docs/operation-install.md", "docs/operation-upgrade.md",
    "docs/features.md",
    "docs/rules-tutorial.md", "docs/tracing.md", "docs/replay.md", "docs/streams.md",
    "docs/operation-secure.md", "docs/howto-jwt.md", "docs/howto-http.md", "docs/howto-postgresql.md", "docs/howto-mutual-tls.md",
    "docs/howto-proxies.md", "docs/howto-alerts.md",
    "docs/operation-tune.md", "docs/sizing.md", "docs/access.md", "docs/listeners.md", "docs/operation-backup.md",
    "docs/howto-letsencrypt.md",
)  # fmt: skip
"""In the order in which somebody new comes to them; from the installation on, with the service."""
MERGE = shlex.quote(str(ROOT / "tests/docs/merge.py"))
INSTALLATION = "docs/operation-install.md"
NOT_RUN_MOST = 7
"""Examples that no test runs; those of whole pages count as one."""
ENDLESS = re.compile(
    r"(sudo )?(make serve|(\.venv/bin/)?shardbroker (serve|top(?!.* --once))|mosquitto_sub(?!.* -C)|journalctl .*-f\b)"
)
PATIENCE_S = 60
"""For what is to show by itself."""
PAGE_S = 600
"""For a page, after which all that it has started is killed. Three starts of Spark on a busy machine take minutes."""
PAGE_ENVIRONMENT = ENVIRONMENT | {"HOME": "/root", "PYTHONUNBUFFERED": "1", "TERM": "dumb"}
SPARK_ENVIRONMENT = ("JAVA_TOOL_OPTIONS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "SPARK_CONF_DIR=/run/spark")
SPARK = "spark.sql.shuffle.partitions 1\nspark.ui.enabled false\n"
"""It has little to do, and so is done with it in half of the time."""
PRELUDE = """
cd {root} && rm -rf data || exit 9
export PATH=/usr/local/bin:{root}/.venv/bin:$PATH
logs=/run/examples/{page}; mkdir -p $logs
trap 'fail "$at" "is not over after {page_s} s" /dev/null' TERM
sudo() { if [[ $1 == -u ]]; then runuser -u "$2" -- "${@:3}"; else "$@"; fi; }
declare -a jobs; declare -A place

fail() { echo "$1: $2"; cat "$3" 2>/dev/null; tail -n 20 $logs/*; finish; exit 1; }

finish() {
    for job in "${jobs[@]}"; do kill -TERM -- -$job; done 2>/dev/null
    for job in "${jobs[@]}"; do while kill -0 -- -$job; do sleep 0.1; done; done 2>/dev/null
}

filled() {  # COMMAND: with what places stand for
    command=$1
    for word in "${!place[@]}"; do command=${command//"$word"/${place[$word]}}; done
}

step() {  # LINE COMMAND: it succeeds
    filled "$2"; at="$1: $command"; began=${EPOCHREALTIME/.}
    eval "$command" >>$logs/$1 2>&1 </dev/null || fail "$at" "exit code $?" $logs/$1
    echo "$(( (${EPOCHREALTIME/.} - began) / 1000 )) ms: $at"
}

says() {  # LINE COMMAND TEXT [fails]: it says so, and fails
    at="$1: $2"
    eval "$2" >>$logs/$1 2>&1 </dev/null && [[ $4 == fails ]] && fail "$1: $2" "succeeds" $logs/$1
    grep -qF -- "$3" $logs/$1 || fail "$1: $2" "does not say $3" $logs/$1
}

await() {  # LINE WHAT COMMAND...: until it is so
    for _ in $(seq {patience_s}0); do if "${@:3}" >/dev/null 2>&1; then return; fi; sleep 0.1; done
    fail "$1" "$2" $logs/$1
}

endless() {  # LINE COMMAND [FILTER]: it goes on beside what follows, once it is ready, or the broker has such a subscription
    set -m; eval "$2" >$logs/$1 2>&1 </dev/null & jobs+=($!); set +m
    case "$2" in *serve*) await $1 "is not ready" grep -q " ready: " $logs/$1 ;; esac
    if [[ $3 ]]; then await $1 "does not subscribe" subscribed "$3"; fi
}

subscribed() { shardbroker ctl topics list | grep -F -- "$1"; }
"""


def test_every_page_with_examples_is_walked() -> None:
    """And what is not run says why, for one of the reasons; there are few of them."""
    reasons: dict[str, str] = {}
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for example, mark in with_reasons(page):
            if mark is None:
                assert name in WALK, f"{name}:{example.line}: an example, and the page is not in WALK"
            else:
                reasons[f"{name}:{mark.line}"] = mark.value
    for place, value in reasons.items():
        reason, _, named = value.partition(": ")
        assert reason in REASONS, f"{place}: no such reason: {reason}"
        assert (ROOT / named).exists(), f"{place}: there is no {named}"
    print("\n".join(f"{place}: {reason}" for place, reason in reasons.items()))
    assert len([value for value in reasons.values() if not value.startswith("elsewhere: ")]) <= NOT_RUN_MOST, reasons


def missing() -> Iterator[str]:
    """What the pages take for granted, and what the tests have installed (make test)."""
    programs = ("curl", "java", "make", "mosquitto_pub", "mosquitto_sub", "openssl", "pg_lsclusters", "promtool")
    yield from (name for name in programs if shutil.which(name) is None)
    files = ("/etc/mosquitto/mosquitto.conf", ".venv/bin/shardbroker", ".venv/.spark")
    yield from (file for file in files if not (ROOT / file).exists())


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    if why_not():
        pytest.skip(f"no machine can be booted: {why_not()}")
    if wanting := [*missing()]:
        pytest.skip(f"needs {', '.join(wanting)}")
    with Machine() as booted:
        # As `make install` and `make spark` leave it; only what the pages make is made anew.
        booted.run("touch", str(ROOT / ".venv/.compiled"))
        booted.run("touch", str(ROOT / ".venv/.installed"))
        booted.run("touch", str(ROOT / ".venv/.spark"))
        booted.run("sh", "-c", f"mkdir /run/spark && printf '{SPARK}' >/run/spark/spark-defaults.conf")
        booted.run("systemctl", "set-environment", *SPARK_ENVIRONMENT)
        yield booted


@pytest.fixture(scope="module")
def walked() -> set[str]:
    """Pages that have worked."""
    return set()


@pytest.mark.timeout(PAGE_S + 120)
@pytest.mark.parametrize("name", WALK)
def test_what_a_page_says_works(machine: Machine, walked: set[str], name: str) -> None:
    if WALK.index(name) > WALK.index(INSTALLATION) and INSTALLATION not in walked:
        pytest.fail(f"there is no service: {INSTALLATION} has not worked")
    # As a unit of its own, so that nothing of it is left.
    unit = ("systemd-run", "--wait", "--pipe", "--collect", f"--property=RuntimeMaxSec={PAGE_S}")
    environment = (f"--setenv={key}={value}" for key, value in PAGE_ENVIRONMENT.items())
    script = "".join(lines_of(ROOT / name)).replace("$", "$$")  # else systemd puts in what it knows of the name
    done = machine.run(*unit, *environment, "bash", "-c", script, check=False, timeout_s=PAGE_S + 60)
    print(done.stdout + done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    walked.add(name)


def lines_of(page: Path) -> Iterator[str]:
    """The page as a script of bash."""
    filled = {"root": shlex.quote(str(ROOT)), "page": page.stem, "page_s": str(PAGE_S), "patience_s": str(PATIENCE_S)}
    yield re.sub(r"\{(root|page|page_s|patience_s)\}", lambda found: filled[found[1]], PRELUDE)
    marks: dict[str, str] = {}
    examples = dict(with_reasons(page))
    for part in parts_of(page):
        if isinstance(part, Example):
            if part in examples and examples[part] is None:
                yield from run(part, marks)
            marks = {}
        elif part.key == "run":
            yield step("step", part.line, part.value)
        elif part.key == "shows":
            yield f"await {part.line} {shlex.quote('nothing shows ' + part.value)} grep -rqF -- {shlex.quote(part.value)} $logs\n"
        elif part.key.isupper():
            yield f"place[{part.key}]=$({part.value}) || fail {part.line} {part.key} /dev/null\n"
        else:
            marks[part.key] = part.value
    yield "finish\n"


def run(example: Example, marks: dict[str, str]) -> Iterator[str]:
    line, kind, text = example.line, example.kind, example.text
    if kind == "sh":
        yield from commands(line, text, marks)
        return
    written, file = f"/run/examples/{line}.{kind}", marks.get("file")
    yield f"cat >{written} <<'END OF EXAMPLE'\n{text}END OF EXAMPLE\n"
    if "check" in marks:
        yield step("step", line, f"{marks['check']} {written}")
    elif kind == "toml":
        if file is not None:
            yield step("step", line, f"python {MERGE} {file} {written}")
        yield step("step", line, f"shardbroker config check --config {file or written}")
    elif kind == "python":
        yield step("endless" if "loop_forever" in text else "step", line, f"python {written}")
    else:
        assert file is not None, f"line {line}: nobody knows how {kind} is run"
        yield step("step", line, f"cp {written} {file}")


def commands(line: int, text: str, marks: dict[str, str]) -> Iterator[str]:
    """One for each line; a line that ends with a backslash goes on in the next."""
    rows, behind = text.splitlines(), f" {marks['with']}" if "with" in marks else ""
    last = max(number for number, row in enumerate(rows) if row.strip())
    whole = ""
    for number, row in enumerate(rows):
        whole += row.removeprefix("$ ")
        if whole.endswith("\\"):
            whole = whole[:-1] + " "
            continue
        if whole.strip():
            whole += behind
            if number == last and ("fails" in marks or "says" in marks):
                yield step("says", line + number, whole, *([marks["fails"], "fails"] if "fails" in marks else [marks["says"]]))
            else:
                yield step("endless" if ENDLESS.match(whole.removesuffix("&").strip()) else "step", line + number, whole)
        whole = ""


def step(kind: str, line: int, command: str, *more: str) -> str:
    if kind == "endless":
        command = re.sub(r"\s+#.*", "", command).removesuffix("&").strip()
        more = tuple(re.findall(r"mosquitto_sub .*-t '(.*?)'", command))
    return f"{kind} {line} {shlex.join([command, *more])}\n"
