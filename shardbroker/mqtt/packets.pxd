"""Packets as objects; see packets.pyx. Packets that a server receives have typed fields, which the channel reads in C."""
from libc.stdint cimport uint8_t, uint16_t, uint32_t

cdef enum:
    LOGIN_PACKET_MAX = 524288              # bytes of CONNECT, and of AUTH before CONNACK: seven fields of 64 KB, rounded up
    USER_PROPERTIES_MAX = 256              # per set of properties, except in PUBLISH: three objects each, from 5 bytes on the wire


cdef class Packet:
    pass


cdef class Will(Packet):
    cdef readonly bytes topic, payload
    cdef readonly uint8_t qos
    cdef readonly bint retain
    cdef readonly dict properties


cdef class Connect(Packet):
    cdef readonly uint8_t version
    cdef readonly bytes client_id, username, password
    cdef readonly bint clean_start, bridge
    cdef readonly uint16_t keepalive_s
    cdef readonly Will will
    cdef readonly dict properties


cdef class Subscribe(Packet):
    cdef readonly uint16_t packet_id
    cdef readonly list topics              # (filter, options byte)
    cdef readonly dict properties


cdef class Unsubscribe(Packet):
    cdef readonly uint16_t packet_id
    cdef readonly list filters
    cdef readonly dict properties


cdef class Disconnect(Packet):
    cdef readonly uint8_t reason_code
    cdef readonly dict properties

# Decodes the body after a fixed header into a packet object. Raises MqttError. `version` is ignored for CONNECT.
cdef object decode_body(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
