"""Options of `shardbroker perf`: arguments of each verb and their allowed values. The limits are those of `plan`."""

import argparse
import ipaddress
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from perf.plan import CHOICES, LIMITS, PAYLOAD_MIN, PLACEMENTS, TEMPLATE_NAMES, WINDOW_MAX, Plan, PlanError
from shardbroker.config.parser import Parser as CommandParser

__all__ = ["LOADS", "Parser", "add_load", "add_scenario", "choice", "number", "plan_from"]

LOADS = ("conn", "sub", "pub")
"""Verbs for any number of clients of one kind."""
INTERVAL_MS_MAX = 3_600_000


class Parser(CommandParser):
    """A parser in which -h is the host, as in emqtt-bench. Options are not abbreviated, so that a new one breaks no script."""

    def __init__(self, prog: str | None = None, description: str | None = None) -> None:
        super().__init__(prog=prog, description=description, add_help=False, allow_abbrev=False)
        self.add_argument("--help", action="help", help="show this help and exit")


def number(name: str, whole: bool = True, low: float | None = None, high: float | None = None) -> Callable[[str], float]:
    """Returns a converter for argparse whose errors have the allowed values. `name`: one of plan.LIMITS unless limits are given."""
    least, most = LIMITS.get(name, (0, 0))
    least, most = least if low is None else low, most if high is None else high

    def convert(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            kind = "a whole number" if whole else "a number"
            raise argparse.ArgumentTypeError(f"{text}: allowed is {kind} from {least:,} to {most:,}")
        return value

    return convert


def choice(name: str) -> Callable[[str], Any]:
    allowed = CHOICES[name]

    def convert(text: str) -> Any:
        if text not in map(str, allowed):
            raise argparse.ArgumentTypeError(f"{text}: allowed is {', '.join(map(str, allowed))}")
        return next(value for value in allowed if str(value) == text)

    return convert


def truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text}: allowed is true, false")
    return text == "true"


def addresses(text: str) -> tuple[str, ...]:
    for address in text.split(","):
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{address}: allowed are IP addresses of this machine with commas between") from None
    return tuple(text.split(","))


def message(text: str) -> bytes:
    """Returns the text itself, or after template:// the content of that file."""
    if not text.startswith("template://"):
        return text.encode()
    try:
        return Path(text.removeprefix("template://")).read_bytes()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}; allowed is a text, or template://FILE") from None


