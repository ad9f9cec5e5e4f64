"""Where other brokers are known to differ from the standard or from its reading here.

Keys are test functions, test ids or names of wire cases. Such a test must fail against that broker, so that
an entry that is no longer true is noticed. A failure that is not listed here puts the test itself in doubt.
"""

__all__ = ["KNOWN_DIFFERENCES"]

KNOWN_DIFFERENCES: dict[str, dict[str, str]] = {
    "mosquitto-2.0.11": {
        "mqtt_3_3_1_2_dup_at_qos_0": "does not look at DUP of QoS 0 messages",
        "mqtt_2_2_2_2_puback_flags": "flags of PUBACK are not checked",
        "mqtt_2_2_2_2_pingreq_flags": "flags of PINGREQ are not checked",
        "mqtt_4_8_0_1_pingreq_with_a_body": "the length of PINGREQ is not checked",
        "mqtt_4_8_0_1_suback_from_a_client": "takes every client for a possible bridge",
        "mqtt_4_8_0_1_unsuback_from_a_client": "takes every client for a possible bridge",
        "mqtt_4_8_0_1_pingresp_from_a_client": "takes every client for a possible bridge",
        "test_mqtt_3_3_5_1_overlapping_filters_honour_the_highest_qos": "one copy, at the QoS of any match",
        "test_mqtt_3_1_4_3_takeover": "closes the older connection without DISCONNECT 0x8E",
        "test_mqtt_4_3_3_6_qos_2_over_reconnects[same-expiring]": "a message that has been sent may still expire",
        "test_mqtt_3_1_2_25_too_large_for_the_client[same]": "a message too large to send takes its place in Receive Maximum",
        "test_mqtt_3_3_4_9_receive_maximum_of_the_client[same]": "a PUBACK lets two messages out, beyond Receive Maximum",
        "test_mqtt_3_3_4_7_receive_maximum_of_the_server": "takes more messages than its Receive Maximum",
        "test_unfinished_qos_1_messages_go_to_other_members": "lets them end with their session, as it may",
        "test_queue_is_a_group_of_its_own": "$queue/ is EMQX's, not the standard's",
        "test_retained_messages_are_not_sent_to_shared_subscriptions": "sends them",
        "test_mqtt_4_7_1_1_ill_formed_filters[$share//t]": "takes a filter without a share name for a plain one",
        "test_mqtt_4_7_1_1_ill_formed_filters[$share/g]": "takes a share without a filter for a plain filter",
        "test_connection_ends[long_form_of_a_length]": "takes a length in more bytes than it needs",
        "test_connection_ends[flags_of_PINGREQ]": "flags of PINGREQ are not checked",
        "test_connection_ends[response_topic_with_wildcard]": "does not look at the response topic",
        "test_connection_ends[subscription_identifier_in_PUBLISH]": "takes it, and ignores it",
        "test_connection_ends[SUBSCRIBE_without_filters]": "says malformed instead of protocol error",
        "test_connection_ends[No_Local_on_a_shared_subscription]": "grants it",
        "test_connection_ends[retain_handling_3]": "says malformed instead of protocol error",
        "test_connection_ends[UNSUBSCRIBE_without_filters]": "says malformed instead of protocol error",
        "test_connection_ends[SUBACK_from_a_client]": "takes every client for a possible bridge",
    },
}
"""Broker, as `ExternalBroker.known` names it, to tests and reasons."""
