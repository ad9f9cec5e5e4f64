"""Writes the declarations of the C fields that mirror `mqtt.*`: `python -m shardbroker.config.mqtt_pxd > FILE`, see HEAD."""

from shardbroker.config.c_fields import c_fields
from shardbroker.config.settings import Mqtt

__all__ = ["declarations"]

HEAD = '''\
"""The settings `mqtt.*` of a worker as C fields. Written by `python -m shardbroker.config.mqtt_pxd`; not to be edited.

Times are in ms. 0 means no limit where docs/configuration.md allows 0 or infinity.
"""
from libc.stdint cimport uint32_t, uint64_t


cdef class MqttSettings:
'''
TAIL = """
    # Applies the section `mqtt` (shardbroker/config/settings.py); what was granted to clients before stays.
    cpdef int configure(self, settings) except -1
"""
COMMENT_AT = 52
"""Column of the comments."""


def declarations() -> str:
    """Returns shardbroker/session/mqtt_settings.pxd."""
    lines = [(f"    cdef public {mirror.type} {mirror.name}", f"mqtt.{key}") for key, _, mirror in c_fields(Mqtt)]
    return HEAD + "".join(f"{code:<{COMMENT_AT}}# {comment}\n" for code, comment in lines) + TAIL


if __name__ == "__main__":
    print(declarations(), end="")
