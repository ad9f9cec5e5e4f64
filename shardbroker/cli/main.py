"""The command `shardbroker`: serve, config, ctl, top, journal, perf.

Exit codes: 0 success, 1 cannot run, 2 invalid configuration or usage.
"""

import argparse
import faulthandler
import os
import re
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardbroker import __version__
from shardbroker.cli.listen import LISTEN_HELP, parse_listen
from shardbroker.config import ConfigError, Loaded, load, reference, show
from shardbroker.config.parser import Parser

if TYPE_CHECKING:
    from shardbroker.config.foreign import Imported

__all__ = ["main"]

COMPLETE_VARIABLE = "_SHARDBROKER_COMPLETE"
"""Variable set by the shell when it requests completions."""
FORMATS = ("mosquitto", "emqx", "backend", "bridge", "template")
"""Kinds of files of `config import`; the last two are those of EMQ X Enterprise's plugins."""


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns the exit code. `argv` has no program name."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["perf"]:
        from perf.cli import main as perf  # has options of its own

        return perf(argv[1:])
    if COMPLETE_VARIABLE in os.environ:
        return _complete(os.environ[COMPLETE_VARIABLE])
    if argv[:1] == ["export"]:
        from shardbroker.cli.export import main as export

        return export(argv[1:], _add_sources)
    if argv[:1] == ["ctl"]:
        from shardbroker.cli.ctl import main as ctl  # made from the table of verbs; `serve` need not load it

        return ctl(argv[1:])
    if not argv:
        _parser("").print_help()
        return 0
    try:
        if argv[:1] == ["top"]:
            from shardbroker.cli.top import main as top

            return top(argv[1:])
        arguments = _parser(argv[0]).parse_args(argv)
        return int(arguments.run(arguments))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # such as `| head`: the reader has closed the pipe, and a flush at exit would fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser(asked: str) -> argparse.ArgumentParser:
    """Returns a parser with the parts that the requested verb needs: `serve` does not load the installer."""
    parser = Parser(prog="shardbroker", description="A sharded MQTT 3.1, 3.1.1 and 5.0 broker.")
    parser.add_argument("--version", action="version", version=f"shardbroker {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the broker in the foreground")
    _add_sources(serve)
    serve.set_defaults(run=_serve)
    if asked == "serve":
        return parser
    from shardbroker.cli.install import add_install
    from shardbroker.cli.journal import add_journal
    from shardbroker.cli.tune import add_tune

    config = commands.add_parser("config", help="check or show the configuration")
    verbs = config.add_subparsers(required=True, metavar="VERB")
    for name, run, text in (
        ("check", _check, "check the configuration"),
        ("show", _show, "print the effective values and the source of each"),
    ):
        verb = verbs.add_parser(name, help=text)
        _add_sources(verb)
        verb.set_defaults(run=run)
    verb = verbs.add_parser("import", help="convert a mosquitto.conf, or an emqx.conf and files of its plugins, to TOML")
    verb.add_argument("file", type=Path, metavar="FILE", nargs="+", help="emqx_backend_*.conf and *.tmpl of EMQ X Enterprise, too")
    verb.add_argument("--format", choices=("mosquitto", "emqx"), help="default: derived from the name of the file")
    verb.add_argument("--rules", type=Path, metavar="NEW", help="new file of rules (.toml), converted from mosquitto's acl_file")
    verb.add_argument("--cookie", type=Path, metavar="NEW", help="new file, mode 0600, for the cookie of EMQX's nodes")
    verb.set_defaults(run=_import)
    add_journal(commands, _add_sources)
    add_install(commands, main)
    add_tune(commands)
    back = commands.add_parser("restore", help="restore a file of `ctl backup` to a new data directory")
    back.add_argument("file", type=Path, metavar="FILE")
    back.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="a directory that is empty or does not exist")
    back.set_defaults(run=_restore)
    commands.add_parser("ctl", help="inspect and change a running broker: ctl --help")
    commands.add_parser("top", help="activity of each worker, live in a terminal: top --help")
    commands.add_parser("perf", help="load-test a broker: perf --help")
    commands.add_parser("export", help="journals to Parquet or Delta with Spark, exactly once: export --help")
    verbs.add_parser("reference", help="print docs/configuration.md").set_defaults(run=_reference)
    return parser


