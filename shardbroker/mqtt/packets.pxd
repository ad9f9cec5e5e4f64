from libc.stdint cimport uint8_t, uint32_t

# A packet object from the body behind a fixed header. Raises MqttError. `version` is ignored for CONNECT.
cdef object decode_body(uint8_t first, const uint8_t* body, uint32_t size, uint8_t version)
