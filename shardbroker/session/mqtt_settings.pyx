"""The settings `mqtt.*` as C fields; see mqtt_settings.pxd, which is written from the schema."""

__all__ = ["MqttSettings"]


cdef class MqttSettings:
    """What a packet or a message is checked against, without a look into a Python object."""

    cpdef int configure(self, settings) except -1:
        for name, value in settings.c_values.items():
            setattr(self, name, value)
        return 0
