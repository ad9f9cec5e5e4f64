"""Records of messages as columns of rules (rules/events.py), with names and forms of EMQX: one for each message of a rule."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t

from shardbroker.flows.messages import PROPERTY_NAMES
from shardbroker.mqtt.spec import PROPERTIES, Wire
from shardbroker.rules.functions.arguments import from_octets
from shardbroker.rules.values import UNDEFINED

__all__ = ["columns_of"]

cdef dict NAMES = PROPERTY_NAMES
cdef tuple FLAGS = tuple([{"dup": False, "retain": retain} for retain in (False, True)])


cpdef dict columns_of(tuple record, long long at_ms, publisher, str node):
    """Returns the columns of a message record: (sequence, kind, id, topic, payload, flags, expires_ms, properties, publisher).

    publisher: (username, peername, peerhost) of the connection.
    """
    cdef int flags = record[5]
    cdef bytes client_id = record[8]
    properties, time = record[7], at_ms
    username, peername, peerhost = publisher
    try:  # once for all three: nearly every message is text
        payload, topic = (<bytes>record[4]).decode(), (<bytes>record[3]).decode()
        client = client_id.decode() if client_id else UNDEFINED
    except UnicodeDecodeError:
        payload, topic = from_octets(record[4]), from_octets(record[3])
        client = from_octets(client_id) if client_id else UNDEFINED
    return {
        "event": "message.publish",
        "id": (<bytes>record[2]).hex().upper(),
        "payload": payload,
        "topic": topic,
        "qos": flags & 3,
        "flags": FLAGS[flags >> 2 & 1],
        "clientid": client,
        "username": username,
        "peerhost": peerhost,
        "peername": peername,
        "publish_received_at": time,
        "pub_props": _properties_of(properties) if properties else {},
        "client_attrs": {},
        "timestamp": time,
        "node": node,
    }


cdef dict _properties_of(bytes encoded):
    """Returns the properties of a PUBLISH. User properties are a map, the last of each name, and all of them as pairs."""
    cdef dict found = {}
    cdef list pairs = []
    cdef int number
    cdef Py_ssize_t at = 0, size = PyBytes_GET_SIZE(encoded)
    while at < size:
        number = <uint8_t>PyBytes_AS_STRING(encoded)[at]
        at += 1
        wire = PROPERTIES[number].wire
        if wire is Wire.PAIR:
            key, at = _block(encoded, at)
            value, at = _block(encoded, at)
            pairs.append({"key": from_octets(key), "value": from_octets(value)})
        elif wire is Wire.BYTE:
            found[NAMES.get(number) or str(number)] = encoded[at]
            at += 1
        elif wire is Wire.STRING or wire is Wire.BINARY:
            value, at = _block(encoded, at)
            found[NAMES.get(number) or str(number)] = from_octets(value)
        else:
            break  # PUBLISH has no other that is passed on
    if pairs:
        found["User-Property"] = {one["key"]: one["value"] for one in pairs}
        found["User-Property-Pairs"] = pairs
    return found


cdef tuple _block(bytes encoded, Py_ssize_t at):
    """Returns a value with a length of two bytes in front, and the offset behind it."""
    cdef Py_ssize_t end = at + 2 + int.from_bytes(encoded[at : at + 2], "big")
    return encoded[at + 2 : end], end
