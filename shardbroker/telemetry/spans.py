"""Spans of messages as those of the library of OpenTelemetry."""

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

__all__ = ["Spans"]

HEAD = Struct("=4B4H I 2Q 16s 8s 8s 2Q")
"""SpanHead of worker/observers/spans.pxd."""
PROCESS = 1
DUP, RETAIN = 1, 2
NAMES = {1: "process_message", 2: "send_published_message"}
"""Names of EMQX."""
OPERATIONS = {1: "process", 2: "send"}
"""`messaging.operation.type` and `.name` of the semantic conventions."""
KINDS = {1: SpanKind.CONSUMER, 2: SpanKind.PRODUCER}
NO_PARENT = bytes(8)


class Spans:
    """Makes spans of what workers have written. attributes: those of the resource."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        self._resource = Resource(dict(attributes))
        self._scope = InstrumentationScope("shardbroker", attributes.get("service.version"))

    def read(self, texts: Iterable[bytes]) -> list[ReadableSpan]:
        """Returns all spans. texts: of each worker. Raises ValueError."""
        return [span for text in texts for span in self._spans(text)]

    def _spans(self, text: bytes) -> Iterator[ReadableSpan]:
        at = 0
        while at < len(text):
            if len(text) - at < HEAD.size:
                raise ValueError("span ends too early")
            head = HEAD.unpack_from(text, at)
            sizes, at = head[4:7], at + HEAD.size
            parts = []
            for size in sizes:
                parts.append(text[at : at + size].decode(errors="ignore"))  # a text may be cut within a character
                at += size
            if at > len(text):
                raise ValueError("span ends too early")
            yield self._span(head, *parts)

    def _span(self, head: tuple[Any, ...], client_id: str, topic: str, state: str) -> ReadableSpan:
        kind, flags, qos, trace_flags, _, _, _, _, payload_size, start_ns, end_ns, trace_id, span_id, parent_id, *id = head
        trace: dict[str, Any] = {
            "trace_id": int.from_bytes(trace_id, "big"),
            "trace_flags": TraceFlags(trace_flags),
            "trace_state": TraceState.from_header([state]) if state else TraceState(),
        }
        parent = None
        if parent_id != NO_PARENT:
            parent = SpanContext(span_id=int.from_bytes(parent_id, "big"), is_remote=kind == PROCESS, **trace)
        return ReadableSpan(
            NAMES[kind],
            SpanContext(span_id=int.from_bytes(span_id, "big"), is_remote=False, **trace),
            parent,
            self._resource,
            {
                "messaging.system": "mqtt",
                "messaging.operation.name": OPERATIONS[kind],
                "messaging.operation.type": OPERATIONS[kind],
                "messaging.destination.name": topic,
                "messaging.client.id": client_id,
                "messaging.client_id": client_id,  # EMQX
                "messaging.message.id": f"{id[0]:016X}{id[1]:016X}",
                "messaging.message.body.size": payload_size,
                "messaging.mqtt.qos": qos,
                "messaging.mqtt.retain": bool(flags & RETAIN),
                "messaging.mqtt.dup": bool(flags & DUP),
            },
            kind=KINDS[kind],
            start_time=start_ns,
            end_time=end_ns,
            instrumentation_scope=self._scope,
        )