def _complete(instruction: str) -> int:
    import click

    from perf.cli import build_parser
    from shardbroker.cli.completion import complete, verbs_of
    from shardbroker.cli.ctl import app

    perf, _ = build_parser()
    verbs = verbs_of(_parser(""))
    return complete(instruction, COMPLETE_VARIABLE, verbs | {"ctl": app, "perf": click.Group("perf", commands=verbs_of(perf))})


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(load=_load)
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file")
    parser.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="SCHEME://HOST:PORT",
        help=f"{LISTEN_HELP}: listener instead of all configured ones; may be given several times",
    )
    parser.add_argument("--workers", metavar="N|auto", help="auto: one per usable core")
    parser.add_argument("--acceptors", metavar="N|auto", help="auto: two, or one on a single core")
    parser.add_argument("--data-dir", metavar="DIR", help="data directory, one per broker")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any key of docs/configuration.md")


def _load(arguments: argparse.Namespace) -> Loaded:
    options: dict[str, Any] = {}
    for name in ("workers", "acceptors", "data_dir"):
        value = getattr(arguments, name)
        if value is not None:
            options[f"process.{name}"] = value
    for number, address in enumerate(arguments.listen):
        name = "default" if number == 0 else f"listen-{number + 1}"
        options[f"listeners.{name}.type"], options[f"listeners.{name}.bind"] = parse_listen(address)
    return load(arguments.config, os.environ, arguments.set, options)


def _serve(arguments: argparse.Namespace) -> int:
    from shardbroker.preflight import usable
    from shardbroker.supervisor import StartError, Supervisor
    from shardbroker.supervisor.upgrade import CONTINUES

    with suppress(OSError, RuntimeError, ValueError):  # without stderr a crash has no trace
        faulthandler.enable()  # its processes inherit it
    if CONTINUES in os.environ:
        return _continue(arguments, os.environ.pop(CONTINUES))
    try:
        loaded, lines = usable(_load(arguments))
        for line in lines:
            print(f"warning: {line}", file=sys.stderr)
        if loaded.settings.cluster.role == "witness":
            from shardbroker.supervisor.witness import run as run_witness

            return run_witness(loaded.settings)
        return Supervisor(loaded.settings, loaded=loaded).run()
    except StartError as error:
        print(f"shardbroker cannot start: {error}", file=sys.stderr)
        return 1


def _continue(arguments: argparse.Namespace, state: str) -> int:
    """Continues the broker of the program that was in this process before, or answers whether that would work."""
    from shardbroker.supervisor.continuation import check, run

    what, _, memory = state.partition(":")
    return (check if what == "check" else run)(int(memory), partial(_load, arguments))


def _restore(arguments: argparse.Namespace) -> int:
    from shardbroker.deploy import BackupError, restore

    try:
        taken = restore(arguments.file, arguments.data_dir)
    except BackupError as error:
        print(f"shardbroker restore: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.data_dir}: as of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(taken))}")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from shardbroker.preflight import check

    found = check(_load(arguments))
    if found:
        raise ConfigError("\n".join(found))
    print("configuration is valid")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    print(show(_load(arguments)))
    return 0


