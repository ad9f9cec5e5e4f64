"""mosquitto from Debian, with a configuration of the test."""

import base64
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.broker import free_port
from tests.harness.needed import needed
from tests.servers.processes import account, answers, folder
from tests.servers.service import Service, service

__all__ = ["PASSWORD", "mosquitto_server", "subscriptions"]

PASSWORD = "dbsecret"
LOGGED = "error", "warning", "notice", "information", "subscribe"


@contextmanager
def mosquitto_server(*lines: str, login: str = "", acl: str = "", port: int = 0) -> Iterator[Service]:
    """lines: of the configuration, besides the listener. login: a user name, whose password is PASSWORD. acl: rules of acl_file."""
    program = needed("mosquitto")
    with folder() as where:
        port = port or free_port()
        config = where / "mosquitto.conf"
        text = f"listener {port} 127.0.0.1\npersistence_location {where}/\nallow_anonymous {'false' if login else 'true'}\n"
        text += "".join(f"log_type {one}\n" for one in LOGGED)
        if login:
            passwords = where / "passwords"
            passwords.write_text(f"{login}:{_hashed(PASSWORD)}\n")
            text += f"password_file {passwords}\n"
            _give(str(passwords))
        if acl:
            rules = where / "acl"
            rules.write_text(acl)
            text += f"acl_file {rules}\n"
            _give(str(rules))
        config.write_text(text + "\n".join(lines) + "\n")
        with service([program, "-c", str(config)], port, lambda: answers(port), where) as one:
            yield one


def subscriptions(server: Service, filter: str) -> int:
    """How often clients have subscribed to a filter since the server was started."""
    return sum(line.endswith(f" {filter}") for line in server.log().splitlines())


def _hashed(password: str) -> str:
    """Returns an entry of mosquitto_passwd: PBKDF2 of SHA-512 (`$7$`)."""
    salt, rounds = b"0123456789ab", 101
    found = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, rounds)
    return f"$7${rounds}${base64.b64encode(salt).decode()}${base64.b64encode(found).decode()}"


def _give(path: str) -> None:
    if account():
        shutil.chown(path, "nobody")
