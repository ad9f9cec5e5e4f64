"""Acknowledgements of a client; see acknowledge.pxd."""

from libc.stdint cimport uint16_t

from shardbroker.mqtt.codec cimport AckView, parse_ack
from shardbroker.mqtt.spec cimport (
    PACKET_IDENTIFIER_NOT_FOUND, PUBACK, PUBCOMP_FIRST, PUBREC, PUBREL, SUCCESS, UNSPECIFIED_ERROR,
)
from shardbroker.session.watcher cimport unlikely
from shm.counters cimport (
    PACKETS_PUBACK_MISSED, PACKETS_PUBACK_RECEIVED, PACKETS_PUBCOMP_MISSED, PACKETS_PUBCOMP_RECEIVED, PACKETS_PUBCOMP_SENT,
    PACKETS_PUBREC_MISSED, PACKETS_PUBREC_RECEIVED, PACKETS_PUBREL_MISSED, PACKETS_PUBREL_RECEIVED, PACKETS_PUBREL_SENT,
)

from shardbroker.mqtt.errors import ProtocolError
from shardbroker.mqtt.packets import Pubcomp, Pubrel
from shardbroker.mqtt.spec import PacketType


cdef int on_ack(Channel channel, uint8_t first, const uint8_t* body, uint32_t size) except -1:
    cdef AckView view
    cdef int kind = first >> 4
    parse_ack(first, body, size, channel.version, &view)
    if kind == PUBACK:
        channel.context.count(PACKETS_PUBACK_RECEIVED)
        if not channel.session.puback(view.packet_id):
            missed(channel, kind, view.packet_id, PACKETS_PUBACK_MISSED)
    elif kind == PUBREC:
        channel.context.count(PACKETS_PUBREC_RECEIVED)
        if not channel.session.pubrec(view.packet_id, view.reason_code):
            missed_pubrec(channel, &view)
    elif kind == PUBREL:
        channel.context.count(PACKETS_PUBREL_RECEIVED)
        if channel.session.pubrel(view.packet_id):
            channel.ack(PUBCOMP_FIRST, view.packet_id, SUCCESS, PACKETS_PUBCOMP_SENT)
            if unlikely(channel.context.watch):
                channel.context.watcher.acked(channel, PUBCOMP_FIRST, view.packet_id, SUCCESS, None)
        else:
            channel.context.count(PACKETS_PUBREL_MISSED)
            channel.report_failure(
                Pubcomp, view.packet_id, PACKET_IDENTIFIER_NOT_FOUND, PACKETS_PUBCOMP_SENT, not_in_flight(view.packet_id))
    else:
        channel.context.count(PACKETS_PUBCOMP_RECEIVED)
        if not channel.session.pubcomp(view.packet_id):
            missed(channel, kind, view.packet_id, PACKETS_PUBCOMP_MISSED)
    return 0


cdef int missed_pubrec(Channel channel, AckView* view) except -1:
    missed(channel, PUBREC, view.packet_id, PACKETS_PUBREC_MISSED)
    if view.reason_code >= UNSPECIFIED_ERROR:
        return 0
    return channel.report_failure(
        Pubrel, view.packet_id, PACKET_IDENTIFIER_NOT_FOUND, PACKETS_PUBREL_SENT, not_in_flight(view.packet_id))


cdef int missed(Channel channel, int kind, uint16_t packet_id, int counter) except -1:
    """Counts an acknowledgement that completes no delivery.

    A message with this packet id that awaits another acknowledgement would wait forever. The connection is closed then, and the
    session sends the message again after the next CONNECT.
    """
    cdef int awaited = channel.session.awaited(packet_id)
    channel.context.count(counter)
    if awaited:
        raise ProtocolError(
            f"{PacketType(kind).name} for packet id {packet_id}, expected {PacketType(awaited).name}", "MQTT-4.13.1-1")
    return 0


cdef str not_in_flight(uint16_t packet_id):
    return f"no message with packet id {packet_id} is in flight"
