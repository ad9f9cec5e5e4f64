"""The settings `mqtt.*` of a worker as C fields. Written by `python -m shardbroker.config.mqtt_pxd`; not to be edited.

Times are in ms. 0 means no limit where docs/configuration.md allows 0 or infinity.
"""
from libc.stdint cimport uint32_t, uint64_t


cdef class MqttSettings:
    cdef public uint64_t idle_timeout_ms            # mqtt.idle_timeout
    cdef public uint32_t max_packet_size            # mqtt.max_packet_size
    cdef public uint32_t max_client_id              # mqtt.max_clientid_len
    cdef public uint32_t max_topic_levels           # mqtt.max_topic_levels
    cdef public uint32_t max_topic_alias            # mqtt.max_topic_alias
    cdef public uint32_t max_qos                    # mqtt.max_qos_allowed
    cdef public bint retain_available               # mqtt.retain_available
    cdef public bint wildcard_subscription          # mqtt.wildcard_subscription
    cdef public bint shared_subscription            # mqtt.shared_subscription
    cdef public bint exclusive_subscription         # mqtt.exclusive_subscription
    cdef public bint ignore_loop_deliver            # mqtt.ignore_loop_deliver
    cdef public uint64_t session_expiry_ms          # mqtt.session_expiry_interval
    cdef public uint64_t max_session_expiry_ms      # mqtt.max_session_expiry_interval
    cdef public uint64_t message_expiry_ms          # mqtt.message_expiry_interval
    cdef public uint32_t max_inflight               # mqtt.max_inflight
    cdef public uint32_t max_mqueue_len             # mqtt.max_mqueue_len
    cdef public bint push_back                      # mqtt.mqueue_overflow
    cdef public list push_back_topics               # mqtt.push_back_topics
    cdef public uint64_t push_back_timeout_ms       # mqtt.push_back_timeout
    cdef public bint mqueue_store_qos0              # mqtt.mqueue_store_qos0
    cdef public dict mqueue_priorities              # mqtt.mqueue_priorities
    cdef public int mqueue_default_priority         # mqtt.mqueue_default_priority
    cdef public uint32_t max_output_bytes           # mqtt.max_output_bytes
    cdef public uint32_t max_awaiting_rel           # mqtt.max_awaiting_rel
    cdef public uint64_t await_rel_timeout_ms       # mqtt.await_rel_timeout
    cdef public uint64_t retry_interval_ms          # mqtt.retry_interval
    cdef public double keepalive_multiplier         # mqtt.keepalive_multiplier
    cdef public uint32_t server_keepalive_s         # mqtt.server_keepalive
    cdef public uint32_t max_subscriptions          # mqtt.max_subscriptions
    cdef public bint upgrade_qos                    # mqtt.upgrade_qos
    cdef public bytes response_information          # mqtt.response_information

    # Applies the section `mqtt` (shardbroker/config/settings.py); what was granted to clients before stays.
    cpdef int configure(self, settings) except -1
