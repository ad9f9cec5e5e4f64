"""Dispatch of a client's packets; see protocol.pxd."""

from libc.stdint cimport uint32_t, uint64_t

from shardbroker.hooks.masks cimport HOOK_CLIENT_PING
from shardbroker.mqtt.codec cimport FixedHeader, read_fixed_header
from shardbroker.mqtt.packets cimport LOGIN_PACKET_MAX, decode_body
from shardbroker.mqtt.spec cimport (
    AUTH, BRIDGE_BIT, CONNECT, DISCONNECT, PACKET_TOO_LARGE, PINGREQ, PINGREQ_FIRST, PROTOCOL_ERROR, PUBACK, PUBCOMP, PUBLISH, QUOTA_EXCEEDED,
    SUBSCRIBE, UNSUBSCRIBE,
)
from shardbroker.worker.channel cimport AUTHENTICATING, CLOSING, CONNECTED, SIDE_SERVER, WAIT_CONNECT
from shardbroker.worker.memory cimport REFUSE
from shardbroker.worker.packets.acknowledge cimport on_ack
from shardbroker.worker.packets.connect cimport on_auth, on_connect, on_disconnect
from shardbroker.worker.packets.publish cimport on_publish
from shardbroker.worker.packets.subscribe cimport go_on_with_filters, on_subscribe, on_unsubscribe
from shm.counters cimport (
    CLIENT_CLOSED_NOT_CONNECT, CLIENT_CLOSED_OVERLOAD, PACKETS_PINGREQ_RECEIVED, PACKETS_PINGRESP_SENT, PACKETS_RECEIVED,
)

from shardbroker.mqtt.errors import MqttError, ProtocolError
from shardbroker.worker.channel import SHORT_OF_MEMORY

cdef enum:
    LEVEL_AT = 6                           # of the protocol level in a CONNECT with the protocol name "MQTT"
    LEVEL_AT_31 = 8                        # with "MQIsdp"
    PARTIAL_MAX = 4096                     # bytes of a CONNECT whose end may still be on the way while memory is short


cdef size_t feed(Channel channel, const uint8_t* data, size_t size) except? 0:
    cdef FixedHeader header
    cdef size_t used = 0
    cdef uint64_t whole
    try:
        if channel.subscribing is not None:
            go_on_with_filters(channel)
        while used < size and channel.state != CLOSING and channel.context.budget > 0:
            if not read_fixed_header(data + used, size - used, &header):
                break
            whole = <uint64_t>header.size + header.remaining
            if channel.state != CONNECTED and not may_begin(channel, data + used, &header, whole, size - used):
                break
            if whole > channel.context.max_packet_size:
                # Refused at the header: no memory is reserved for what was only announced. [MQTT-3.2.2-15]
                raise MqttError(
                    PACKET_TOO_LARGE, f"packet of {whole} bytes exceeds mqtt.max_packet_size ({channel.context.max_packet_size})")
            if whole > size - used:
                break
            if not handle(channel, header.first, data + used + header.size, header.remaining):
                # A PUBLISH whose look-up is not complete has used up the budget: the channel is busy then, not parked.
                channel.parked = not channel.waiting and channel.context.budget > 0
                break
            used += whole
            channel.context.budget -= 1
            channel.context.count(PACKETS_RECEIVED)
            if channel.waiting:
                break
    except MqttError as error:
        channel.fail(error.reason_code, str(error))
    except Exception as error:
        channel.broken(error)
    return used


