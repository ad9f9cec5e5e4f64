"""Files written by an administrator: rules and passwords."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from shardbroker.access.acl_conf import parse_acl_conf
from shardbroker.access.rules import Rule, RuleError, rule_of

__all__ = ["FileError", "PasswordLine", "read_passwords", "read_rules"]

LARGEST_BYTES = 64 << 20
"""Size limit of such a file, bytes: a larger one is a mistake."""


class FileError(Exception):
    """A file that cannot be used: path, line and reason."""


@dataclass(frozen=True, slots=True)
class PasswordLine:
    """A user in a password file."""

    hash: str
    salt: str = ""
    is_superuser: bool = False


def read_rules(path: Path) -> list[Rule]:
    """Returns the rules of an acl.conf of EMQX, or of a file `*.toml`.

    In TOML they are tables `[[rules]]` with permission, who, action, qos, retain, topics. Raises FileError.
    """
    text = _read(path)
    try:
        if path.suffix != ".toml":
            return parse_acl_conf(text)
        plain = tomllib.loads(text)
        if set(plain) - {"rules"} or not isinstance(plain.get("rules", []), list):
            raise RuleError("rules: must be tables [[rules]]")
        rules = []
        for number, one in enumerate(plain.get("rules", []), 1):
            try:
                rules.append(rule_of(one))
            except RuleError as error:
                raise RuleError(f"rule {number}: {error}") from None
        return rules
    except (RuleError, tomllib.TOMLDecodeError) as error:
        raise FileError(f"rules in {path}: {error}") from None


def read_passwords(path: Path) -> dict[str, PasswordLine]:
    """Returns users by name: `name:hash[:salt[:superuser]]`, `#` begins a comment. Raises FileError."""
    users = {}
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, *fields = line.rstrip().split(":")
        if not name or not 1 <= len(fields) <= 3 or not fields[0]:
            raise FileError(f"passwords in {path}: line {number}: must be name:hash[:salt[:superuser]]")
        flag = fields[2].lower() if len(fields) == 3 else ""
        if flag not in ("", "superuser", "true", "1", "false", "0"):
            raise FileError(f"passwords in {path}: line {number}: superuser: must be true or false")
        users[name] = PasswordLine(fields[0], fields[1] if len(fields) > 1 else "", flag in ("superuser", "true", "1"))
    return users


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise FileError(f"{path}: larger than {LARGEST_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: byte {error.start} is not UTF-8") from None
