"""Traces, slow subscriptions, metrics of topics, the loudest clients, alarms."""

import asyncio
import json
import time
from contextlib import suppress
from typing import Any

from shardbroker.config.watching import COUNTED_MAX
from shardbroker.control import ControlError
from shardbroker.control.verbs import Params
from shardbroker.control.watch_verbs import Alarms, CountedTopic, CountedTopics, Loudest, OneTrace, TraceRead, TraceStart
from shardbroker.management.context import Context, handles
from shardbroker.management.handlers.configuration import everywhere
from shardbroker.management.paging import decode_cursor, encode_cursor
from shardbroker.management.tracing import DEFAULT_LIFE_MS, Trace
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter
from shardbroker.stores.trace_state import OF_RULES

COUNTED = "topic_metrics.topics"
"""Key of the configuration."""
_turn = asyncio.Lock()
"""Serializes changes of the counted topics: each reads the list that it changes."""
WINDOW_S = 2.2
"""Longest wait for a window of client rates."""
WINDOW_LOOK_S = 0.1
"""Between two checks whether the window has ended."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# --- traces -----------------------------------------------------------------------------------------------------------------------


@handles("trace list")
async def list_traces(context: Context, params: Params) -> dict[str, Any]:
    return {"data": context.traces.rows(_now_ms()), "cursor": None}


@handles("trace start")
async def start_trace(context: Context, params: TraceStart) -> dict[str, Any]:
    now_ms = _now_ms()
    if params.type == "topic":
        _check_filter(context, params.value, "value")
    start_ms = now_ms if params.start_at is None else params.start_at
    trace = Trace(
        params.name, params.type, params.value, params.payload_encode, params.payload_limit, params.formatter, start_ms,
        max(start_ms, now_ms) + DEFAULT_LIFE_MS if params.end_at is None else params.end_at,
    )  # fmt: skip
    context.traces.start(trace, context.configuration.settings.trace.max_traces, now_ms)
    await _tell_flows(context, params.type)
    await context.workers.caught_up()
    return context.traces.row(trace, now_ms)


@handles("trace stop")
async def stop_trace(context: Context, params: OneTrace) -> dict[str, Any]:
    await _tell_flows(context, context.traces.one(params.name).type)
    await context.workers.call_available("trace lost")  # its counts are complete
    return context.traces.row(context.traces.stop(params.name, _now_ms()), _now_ms())


@handles("trace show")
async def show_trace(context: Context, params: OneTrace) -> dict[str, Any]:
    return context.traces.row(context.traces.one(params.name), _now_ms())


@handles("trace read")
async def read_trace(context: Context, params: TraceRead) -> dict[str, Any]:
    return await context.traces.read(params.name, params.position, params.bytes, _now_ms())


@handles("trace delete")
async def delete_trace(context: Context, params: OneTrace) -> dict[str, Any]:
    await context.traces.delete(params.name, _now_ms())
    return {"name": params.name}


@handles("trace clear")
async def clear_traces(context: Context, params: Params) -> dict[str, Any]:
    names = context.traces.names()
    for name in names:
        await context.traces.delete(name, _now_ms())
    return {"names": names}


async def _tell_flows(context: Context, type: str) -> None:
    """Has the processes flows look at the traces of rules, and send what they have counted; they do so each second, too."""
    if type == OF_RULES and any(rule["enable"] for rule in context.rules.all()):
        with suppress(ControlError):  # a process that starts reads them
            await context.rules.flows.follow_traces()


def _check_filter(context: Context, text: str, field: str) -> None:
    try:
        check_topic_filter(text.encode(), context.configuration.settings.mqtt.max_topic_levels)
    except (MqttError, UnicodeError) as error:
        raise ControlError("BAD_REQUEST", f"{field}: {error}") from None


# --- slow subscriptions -----------------------------------------------------------------------------------------------------------


@handles("slow-subs list")
async def list_slow(context: Context, params: Params) -> dict[str, Any]:
    """Returns the slowest deliveries of all workers, the slowest first."""
    rows = [
        {"clientid": client_id.decode(errors="replace"), "topic": topic.decode(errors="replace"), "timespan": lasted_ms,
         "last_update_at": at_ms, "node": context.topology.node_name}
        for found in await context.workers.call_available("slow")
        for client_id, topic, lasted_ms, at_ms in found or ()
    ]  # fmt: skip
    rows.sort(key=lambda row: -row["timespan"])
    return {"data": rows[: context.configuration.settings.slow_subs.top_k_num], "cursor": None}


@handles("slow-subs clear")
async def clear_slow(context: Context, params: Params) -> dict[str, Any]:
    await context.workers.call_all("slow clear")
    return {}


# --- metrics of topics ------------------------------------------------------------------------------------------------------------


@handles("topic-metrics list")
async def list_counted(context: Context, params: Params) -> dict[str, Any]:
    return {"data": await context.topic_metrics.rows(), "cursor": None}


@handles("topic-metrics show")
async def show_counted(context: Context, params: CountedTopic) -> dict[str, Any]:
    for row in await context.topic_metrics.rows():
        if row["topic"] == params.topic:
            return row
    raise _not_counted(params.topic)


@handles("topic-metrics add")
async def add_counted(context: Context, params: CountedTopic) -> dict[str, Any]:
    """Adds a topic as `config set` does."""
    _check_filter(context, params.topic, "topic")
    async with _turn:
        topics = context.configuration.settings.topic_metrics.topics
        if params.topic in topics:
            raise ControlError("ALREADY_EXISTS", f"topic {params.topic!r} is already counted")
        if len(topics) >= COUNTED_MAX:
            raise ControlError("EXCEED_LIMIT", f"{COUNTED}: must have at most {COUNTED_MAX} topics, got {len(topics) + 1}")
        await _set_counted(context, [*topics, params.topic])
    return {"topic": params.topic}


@handles("topic-metrics delete")
async def delete_counted(context: Context, params: CountedTopic) -> dict[str, Any]:
    async with _turn:
        topics = context.configuration.settings.topic_metrics.topics
        if params.topic not in topics:
            raise _not_counted(params.topic)
        await _set_counted(context, [topic for topic in topics if topic != params.topic])
    return {"topic": params.topic}


@handles("topic-metrics reset")
async def reset_counted(context: Context, params: CountedTopics) -> dict[str, Any]:
    await context.topic_metrics.rows()  # includes what workers have counted until now
    names = context.configuration.settings.topic_metrics.topics if params.topic is None else [params.topic]
    for name in names:
        if not context.topic_metrics.reset(name):
            raise _not_counted(name)
    return {"topics": names}


async def _set_counted(context: Context, topics: list[str]) -> None:
    """Sets the counted topics. Raises ControlError if another source has precedence; nothing changes then."""
    done = await context.configuration.set(COUNTED, json.dumps(topics, ensure_ascii=False))
    if "shadowed_by" in done:
        await context.configuration.reset(COUNTED)
        raise ControlError("NOT_AVAILABLE", f"{COUNTED} is set by {done['shadowed_by']}, which takes precedence over `config set`")
    await everywhere(context, done)


def _not_counted(topic: str) -> ControlError:
    return ControlError("NOT_FOUND", f"topic {topic!r} is not counted")


# --- the loudest clients ----------------------------------------------------------------------------------------------------------


@handles("clients loudest")
async def loudest(context: Context, params: Loudest) -> dict[str, Any]:
    """Workers count only while this is polled. The first call waits for the end of the first window."""
    deadline = time.monotonic() + WINDOW_S
    while True:
        found = await context.workers.call_available("loudest", most=params.limit)
        if None not in found or time.monotonic() > deadline:
            break
        await asyncio.sleep(WINDOW_LOOK_S)
    rows = []
    for worker, answer in enumerate(found):
        if answer is None:
            continue
        span_s = max(answer["lasted_ms"], 1) / 1000
        for client_id, *counts in answer["rows"]:
            rates = [round(count / span_s, 1) for count in counts]
            names = ("messages_in", "bytes_in", "messages_out", "bytes_out")
            rows.append({"clientid": client_id.decode(errors="replace"), "worker": worker, **dict(zip(names, rates, strict=True))})
    rows.sort(key=lambda row: (-row["messages_in"] - row["messages_out"], -row["bytes_in"] - row["bytes_out"], row["clientid"]))
    return {"data": rows[: params.limit], "cursor": None, "left_out": sum(one["left_out"] for one in found if one)}


# --- alarms -----------------------------------------------------------------------------------------------------------------------


@handles("alarms list")
async def list_alarms(context: Context, params: Alarms) -> dict[str, Any]:
    rows = context.alarms.rows(params.activated, _now_ms())
    start = decode_cursor(params.cursor, int)[0] if params.cursor else 0
    end = start + params.limit
    return {"data": rows[start:end], "cursor": encode_cursor(end) if end < len(rows) else None}


@handles("alarms clear")
async def clear_alarms(context: Context, params: Params) -> dict[str, Any]:
    return {"cleared": context.alarms.clear()}
