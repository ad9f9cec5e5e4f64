"""Completion of `shardbroker` in a shell: verbs, options and configuration keys, read from the parsers that run the commands."""

import argparse

import click
from click.shell_completion import CompletionItem, shell_complete

from shardbroker.config.keys import dotted, known_keys

__all__ = ["complete", "keys_from", "verbs_of"]

SETTING = "KEY=VALUE"
"""Shown as the value of options that begin with a configuration key."""


def complete(instruction: str, variable: str, verbs: dict[str, click.Command]) -> int:
    """Prints completions for a shell, or the script that requests them by this variable; returns the exit code."""
    return shell_complete(click.Group("shardbroker", commands=verbs), {}, "shardbroker", variable, instruction)


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, click.Command]:
    """Returns the verbs of a parser, as click completes them."""
    found: dict[str, click.Command] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {name: _command(name, verb) for name, verb in action.choices.items()}
    return found


def keys_from(incomplete: str) -> list[CompletionItem]:
    """Returns the configuration keys that begin so. A name that is free, such as that of a listener, is `<name>` in them."""
    return [CompletionItem(key) for key in map(dotted, known_keys()) if key.startswith(incomplete)]


def _command(name: str, parser: argparse.ArgumentParser) -> click.Command:
    verbs = verbs_of(parser)
    params = [_parameter(one) for one in parser._actions if one.dest != "help" and not isinstance(one, argparse._SubParsersAction)]
    return click.Group(name, commands=verbs, params=params) if verbs else click.Command(name, params=params)


def _parameter(action: argparse.Action) -> click.Parameter:
    kind = click.Choice([str(one) for one in action.choices]) if action.choices else click.Path()
    if not action.option_strings:
        return click.Argument([action.dest], type=kind, nargs=-1)
    if action.nargs == 0:
        return click.Option(list(action.option_strings), is_flag=True)
    completed = (lambda context, parameter, incomplete: keys_from(incomplete)) if action.metavar == SETTING else None
    return click.Option(list(action.option_strings), type=kind, multiple=True, shell_complete=completed)
