"""The parser of the command: a wrong word gets the one that was probably meant."""

import argparse
import re
from difflib import get_close_matches
from typing import NoReturn

__all__ = ["Parser"]

UNKNOWN_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)", re.DOTALL)
UNKNOWN_OPTION = re.compile(r"unrecognized arguments: (--[^ =]+)")


class Parser(argparse.ArgumentParser):
    """Its parsers of verbs are of the same class."""

    def error(self, message: str) -> NoReturn:
        """Ends with exit code 2, after a line that names the problem, and a verb or an option that is much like the wrong one."""
        choice, option = UNKNOWN_CHOICE.search(message), UNKNOWN_OPTION.search(message)
        meant: list[str] = []
        if choice:
            meant = get_close_matches(choice[1], re.findall(r"[\w-]+", choice[2]), n=1)
        elif option:
            meant = get_close_matches(option[1], self._known_options(), n=1)
        hint = f"did you mean {meant[0]}?" if meant else f"see {self.prog} --help"
        self.exit(2, f"{self.prog}: error: {message} ({hint})\n")

    def _known_options(self) -> list[str]:
        """Returns the options of this parser and of those of its verbs: unknown ones are reported by the outermost."""
        found = [*self._option_string_actions]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in {id(one): one for one in action.choices.values()}.values():
                    found += parser._known_options()
        return found
