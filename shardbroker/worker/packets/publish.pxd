"""PUBLISH of a client (MQTT 3.1.1 §3.3, 5.0 likewise), from its bytes to its acknowledgement.

on_publish() reads as the order in which things are decided. Up to the room in the rings every step can send the packet back: it is
then handled again from its first byte, so no step before may leave anything behind that a repetition would change.

    parse -> QoS and RETAIN -> alias, mount point -> delay -> topic cache and rights -> rewrite -> room -> quota
          -> counted -> content -> QoS 2 duplicates -> stamp -> hooks, or publish (capture, retain, deliver, forward) -> acknowledge
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from shardbroker.pubsub.message cimport Message
from shardbroker.session.session cimport Session
from shardbroker.worker.channel cimport Channel

# False: it waits for room in a ring, for a look-up or for rights, and has to be handled again; nothing has happened.
cdef bint on_publish(Channel channel, uint8_t first, const uint8_t* body, uint32_t size) except -1
# Publishes what hooks have made of a PUBLISH (None: it was dropped) and acknowledges it. False: it waits for room in a ring. The
# connection may be closed by now and the session gone; the message is published all the same.
cdef bint publish_decided(Channel channel, Session session, Message message, int qos, int packet_id, uint64_t at_ms) except -1
# A hook that must decide about a PUBLISH has not responded: the packet is handled as if it had not arrived.
cdef int publish_refused(Channel channel, Session session, int qos, int packet_id) except -1
