"""The user properties of a trace context, as the broker reads and writes them, beside the library of OpenTelemetry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shardbroker.worker.observers.trace_context import parse_context, renewed
from tests.harness.wire import prop

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALID = f"00-{TRACE}-{PARENT}-01"
SPAN = bytes.fromhex("00f067aa0ba902b7")


def user(*pairs: tuple[str, str]) -> bytes:
    return b"".join(prop("user_property", pair) for pair in pairs)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        (VALID, 1),
        (f"00-{TRACE}-{PARENT}-00", 0),
        (f"00-{TRACE}-{PARENT}-03", 3),
        (f"00-{TRACE}-{PARENT}-ff", 3),  # flags that are not known yet are left out
        (f"01-{TRACE}-{PARENT}-01", 1),
        (f"cc-{TRACE}-{PARENT}-01-what the future will be like", 1),
        (f"00-{TRACE}-{PARENT}-01-", None),
        (f"00-{TRACE}-{PARENT}-01x", None),
        (f"cc-{TRACE}-{PARENT}-01x", None),
        (f"ff-{TRACE}-{PARENT}-01", None),
        (f"0-{TRACE}-{PARENT}-01", None),
        (f"00-{'0' * 32}-{PARENT}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (VALID.upper(), None),
        (f"00-{TRACE[:-1]}g-{PARENT}-01", None),
        (f"00-{TRACE[:-1]}-{PARENT}-001", None),
        (f"00-{TRACE}_{PARENT}-01", None),
        (f"00-{TRACE}-{PARENT}-0 ", None),
        (f" {VALID}", None),
        (VALID[:-1], None),
        ("", None),
        ("\u00e9" * 28, None),
        ("0" * 65535, None),
    ],
)
def test_a_traceparent_is_read_strictly(text: str, flags: int | None) -> None:
    found = parse_context(user(("a", "b"), ("traceparent", text)))
    assert found == (None if flags is None else (bytes.fromhex(TRACE), bytes.fromhex(PARENT), flags, b""))


def test_names_are_those_of_the_norm() -> None:
    for name in ("Traceparent", "traceparent ", "traceparen", "", "trace-parent"):
        assert parse_context(user((name, VALID))) is None
    assert parse_context(user(("traceparent", VALID), ("a", ""), ("traceparent", VALID))) is None
    assert parse_context(prop("content_type", "traceparent") + prop("correlation_data", VALID)) is None


def test_it_is_found_among_all_properties() -> None:
    others = [("payload_format_indicator", 1), ("content_type", "text"), ("response_topic", "a/b"), ("correlation_data", b"\x26\0"),
              ("subscription_identifier", 300)]  # fmt: skip
    context = user(("traceparent", VALID), ("tracestate", "a=1"), ("tracestate", "b=2"))
    found = parse_context(b"".join(prop(name, value) for name, value in others) + context)
    assert found is not None and found[3] == b"a=1"
    assert parse_context(user(("x", "y" * 4000), ("traceparent", VALID))) is not None
    assert parse_context(user(("x", "y" * 4100), ("traceparent", VALID))) is None  # the search ends
    for size, state in ((512, 512), (513, 0)):
        found = parse_context(user(("traceparent", VALID), ("tracestate", "a=" + "b" * (size - 2))))
        assert found is not None and len(found[3]) == state


def test_another_parent_leaves_the_rest_as_it_was() -> None:
    pairs = [("a", "1"), ("traceparent", VALID), ("tracestate", "x=1"), ("a", "2")]
    want = [(name, f"00-{TRACE}-{SPAN.hex()}-01" if name == "traceparent" else value) for name, value in pairs]
    around = prop("content_type", "text"), prop("correlation_data", b"\0" * 300)
    assert renewed(around[0] + user(*pairs) + around[1], SPAN) == around[0] + user(*want) + around[1]
    later = [(name, f"cc-{TRACE}-{PARENT}-01-more" if name == "traceparent" else value) for name, value in pairs]
    assert renewed(around[0] + user(*later) + around[1], SPAN) == around[0] + user(*want) + around[1]


@given(st.text("0123456789abcdefABCDEFg- \u00e9\n", max_size=70) | st.builds(
    lambda at, what: VALID[:at] + what + VALID[at + len(what):], st.integers(0, 55), st.text("0f-gF \n", max_size=3)))  # fmt: skip
def test_what_is_valid_is_valid_for_the_library(text: str) -> None:
    """It is no stricter, but for the end of a version 00, spaces around it, and digits in upper case."""
    found = parse_context(user(("traceparent", text)))
    context = get_current_span(TraceContextTextMapPropagator().extract({"traceparent": text})).get_span_context()
    if found is not None:
        assert (context.trace_id, context.span_id) == tuple(int.from_bytes(one, "big") for one in found[:2])
        assert context.trace_flags & 3 == found[2]
    elif context.is_valid:
        assert text != text.strip() or text != text.lower() or len(text) != 55


@given(st.binary(max_size=200))
def test_bytes_that_are_no_properties_do_no_harm(data: bytes) -> None:
    parse_context(data)
    for cut in range(0, 80, 7):
        parse_context((user(("traceparent", VALID), ("tracestate", "a=1")) + data)[:cut])
