"""`shardbroker ctl rules test`: evaluates rules over one message or event, cases of a file, or what journals have."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from shardbroker.journal import JournalError

__all__ = ["test"]

LINE_MAX = 16 * 1024 * 1024
"""Most characters of a line of cases: a rule, and a message of the largest size that configurations use."""


@click.command("test")
@click.argument("sql", required=False)
@click.option("--topic", default="t/a", show_default=True, help="Topic of the message.")
@click.option("--payload", help="Payload of the message.")
@click.option("--event", metavar="NAME", help="Event, such as connected or message.delivered; FROM names it, too.")
@click.option("--context", metavar="JSON", help="Further columns, as a JSON object.")
@click.option("--past", metavar="TIME", help="Over what journals have since then: a UTC time, or an age such as 15m, 2h, 7d.")
@click.option("--offline", is_flag=True, help="Without a broker, as `test` always works so far.")
@click.option("--file", "cases", type=click.Path(path_type=Path, dir_okay=False), help="Cases, one JSON object a line.")
@click.option("--json", "json_here", is_flag=True, help="JSON on one line, for programs.")
@click.pass_context
def test(
    click_context: click.Context,
    /,
    sql: str | None,
    topic: str,
    payload: str | None,
    event: str | None,
    cases: Path | None,
    past: str | None,
    json_here: bool,
    offline: bool,
    **given: str | None,
) -> int:
    """Evaluate the rule SQL over one message or event, without a broker.

    Columns that are not given have example values. With --file, each line is an object with id, sql and context; the answers have
    id and either ok or error, which is parse, nomatch or eval. Exit code 1: the rule gives no result.

    With --past the rule is evaluated over the journals of the broker, which may be stopped; actions are not carried out. Each
    result is a line.
    """
    if (sql is None) == (cases is None):
        raise click.UsageError("must be called with SQL or with --file")
    if cases is not None:
        for line in answers(cases):
            print(line)
        return 0
    if past is not None:
        return over_the_past(sql or "", past, click_context.obj.here())
    columns: dict[str, Any] = {"topic": topic} if event is None else {"topic": topic, "event": event_name(event)}
    if payload is not None:
        columns["payload"] = payload
    columns.update(columns_of(given["context"]))
    from shardbroker.rules.encoding import encoded
    from shardbroker.rules.tester import run_rule

    tested = run_rule(sql or "", columns)
    if tested.error:
        print(f"{tested.error}: {tested.detail}", file=sys.stderr)
        return 1
    compact = json_here or (click_context.obj is not None and click_context.obj.as_json)
    print(json.dumps(encoded(tested.result), ensure_ascii=False, indent=None if compact else 2))
    return 0


def over_the_past(sql: str, past: str, data_dir: Path) -> int:
    """Prints a line for each result. Returns the exit code. Raises ConfigError."""
    from shardbroker.cli.journal import moment
    from shardbroker.flows.past import Past
    from shardbroker.rules.encoding import encoded
    from shardbroker.rules.errors import SqlError

    since_us, count = moment("--past", past), 0
    try:
        rule = Past(sql)
        for seen in rule.results(data_dir / "journal", since_us):
            count += not seen.error
            time = datetime.fromtimestamp(seen.time_us / 1e6, UTC).isoformat(timespec="milliseconds")
            of = {"topic": seen.columns["topic"]} if "topic" in seen.columns else {"event": seen.columns["event"]}
            found = {"error": seen.error} if seen.error else {"result": encoded(seen.result)}
            print(json.dumps({"time": time, **of, **found}, ensure_ascii=False))
    except SqlError as error:
        print(f"parse: {error}", file=sys.stderr)
        return 1
    except (JournalError, OSError) as error:
        print(f"journals not read: {error}", file=sys.stderr)
        return 1
    print(f"read: {rule.read}, matched: {rule.matched}, results: {count}, failed: {rule.failed}", file=sys.stderr)
    return 0 if count else 1


def event_name(given: str) -> str:
    """Returns the name of an event, for its last part as well. Raises click.UsageError."""
    from shardbroker.rules.events import EVENTS

    names = [one.name for one in EVENTS]
    found = [name for name in names if given in (name, name.partition(".")[2])]
    if not found:
        raise click.UsageError(f"--event: must be one of {', '.join(names)}, got {given}")
    return found[0]


def columns_of(text: str | None) -> dict[str, Any]:
    """Returns the columns in a JSON object. Raises click.UsageError."""
    from shardbroker.rules.encoding import decoded

    try:
        columns = decoded(json.loads(text)) if text else {}
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--context: must be a JSON object, got {error}") from None
    if not isinstance(columns, dict):
        raise click.UsageError("--context: must be a JSON object")
    return columns


def answers(cases: Path) -> Iterator[str]:
    """Yields the answer to each line of a file of cases. Raises click.UsageError."""
    try:
        with cases.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield json.dumps(answer(line, f"{cases}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{cases}: {error}") from None


def answer(line: str, place: str) -> dict[str, Any]:
    """Returns the answer to one case. Raises click.UsageError for a line of another form."""
    from shardbroker.rules.encoding import decoded, encoded
    from shardbroker.rules.tester import run_rule

    try:
        if len(line) > LINE_MAX:
            raise ValueError(f"must be at most {LINE_MAX} characters")
        case = json.loads(line)
        sql, context = case["sql"], decoded(case.get("context", {}))
        if not isinstance(sql, str) or not isinstance(context, dict):
            raise ValueError("must have the text sql and the object context")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise click.UsageError(f"{place}: must be an object with id, sql and context, got {error}") from None
    tested = run_rule(sql, context)
    if tested.error:
        return {"id": case.get("id"), "error": tested.error, "detail": tested.detail}
    return {"id": case.get("id"), "ok": encoded(tested.result)}