class Broker(argparse.Action):
    """--host: a name or an address, or a URL, which defines port and transport as well."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        if "://" in values:
            from shardbroker.config.listeners import parse_address, split_url  # the whole configuration, which a load does without

            try:
                kind, address = split_url(values)
                values, namespace.port = parse_address(address)
            except ValueError:
                allowed = "HOST, or tcp://HOST:PORT (mqtt:// is the same), ssl:// (mqtts://), ws:// or wss:// likewise"
                raise argparse.ArgumentError(self, f"must be {allowed}, got {values}") from None
            namespace.tls, namespace.ws = kind in ("ssl", "wss"), kind in ("ws", "wss")
        namespace.host = values


def add_connection(verb: argparse.ArgumentParser, default: Plan) -> None:
    """Adds the options of every verb that connects to a broker."""
    text = "a URL such as mqtts://HOST:PORT sets --tls and -p too"
    verb.add_argument("-h", "--host", action=Broker, default="127.0.0.1", help=text)
    verb.add_argument("-p", "--port", type=number("", low=1, high=65_535), default=1883)
    verb.add_argument("-V", "--version", type=choice("version"), help=f"3 is MQTT 3.1, 4 is 3.1.1, 5 is 5.0; {default.version}")
    real = number("connect_rate", whole=False)
    verb.add_argument("-R", "--connrate", dest="connect_rate", metavar="N", type=real, help="connections a second; 0: no limit")
    interval = number("", low=0, high=INTERVAL_MS_MAX, whole=False)
    verb.add_argument("-i", "--interval", metavar="MS", type=interval, help="interval between two connections, unless -R is given")
    verb.add_argument("-u", "--username", help="may contain %%i, %%c")
    verb.add_argument("-P", "--password")
    verb.add_argument("-k", "--keepalive", type=number("keepalive"), help=f"seconds, 0: none; {default.keepalive}")
    verb.add_argument("-C", "--clean", type=truth, metavar="true|false", help="clean session, or clean start of 5.0; true")
    verb.add_argument("-x", "--session-expiry", type=number("session_expiry"), help="seconds, MQTT 5.0")
    verb.add_argument("-n", "--startnumber", dest="start_number", metavar="N", type=number("start_number"), help="first %%i; 0")
    verb.add_argument("--ifaddr", type=addresses, metavar="A,B,...", help="local addresses to connect from, in turn")
    verb.add_argument("--tls", action="store_true", help="connect over TLS")
    verb.add_argument("--ws", action="store_true", help="connect over WebSocket, path /mqtt; with --tls over TLS as well")
    verb.add_argument("--cafile", metavar="FILE", help="PEM: authorities that verify the broker's certificate; default: none")
    verb.add_argument("--processes", type=number("processes"), help="load processes that share the clients; 1")
    pid = number("", low=1, high=1 << 22)
    verb.add_argument("--broker-pid", metavar="PID", type=pid, help="root of the broker's process tree, to measure it")
    verb.add_argument("--core", type=number("", low=0, high=4095), help="run on this core")
    verb.add_argument("--json", action="store_true", help="one line of JSON instead of a table")
    verb.add_argument("--out", type=Path, metavar="FILE", help="append a line of JSON to this file, for `report`")
    verb.add_argument("--quiet", action="store_true", help="do not show progress")


def add_load(verb: argparse.ArgumentParser, name: str, default: Plan) -> None:
    """Adds the options of conn, sub, pub: any number of clients, until Ctrl-C or a limit."""
    places = {"conn": "others", "sub": "subscribers", "pub": "publishers"}
    add_connection(verb, default)
    count = number(places[name], low=1)
    verb.add_argument("-c", "--count", dest=places[name], metavar="N", type=count, default=200, help="clients; 200")
    text = "of each client" if name == "pub" else "filter of each client, may be given several times"
    text = f"{text}; {TEMPLATE_NAMES}".replace("%", "%%")
    verb.add_argument("-t", "--topic", action="store" if name == "pub" else "append", required=name != "conn", help=text)
    verb.add_argument("--client-id", metavar="TEMPLATE", help="client ids, with %%i in the template")
    verb.add_argument("-q", "--qos", type=choice("qos"), help=f"{default.qos}")
    verb.add_argument("--seconds", type=number("seconds", whole=False), help="end after this time; 0: at Ctrl-C")
    if name == "pub":
        verb.add_argument("-I", "--interval-of-msg", type=number("", low=0, high=INTERVAL_MS_MAX, whole=False), default=1000.0,
                          help="ms between two messages of a client, 0: as fast as possible; 1000")  # fmt: skip
        verb.add_argument("--rate", type=number("rate", whole=False), help="messages a second of all clients, instead of -I")
        verb.add_argument("-L", "--limit", dest="messages", metavar="N", type=number("messages"), help="messages; 0: no limit")
        text = f"bytes; {default.payload}; payloads of {PAYLOAD_MIN} or more are stamped"
        verb.add_argument("-s", "--size", dest="payload", metavar="N", type=number("payload"), help=text)
        verb.add_argument("-m", "--message", type=message, metavar="TEXT|template://FILE", help="payload instead of a stamped one")
        verb.add_argument("-r", "--retain", action="store_true")
        text = f"unacknowledged messages of a client; {default.inflight}"
        verb.add_argument("-F", "--inflight", metavar="N", type=number("inflight"), help=text)


def add_scenario(verb: argparse.ArgumentParser, name: str, default: Plan) -> None:
    add_connection(verb, default)
    verb.add_argument("-q", "--qos", type=choice("qos"), help=f"of messages and subscriptions; {default.qos}")
    text = f"no publish or connect after this time; {default.seconds:g}"
    verb.add_argument("--seconds", metavar="S", type=number("seconds", whole=False), help=text)

    def add(option: str, dest: str, text: str, low: float | None = None, whole: bool = True) -> None:
        value = getattr(default, dest)
        shown = f"{text}; {value:g}".lstrip("; ")
        verb.add_argument(option, dest=dest, metavar="N", type=number(dest, whole, low), help=shown)

    if name in ("reconnect", "takeover"):
        add("--clients", "others", "at a time", 1)
        add("--connections", "messages", "in all", 1)
        return
    if name in ("p2p", "churn"):
        add("--pairs", "subscribers", "a publisher and a subscriber each", 1)
    else:
        add("--subscribers", "subscribers", "", 1)
    if name in ("wildcard", "fanin"):
        add("--publishers", "publishers", "", 1)
    if name == "churn":
        add("--changers", "others", "clients that subscribe and unsubscribe", 1)
        add("--change-rate", "change_rate", "changes a second, 0: as fast as possible", whole=False)
        add("--change-slice", "change_slice", "ms; in every other slice changes pause, and both kinds are compared")
    elif name != "retained":
        add("--others", "others", "clients subscribed to topics without messages")
    add("--size", "payload", "bytes", PAYLOAD_MIN)
    if name == "retained":
        add("--topics", "topics", "with a retained message each", 1)
        add("--window", "window", "subscribers served at a time")
        return
    if name == "wildcard":
        add("--topics", "topics", "of each publisher")
    add("--messages", "messages", "published in all", 1)
    add("--window", "window", "undelivered messages per publisher")
    add("--inflight", "inflight", "unacknowledged messages per publisher")
    text = "all clients on the broker's first worker, or subscribers on its other ones (shardbroker only)"
    verb.add_argument("--placement", metavar="|".join(PLACEMENTS), type=choice("placement"), help=f"{text}; {default.placement}")
    add("--workers", "workers", "workers of the broker, for --placement", 1)
    add("--rate", "rate", "messages a second in all; 0: as fast as the window allows", whole=False)


def plan_from(arguments: argparse.Namespace, defaults: dict[str, Any], names: Iterable[str]) -> Plan:
    """Returns the plan of a verb's options. Raises PlanError."""
    values = dict(defaults) | {"scenario": arguments.scenario}
    values |= {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    if isinstance(topic := values.get("topic"), str | list):
        values["topic"] = (topic,) if isinstance(topic, str) else tuple(topic)
    values["transport"] = {(False, False): "tcp", (True, False): "ssl", (False, True): "ws", (True, True): "wss"}[
        arguments.tls, arguments.ws
    ]
    if arguments.interval is not None and arguments.connect_rate is None:
        values["connect_rate"] = 1000 / arguments.interval if arguments.interval else 0
    if arguments.scenario in ("p2p", "churn"):
        values["publishers"] = values.get("subscribers", Plan.subscribers)
    if arguments.scenario == "pub" and arguments.rate is None:
        values["rate"] = values["publishers"] * 1000 / arguments.interval_of_msg if arguments.interval_of_msg else 0
    if values.get("rate", 0) > LIMITS["rate"][1]:
        allowed = f"allowed is at most {LIMITS['rate'][1]:,}; take fewer clients or a longer interval"
        raise PlanError(f"rate = {values['rate']:,.0f}: {allowed}")
    if values.get("rate") and arguments.scenario not in LOADS and arguments.window is None:
        values["window"] = WINDOW_MAX  # with a rate, the window must not limit the publishers
    if values.get("version", Plan.version) != 5 and arguments.session_expiry is None:
        values.pop("session_expiry", None)
    return Plan(**values)
