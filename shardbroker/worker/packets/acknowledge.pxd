"""PUBACK, PUBREC, PUBREL and PUBCOMP of a client (MQTT 3.1.1 §3.4 to §3.7, 5.0 likewise)."""
from libc.stdint cimport uint8_t, uint32_t

from shardbroker.worker.channel cimport Channel

cdef int on_ack(Channel channel, uint8_t first, const uint8_t* body, uint32_t size) except -1
