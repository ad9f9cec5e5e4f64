"""Requests of the manager to the process flows, and their answers: CBOR, a message each, in the order of the requests.

    {"id": n, "verb": "load", "generation": G}    reads the definitions     -> {"id": n, "generation": G, "problems": {rule: text}}
    {..., "base": B, "changed": [definition, ...], "removed": [rule, ...], "engine": {...}, "stamp": [...]}
                                                  the same, as what has changed since generation B; `stamp` is that of the file
    {"id": n, "verb": "reset", "rule": id}        sets figures of it to 0   -> {"id": n, "generation": G, "problems": {}}
    {"id": n, "verb": "traces"}                   looks at the traces     -> {"id": n, "generation": G, "problems": {}}
    {"id": n, "verb": "try", "rule": id, "context": {...}, "carry_out": bool}
                                                  flows/trial.py            -> {"id": n, "tried": {...}; null: it is not loaded}
    {"id": n, "verb": "probe", "type": type, "settings": {...}, "action": {...}; null: a connector alone}
                                                  tries it                  -> {"id": n, "error": text}, later than other answers
    {"id": n, "verb": "create_tables", "type": type, "settings": {...}}
                                                  those of a preset that are missing, over a connector -> as for probe
    {..., "source": {...}}                        the same with a source over the connector
    {"id": n, "verb": V, "source": id}            V of SOURCE_VERBS         -> as for load; the problem by its id
    {"id": n, "verb": V, "sink": id}              V of SINK_VERBS           -> as for load; the problem of the action by its id
    {..., "at_us": Unix µs, "earliest" or "latest"}
                                                  the same with sink_rewind: reads from there on

The answer to `load` has the generation in force, which is G or a later one, and the rules that cannot be used: those of
`changed`, or of all if the definitions were read; besides, actions by `type:name`, connectors by `connector type:name`, and sources
by `source type:name`. From then on a message that reaches the journal is seen by all the others.
"""

from contextlib import suppress
from typing import Any

import cbor2

__all__ = [
    "COUNTS", "MESSAGE_MAX", "PROBLEMS_FILE", "SINK_VERBS", "SOURCE_VERBS", "decode", "encode_answer", "encode_load",
    "encode_probe", "encode_probed", "encode_reset", "encode_sink", "encode_traces", "encode_tried", "encode_try",
]  # fmt: skip

COUNTS = (
    "matched", "passed", "failed", "failed.exception", "failed.no_result", "actions.total", "actions.success", "actions.failed",
    "actions.failed.out_of_service", "actions.failed.unknown", "actions.discarded",
)  # fmt: skip
"""Counts of a rule, with the names of EMQX, in the files of figures."""

SINK_VERBS = ("sink_start", "sink_stop", "sink_restart", "sink_rewind", "sink_reset")
"""Orders for an action: start and stop write no more and no less than is there, reset sets figures to 0."""
SOURCE_VERBS = ("source_start", "source_stop", "source_restart", "source_reset")
"""Orders for a source, likewise."""
PROBLEMS_FILE = "flows-{}-problems.json"
"""File of the runtime directory, by number of the process: rule -> why it is stopped. It is written when it changes."""
MESSAGE_MAX = 1 << 20
"""Bytes of a message; problems of some thousand rules."""
PROBLEM_MAX = 200
"""Characters of one problem, so that an answer about many rules still fits."""
PROBLEMS_MAX = 1000
"""Problems in an answer."""


def encode_load(number: int, generation: int, change: dict[str, Any] | None = None) -> bytes:
    """Returns the request to load these definitions.

    change: `base`, `changed`, `removed`, `engine`, `stamp`; left out if it is too long, or no CBOR.
    """
    request = {"id": number, "verb": "load", "generation": generation}
    with suppress(ValueError, cbor2.CBOREncodeError):  # texts with unpaired surrogates, which JSON can have
        message = cbor2.dumps({**request, **(change or {})})
        if len(message) <= MESSAGE_MAX:
            return message
    return cbor2.dumps(request)


def encode_reset(number: int, rule: str) -> bytes:
    """Returns the request to set the figures of a rule to 0."""
    return cbor2.dumps({"id": number, "verb": "reset", "rule": rule})


def encode_traces(number: int) -> bytes:
    """Returns the request to look at the active traces of rules."""
    return cbor2.dumps({"id": number, "verb": "traces"})


def encode_try(number: int, rule: str, context: dict[str, Any], carry_out: bool) -> bytes:
    """Returns the request to try a rule over columns."""
    return cbor2.dumps({"id": number, "verb": "try", "rule": rule, "context": context, "carry_out": carry_out})


def encode_probe(number: int, kind: str, settings: dict[str, Any], action: dict[str, Any] | None) -> bytes:
    """Returns the request to try a connector, or an action over it."""
    return cbor2.dumps({"id": number, "verb": "probe", "type": kind, "settings": settings, "action": action})


def encode_probed(number: int, error: str) -> bytes:
    """Returns the answer to it."""
    return cbor2.dumps({"id": number, "error": error[:PROBLEM_MAX]})


def encode_sink(number: int, verb: str, sink: str, at_us: int | str | None = None) -> bytes:
    """Returns an order for an action."""
    return cbor2.dumps({"id": number, "verb": verb, "sink": sink, **({"at_us": at_us} if at_us is not None else {})})


def encode_tried(number: int, tried: dict[str, Any] | None) -> bytes:
    """Returns the answer to a trial; None: the rule is not loaded."""
    try:
        message = cbor2.dumps({"id": number, "tried": tried})
    except (ValueError, cbor2.CBOREncodeError) as error:  # texts with unpaired surrogates
        message = cbor2.dumps({"id": number, "tried": {"error": "eval", "detail": f"result: {error}"}})
    if len(message) <= MESSAGE_MAX:
        return message
    too_long = {"error": "eval", "detail": f"result: must be at most {MESSAGE_MAX} bytes, got {len(message)}"}
    return cbor2.dumps({"id": number, "tried": too_long})


def encode_answer(number: int, generation: int, problems: dict[str, str]) -> bytes:
    """Returns an answer, with as many problems as fit."""
    shown = {rule: problems[rule][:PROBLEM_MAX] for rule in list(problems)[:PROBLEMS_MAX]}
    return cbor2.dumps({"id": number, "generation": generation, "problems": shown})


def decode(message: bytes) -> dict[str, Any]:
    """Returns a request or an answer. Raises ValueError."""
    try:
        values = cbor2.loads(message)
    except (cbor2.CBORDecodeError, RecursionError, OverflowError) as error:
        raise ValueError(f"message: must be CBOR: {error}") from None
    if not isinstance(values, dict) or type(values.get("id")) is not int:
        raise ValueError("message: must be a map with an id")
    return values