cdef bint may_begin(Channel channel, const uint8_t* packet, const FixedHeader* header, uint64_t whole, uint64_t here) except -1:
    """Whether the next packet before CONNACK may be read: `here` of its `whole` bytes have arrived."""
    cdef bint has_level = channel.state != WAIT_CONNECT or find_level(channel, packet + header.size, min(here, whole) - header.size)
    cdef bint is_too_large = whole > LOGIN_PACKET_MAX or whole > channel.context.max_packet_size
    cdef bint is_refused = whole > here and whole > PARTIAL_MAX and channel.context.memory_level >= REFUSE
    if channel.state == WAIT_CONNECT and header.first >> 4 != CONNECT:
        # [MQTT-3.1.0-1]: no reply, as nothing indicates that the peer speaks MQTT.
        channel.context.count(CLIENT_CLOSED_NOT_CONNECT)
        channel.close(PROTOCOL_ERROR, SIDE_SERVER, "first packet is not CONNECT", True)
    elif (is_too_large or is_refused) and not has_level:
        return False                                         # the answer depends on the version, not on how the bytes were cut
    elif whole > LOGIN_PACKET_MAX:
        raise MqttError(PACKET_TOO_LARGE, f"packet of {whole} bytes exceeds the limit before CONNACK ({LOGIN_PACKET_MAX})")
    elif is_refused and not is_too_large:
        channel.context.count(CLIENT_CLOSED_OVERLOAD)
        if channel.announced_version == 5:
            channel.version = 5
            channel.refuse(5, QUOTA_EXCEEDED, SHORT_OF_MEMORY)
        else:
            channel.close(QUOTA_EXCEEDED, SIDE_SERVER, SHORT_OF_MEMORY, True)
    return channel.state != CLOSING


cdef bint find_level(Channel channel, const uint8_t* body, uint64_t here) noexcept:
    """Notes the protocol level of a CONNECT; whether it has arrived, or cannot be found."""
    if here < 2:                                             # the length of the protocol name
        return False
    if body[1] == 4:
        if here > LEVEL_AT:
            channel.announced_version = body[LEVEL_AT]
        return here > LEVEL_AT
    if body[1] == 6:
        if here > LEVEL_AT_31 and body[LEVEL_AT_31] & ~BRIDGE_BIT == 3:                # with this name, no other level has a meaning
            channel.announced_version = body[LEVEL_AT_31]
        return here > LEVEL_AT_31
    return True


cdef bint handle(Channel channel, uint8_t first, const uint8_t* body, uint32_t size) except -1:
    """Handles one whole packet. False: it has to wait, for room in a ring or for rights, and was not touched."""
    cdef int kind = first >> 4
    if kind == PUBLISH and channel.state == CONNECTED:
        if not on_publish(channel, first, body, size):
            return False
        if channel.looking:
            channel.end_lookups()
        channel.last_packet_ms = channel.context.now_ms
        return True
    channel.last_packet_ms = channel.context.now_ms
    if PUBACK <= kind <= PUBCOMP and channel.state == CONNECTED and not channel.context.watch:
        on_ack(channel, first, body, size)
    else:
        handle_rare(channel, first, body, size)
    return True


cdef int handle_rare(Channel channel, uint8_t first, const uint8_t* body, uint32_t size) except -1:
    """Handles packets that are not part of each message, and all acknowledgements while packets are watched."""
    cdef int kind = first >> 4
    if channel.state == AUTHENTICATING and kind != AUTH and kind != DISCONNECT:
        raise ProtocolError("only AUTH and DISCONNECT are allowed before CONNACK", "MQTT-3.1.2-30")
    if channel.context.watch:
        channel.context.watcher.received(channel, first, body, size)
    if size == 0 and (first == PINGREQ_FIRST or (channel.version == 3 and kind == PINGREQ)):
        channel.context.count(PACKETS_PINGREQ_RECEIVED)
        if channel.context.hooks & HOOK_CLIENT_PING:
            channel.context.hooked.ping(channel)
        return channel.reply(PACKETS_PINGRESP_SENT, b"\xd0\x00")
    if PUBACK <= kind <= PUBCOMP:
        return on_ack(channel, first, body, size)
    packet = decode_body(first, body, size, channel.version)
    if kind == CONNECT:
        return on_connect(channel, packet)
    if kind == SUBSCRIBE:
        return on_subscribe(channel, packet)
    if kind == UNSUBSCRIBE:
        return on_unsubscribe(channel, packet)
    if kind == DISCONNECT:
        return on_disconnect(channel, packet)
    if kind == AUTH:
        return on_auth(channel, packet)
    raise ProtocolError(f"packet type {kind} is not valid from a client", "MQTT-4.13.1-1")
