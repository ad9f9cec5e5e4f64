"""Subscriptions of a client that databases have: `auto_subscribe.sources`."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from shardbroker.access.contract import BackendError, Client
from shardbroker.access.placeholders import values_of
from shardbroker.config.auto_subscribe import AutoSubscribe
from shardbroker.config.base import LEVELS_MAX
from shardbroker.integrations.auth.stored import RuleBackend
from shardbroker.integrations.failures import Report, describe
from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter, parse_subscription

__all__ = ["SubscriptionSources", "SubscriptionsFailed"]

FILTERS_MAX = 1000
"""Subscriptions of a client, as the default of mqtt.max_subscriptions: some 100 KB in a message to its worker."""
QOS = {0: 0, 1: 1, 2: 2, "0": 0, "1": 1, "2": 2}


class SubscriptionsFailed(Exception):
    """A source has failed, and `auto_subscribe.on_error` denies the client. The text is for the log."""


class SubscriptionSources:
    """members: (name, source) in order."""

    def __init__(self, settings: AutoSubscribe, members: Sequence[tuple[str, RuleBackend]], report: Report) -> None:
        self._settings, self._members, self._report = settings, members, report

    async def of(self, client: Client) -> list[tuple[bytes, int]] | None:
        """Returns (topic filter, QoS) of all sources, the first of each filter; None: there are no sources, or one has failed.

        Raises SubscriptionsFailed.
        """
        if not self._members:
            return None
        found: dict[bytes, int] = {}
        failed = False
        name = ""
        try:
            async with asyncio.timeout(self._settings.timeout):
                values = values_of(client)
                for name, member in self._members:
                    failed |= not self._take(name, await member.find_rules(values), found)
        except Exception as error:
            self._report(f"auto_subscribe.{name}", describe(error))
            if self._settings.on_error == "deny":
                raise SubscriptionsFailed(f"auto_subscribe.{name} failed") from None
            failed = True
        return [*found.items()] if found or not failed else None

    def _take(self, name: str, rows: Sequence[Mapping[str, Any]], found: dict[bytes, int]) -> bool:
        """Takes the subscriptions of rows; returns whether all could be used. Others are reported, and not made."""
        problem = ""
        for row in rows:
            if len(found) >= FILTERS_MAX:
                problem = f"more than {FILTERS_MAX} subscriptions of a client: the rest is left out"
                break
            try:
                filter, qos = _subscription(row)
            except (BackendError, MqttError) as error:
                problem = str(error)
                continue
            found.setdefault(filter, qos)
        if problem:
            self._report(f"auto_subscribe.{name}", problem)
        return not problem

    async def close(self) -> None:
        for _, member in self._members:
            await member.close()


def _subscription(row: Mapping[str, Any]) -> tuple[bytes, int]:
    """Raises BackendError, MqttError; the text has nothing of the row, which may be a client's."""
    topic, qos = row.get("topic"), row.get("qos", 0)
    if isinstance(topic, bytes | bytearray):
        topic = topic.decode(errors="replace")
    if not isinstance(topic, str):
        raise BackendError("topic of a subscription: must be text")
    if isinstance(qos, bool) or not isinstance(qos, int | str) or (number := QOS.get(qos)) is None:
        raise BackendError("qos of a subscription: must be 0, 1 or 2")
    try:
        wire_filter = topic.encode()
        check_topic_filter(parse_subscription(wire_filter)[1], LEVELS_MAX)
    except (UnicodeEncodeError, MqttError):
        raise BackendError("topic of a subscription: must be a topic filter") from None
    return wire_filter, number
