"""The preset of Redis: keys and fields of EMQ X Enterprise. There is nothing to create.

Each row is one script, which Redis carries out as a whole: comparison, commands and expiry. A row that is older than what is
stored, or written again, changes nothing.
"""

from typing import Any

from shardbroker.flows.persistence.stored import Page, Stored, Wanted, page_of, stored_of

__all__ = ["create", "fetch", "parameters", "retained"]

CLIENTS = """
local statement, client, state, on, off, started = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if statement == 'offline' then
  local known = redis.call('HGETALL', KEYS[2])
  for at = 1, #known, 2 do
    if tonumber(known[at + 1]) < tonumber(started) then
      local key = 'mqtt:client:' .. known[at]
      if redis.call('HGET', key, 'online_at') == known[at + 1] then
        redis.call('HSET', key, 'state', '0', 'offline_at', started)
      end
      redis.call('HDEL', KEYS[2], known[at])
    end
  end
  return 0
end
local online = tonumber(redis.call('HGET', KEYS[1], 'online_at')) or 0
local offline = tonumber(redis.call('HGET', KEYS[1], 'offline_at')) or 0
if tonumber(on) < online or math.max(tonumber(on), tonumber(off) or 0) < math.max(online, offline) then
  return 0
end
redis.call('HSET', KEYS[1], 'state', state, 'online_at', on)
if tonumber(off) then
  redis.call('HSET', KEYS[1], 'offline_at', off)
  redis.call('HDEL', KEYS[2], client)
else
  redis.call('HSET', KEYS[2], client, on)
end
return 1
"""
SUBSCRIPTIONS = """
local statement, client, topic, qos = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if statement == 'delete' then
  redis.call('HDEL', KEYS[1], topic)
  redis.call('PUBLISH', 'mqtt_channel', cjson.encode({type = 'unsubscribe', topic = topic, clientid = client}))
else
  redis.call('HSET', KEYS[1], topic, qos)
  redis.call('PUBLISH', 'mqtt_channel', cjson.encode({type = 'subscribe', topic = topic, clientid = client, qos = tonumber(qos)}))
end
return 1
"""
MESSAGES = """
local statement, id, topic, from, qos, retain, payload, ts, expiry = unpack(ARGV)
if statement == 'delete' then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], id)
  return 1
end
redis.call('ZADD', KEYS[2], 1, id)
redis.call('HSET', KEYS[1], 'id', id, 'from', from, 'qos', qos, 'topic', topic, 'retain', retain, 'payload', payload, 'ts', ts)
if tonumber(expiry) > 0 then
  redis.call('EXPIRE', KEYS[1], expiry)
  redis.call('EXPIRE', KEYS[2], expiry)
  local oldest = (tonumber(ts) - tonumber(expiry) * 1000) * 1000
  redis.call('ZREMRANGEBYLEX', KEYS[2], '-', '(' .. string.format('%016X', math.max(oldest, 0)))
end
return 1
"""
"""An id begins with the time of its message, Unix us in hexadecimal digits: members that have expired are those before a time."""
RETAINED = """
local statement, id, topic, from, qos, payload, ts = unpack(ARGV)
if tonumber(ts) < (tonumber(redis.call('HGET', KEYS[1], 'ts')) or 0) then
  return 0
end
if statement == 'delete' then
  return redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], 'id', id, 'from', from, 'qos', qos, 'topic', topic, 'retain', '1', 'payload', payload, 'ts', ts)
return 1
"""
POSITION = """
if ARGV[1] >= (redis.call('GET', KEYS[1]) or '') then
  redis.call('SET', KEYS[1], ARGV[1])
end
return 1
"""

FETCH = """
local after, before, limit, positions = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if positions == '1' then
  local acked = redis.call('GET', KEYS[2])
  if acked and acked > after then
    after = acked
  end
end
local ids = redis.call('ZRANGEBYLEX', KEYS[1], '(' .. after, '(' .. before, 'LIMIT', 0, limit)
local found = {}
for at, id in ipairs(ids) do
  found[at] = {id, redis.call('HMGET', 'mqtt:msg:' .. id, 'from', 'qos', 'payload')}
end
return found
"""
"""One script, so that it is one round trip. Messages that have expired since have no values."""


def parameters(part: str, section: Any) -> dict[str, Any]:
    """Returns the parameters of the action of a part."""
    expiry = str(section.expired_after)
    commands = {
        "clients": _script(
            CLIENTS,
            ["mqtt:client:${clientid}", "mqtt:node:${node}"],
            ["${statement}", "${clientid}", "${state}", "${online_at}", "${offline_at}", "${started_at}"],
        ),
        "subscriptions": _script(SUBSCRIPTIONS, ["mqtt:sub:${clientid}"], ["${statement}", "${clientid}", "${topic}", "${qos}"]),
        "messages": _script(
            MESSAGES,
            ["mqtt:msg:${id}", "mqtt:msg:${topic}"],
            ["${statement}", "${id}", "${topic}", "${sender}", "${qos}", "${retain}", "${payload}", "${arrived}", expiry],
        ),
        "retained": _script(
            RETAINED,
            ["mqtt:retain:${topic}"],
            ["${statement}", "${id}", "${topic}", "${sender}", "${qos}", "${payload}", "${arrived}"],
        ),
        "acked": _script(POSITION, ["mqtt:acked:${clientid}:${topic}"], ["${mid}"]),
    }
    return {"command_template": commands[part]}


def _script(text: str, keys: list[str], values: list[str]) -> list[str]:
    return ["EVAL", text.strip(), str(len(keys)), *keys, *values]


async def create(connector: Any) -> None:
    """Has nothing to create: keys are made when they are written."""


async def fetch(connector: Any, wanted: Wanted) -> Page:
    """Returns a page of messages."""
    keys = [f"mqtt:msg:{wanted.topic}", f"mqtt:acked:{wanted.client_id}:{wanted.topic}"]
    values = [wanted.after, wanted.before, wanted.limit, int(wanted.positions)]
    async with connector.connection() as client:
        found = await client.execute_command("EVAL", FETCH.strip(), len(keys), *keys, *values)
    names = ("sender", "qos", "payload")
    rows = [{"msgid": id, **dict(zip(names, of, strict=True))} for id, of in found if of[2] is not None]
    last = found[-1][0].decode(errors="replace") if found else ""
    return page_of(rows, wanted.limit, last=last, has_more=len(found) >= wanted.limit)


async def retained(connector: Any, topic: str) -> Stored | None:
    """Returns the retained message of a topic."""
    async with connector.connection() as client:
        found = await client.execute_command("HMGET", f"mqtt:retain:{topic}", "id", "from", "qos", "payload", "ts")
    row = dict(zip(("msgid", "sender", "qos", "payload", "arrived"), found, strict=True))
    return None if row["payload"] is None else stored_of(row, has_id=False)