def _import(arguments: argparse.Namespace) -> int:
    from shardbroker.config.foreign import Imported, rules_toml, to_toml
    from shardbroker.config.foreign_emqx import read_emqx
    from shardbroker.config.foreign_emqx_backends import add_backends
    from shardbroker.config.foreign_emqx_bridge import add_bridges
    from shardbroker.config.foreign_mosquitto import read_mosquitto

    texts: dict[str, list[tuple[Path, str]]] = {kind: [] for kind in FORMATS}
    for file in arguments.file:
        try:
            text = file.read_text(errors="replace")
        except OSError as error:
            raise ConfigError(f"{file}: {error.strerror}") from None
        texts[_format_of(file, text, arguments.format)].append((file, text))
    if len(texts["mosquitto"]) + len(texts["emqx"]) > 1 or (texts["mosquitto"] and len(arguments.file) > 1):
        others = "emqx_backend_*, emqx_bridge_mqtt and templates"
        raise ConfigError(f"files: must be one mosquitto.conf, or one emqx.conf with files of {others}")
    imported = Imported()
    for _file, text in texts["mosquitto"]:
        text = re.sub(r"^include_dir[ ]+(.+)$", _included, text, flags=re.MULTILINE)
        imported = read_mosquitto(text, _readable if arguments.rules is not None else lambda path: None)
    for _file, text in texts["emqx"]:
        imported = read_emqx(text)
    add_backends(imported, [text for _, text in texts["backend"]], [(str(file), text) for file, text in texts["template"]])
    add_bridges(imported, [text for _, text in texts["bridge"]])
    source = ", ".join(map(str, arguments.file))
    if imported.rules is not None:
        from shardbroker.stores.files import replace_file

        if arguments.rules.suffix != ".toml":
            raise ConfigError(f"--rules: must be a file whose name ends with .toml, got {arguments.rules}")
        imported.settings["acl", "file", "path"] = str(arguments.rules.absolute())
        try:
            replace_file(arguments.rules, rules_toml(imported.rules, source).encode())
        except OSError as error:
            raise ConfigError(f"--rules {arguments.rules}: {error.strerror}") from None
    _place_cookie(imported, arguments.cookie)
    print(to_toml(imported, source), end="")
    for remark in imported.remarks:
        print(f"not imported: {remark}", file=sys.stderr)
    return 1 if imported.remarks else 0


def _place_cookie(imported: "Imported", path: Path | None) -> None:
    """Writes the cookie of the imported nodes to a file, never to the output. Raises ConfigError."""
    from shardbroker.config.foreign_emqx_cluster import COOKIE_FILE
    from shardbroker.stores.files import replace_file

    is_node = ("cluster", "enable") in imported.settings
    if path is not None and is_node:
        imported.settings["cluster", "cookie_file"] = str(path.absolute())
    if path is None and imported.cookie is not None:
        imported.remark(f"node.cookie = ******: a secret: repeat this with --cookie FILE, or write it to {COOKIE_FILE}, mode 0600")
    elif imported.cookie is not None and path is not None:
        try:
            replace_file(path, imported.cookie.encode() + b"\n")
        except OSError as error:
            raise ConfigError(f"--cookie {path}: {error.strerror}") from None
    elif is_node:
        imported.remark(f"node.cookie: has to be in {path or COOKIE_FILE}, mode 0600, the same on every node")


def _format_of(file: Path, text: str, given: str | None) -> str:
    """Returns one of FORMATS. Raises ConfigError if neither the file nor its name shows it."""
    from shardbroker.config.foreign_emqx_backends import BACKEND
    from shardbroker.config.foreign_emqx_bridge import BRIDGE

    if given != "mosquitto" and file.suffix == ".tmpl":
        return "template"
    if given != "mosquitto" and BACKEND.search(text):
        return "backend"
    if given != "mosquitto" and BRIDGE.search(text):
        return "bridge"
    kind = given or next((one for one in ("mosquitto", "emqx") if one in file.name), None)
    if kind is None:
        raise ConfigError(f"{file}: --format: must be mosquitto or emqx")
    return kind


def _included(line: re.Match[str]) -> str:
    """Returns the files of mosquitto's include_dir, in its order. If one is unreadable, returns the line itself, which refuses
    clients in the imported configuration."""
    directory = Path(line[1].strip())
    try:
        return "\n".join(path.read_text(errors="replace") for path in sorted(directory.iterdir()) if path.suffix == ".conf")
    except OSError:
        return line[0]


def _readable(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None


def _reference(_arguments: argparse.Namespace) -> int:
    print(reference(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
