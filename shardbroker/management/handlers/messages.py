"""Publishing, and retained messages."""

import base64
import time
from typing import Any

from shardbroker.control import ControlError
from shardbroker.control.verbs import OneTopic, Params, Publish, RetainedList
from shardbroker.management.context import Context, breathe, handles
from shardbroker.management.paging import decode_cursor, encode_cursor
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.spec import PropertyId
from shardbroker.mqtt.topics import check_topic_filter, check_topic_name
from shardbroker.stores.retained import RetainedMessage

PAGE_BYTES = 8 << 20
"""Most bytes of retained messages in one page."""
CLEAR_BATCH = 1000
"""Retained messages deleted in one transaction."""
SCANS_MAX = 20
"""Calls of the store for one page, each of which reads 1,000 topics. A page may be empty without being the last."""


@handles("publish")
async def publish(context: Context, params: Publish) -> dict[str, Any]:
    """Publishes through the worker that owns the client id of the publisher."""
    settings = context.configuration.settings.mqtt
    topic = params.topic.encode()
    try:
        check_topic_name(topic, settings.max_topic_levels)
    except MqttError as error:
        raise ControlError("BAD_REQUEST", f"topic: {error}") from None
    if len(topic) + len(params.payload) > settings.max_packet_size:
        raise ControlError("BAD_REQUEST", f"payload: must have at most {settings.max_packet_size} bytes with its topic "
                           f"(mqtt.max_packet_size), got {len(topic) + len(params.payload)}")  # fmt: skip
    properties: dict[int, Any] = {
        PropertyId.PAYLOAD_FORMAT_INDICATOR: params.payload_format_indicator,
        PropertyId.CONTENT_TYPE: None if params.content_type is None else params.content_type.encode(),
        PropertyId.RESPONSE_TOPIC: None if params.response_topic is None else params.response_topic.encode(),
        PropertyId.CORRELATION_DATA: params.correlation_data,
    }
    client_id = params.clientid.encode()
    answer = await context.workers.call(
        await some_worker(context, client_id),
        "publish",
        topic=topic,
        payload=params.payload,
        qos=params.qos,
        retain=params.retain,
        client_id=client_id,
        expiry_s=params.message_expiry_interval,
        properties={int(number): value for number, value in properties.items() if value is not None},
        user_properties=[(name.encode(), value.encode()) for name, value in params.user_properties.items()],
    )
    return {"id": answer["id"].hex().upper(), "matched": answer["heard"]}


async def some_worker(context: Context, client_id: bytes) -> int:
    """Returns the worker of the client id if it is ready, else any ready worker, since a message can enter by each."""
    first = context.worker_of(client_id)
    for worker in [first, *(one for one in range(len(context.workers)) if one != first)]:
        if context.workers.is_up(worker):
            return worker
    raise ControlError("WORKER_DOWN", "no worker is ready")


@handles("retained list")
async def list_retained(context: Context, params: RetainedList) -> dict[str, Any]:
    filter = params.topic.encode()
    try:
        check_topic_filter(filter, context.configuration.settings.mqtt.max_topic_levels)
    except MqttError as error:
        raise ControlError("BAD_REQUEST", f"topic: {error}") from None
    place = decode_cursor(params.cursor, int, bytes) if params.cursor else None
    rows: list[dict[str, Any]] = []
    now_ms = time.time_ns() // 1_000_000
    for _ in range(SCANS_MAX):
        found, place = context.retained.scan(filter, place, params.limit - len(rows), PAGE_BYTES, now_ms)
        rows += [retained_row(message, params.payload) for message in found]
        if place is None or len(rows) >= params.limit:
            break
        await breathe()
    return {"data": rows, "cursor": None if place is None else encode_cursor(*place)}


@handles("retained show")
async def show_retained(context: Context, params: OneTopic) -> dict[str, Any]:
    return retained_row(find_retained(context, params), True)


@handles("retained delete")
async def delete_retained(context: Context, params: OneTopic) -> dict[str, Any]:
    find_retained(context, params)
    context.retained.update([params.topic.encode()])
    return {"topic": params.topic}


@handles("retained clear")
async def clear_retained(context: Context, params: Params) -> dict[str, Any]:
    """Deletes batch by batch; messages retained meanwhile may be deleted too."""
    deleted, place = 0, None
    while True:
        found, place = context.retained.scan(b"#", place, CLEAR_BATCH, PAGE_BYTES, time.time_ns() // 1_000_000)
        if found:
            context.retained.update([message.topic for message in found])
            deleted += len(found)
        if place is None:
            return {"deleted": deleted}
        await breathe()


def find_retained(context: Context, params: OneTopic) -> RetainedMessage:
    message = context.retained.get(params.topic.encode())
    if message is None or 0 < message.expires_ms <= time.time_ns() // 1_000_000:
        raise ControlError("NOT_FOUND", f"no retained message of topic {params.topic!r}")
    return message


def retained_row(message: RetainedMessage, payload: bool) -> dict[str, Any]:
    """Returns a retained message with EMQX's names of fields; the payload in base64."""
    row = {
        "topic": message.topic.decode(errors="replace"),
        "msgid": message.message_id.hex().upper(),
        "qos": message.qos,
        "payload_size": len(message.payload),
        "publish_at": message.created_ms,
        "expires_at": message.expires_ms or None,
        "from_clientid": message.client_id.decode(errors="replace"),
    }
    return row | {"payload": base64.b64encode(message.payload).decode()} if payload else row
