"""Where other brokers are known to differ from the standard or from its reading here.

Keys are test functions, test ids or names of wire cases. Such a test must fail against that broker, so that
an entry that is no longer true is noticed. A failure that is not listed here puts the test itself in doubt.
"""

from importlib import import_module
from importlib.util import find_spec

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
    },
}
"""Broker, as `ExternalBroker.known` names it, to tests and reasons."""

_V5 = "tests.conformance.known_differences_v5"
if find_spec(_V5):
    KNOWN_DIFFERENCES["mosquitto-2.0.11"].update(import_module(_V5).KNOWN_5)
