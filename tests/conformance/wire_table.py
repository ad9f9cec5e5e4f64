"""Cases for one connection, as data: bytes to send, bytes to expect, the end of the connection.

Notation of bytes:
    3c A0 0102    hex
    'text'        ASCII
    [ ... ]       a remaining length (variable byte integer), then the content
    ( ... )       a two-byte length, then the content
    <proto>       protocol name and level of the version that the case runs with
A length that is wrong on purpose is written out in hex.

Steps:
    ONLINE        a valid CONNECT with an id of its own and the CONNACK that accepts it
    send(...)     sends bytes
    expect(...)   exactly these bytes come next
    ALIVE         PINGREQ is answered, and nothing came before the answer
    CLOSED        the broker closes the connection without another byte
    refused(...)  the same, with or without these bytes before the end
    unheeded(...) either these bytes (a refusal) come, or the connection is closed
"""

import re
from dataclasses import dataclass

from tests.harness import wire

__all__ = ["ALIVE", "CASES", "CLOSED", "ONLINE", "Case", "Step", "encode"]


@dataclass(frozen=True)
class Step:
    action: str
    data: str = ""


@dataclass(frozen=True)
class Case:
    """`name` begins with the statement that it is about; `versions` are protocol levels."""

    name: str
    statements: tuple[str, ...]
    steps: tuple[Step, ...]
    versions: tuple[int, ...] = (3, 4)


ONLINE = Step("online")
ALIVE = Step("alive")
CLOSED = Step("closed")


def send(data: str) -> Step:
    return Step("send", data)


def expect(data: str) -> Step:
    return Step("expect", data)


def refused(data: str) -> Step:
    return Step("refused", data)


def unheeded(data: str) -> Step:
    return Step("unheeded", data)


_TOKEN = re.compile(r"\s*(?:'(?P<text>[^']*)'|(?P<proto><proto>)|(?P<hex>(?:[0-9A-Fa-f]{2})+)|(?P<mark>[\[\]()]))")


def encode(notation: str, version: int) -> bytes:
    """Bytes of a notation; ValueError if it is not well-formed."""
    stack: list[tuple[str, bytes]] = [("", b"")]
    at = 0
    while notation[at:].strip():
        token = _TOKEN.match(notation, at)
        if token is None:
            raise ValueError(f"cannot read {notation[at:]!r}")
        at = token.end()
        opener, content = stack.pop()
        mark = token["mark"]
        if mark in ("[", "("):
            stack += [(opener, content), (mark, b"")]
        elif mark in ("]", ")"):
            if opener + mark not in ("[]", "()"):
                raise ValueError(f"unbalanced {mark} in {notation!r}")
            length = wire.varint(len(content)) if mark == "]" else wire.u16(len(content))
            before, outer = stack.pop()
            stack.append((before, outer + length + content))
        elif token["proto"]:
            stack.append((opener, content + wire.string(wire.PROTOCOL_NAMES[version]) + bytes([version])))
        else:
            stack.append((opener, content + (token["text"] or "").encode() + bytes.fromhex(token["hex"] or "")))
    if len(stack) != 1:
        raise ValueError(f"unbalanced bracket in {notation!r}")
    return stack[0][1]


def _case(name: str, statements: str, *steps: Step, versions: tuple[int, ...] = (3, 4)) -> Case:
    return Case(name, tuple(f"MQTT-{number}" for number in statements.split()), steps, versions)


_V311 = (4,)
"""For what MQTT 3.1 leaves open, such as reserved bits, or defines otherwise."""

_CONNECT = (
    _case(
        "mqtt_3_1_4_4_valid_connect",
        "3.1.4-4 3.2.2-3",
        send("10 [<proto> 02 003c ('wire')]"),
        expect("20 02 00 00"),
    ),
    _case("mqtt_3_1_0_1_publish_first", "3.1.0-1", send("30 [('t') 'x']"), CLOSED),
    _case("mqtt_3_1_0_1_pingreq_first", "3.1.0-1", send("C0 00"), CLOSED),
    _case("mqtt_3_1_0_1_subscribe_first", "3.1.0-1", send("82 [0001 ('t') 00]"), CLOSED),
    _case("mqtt_3_1_0_2_second_connect", "3.1.0-2", ONLINE, send("10 [<proto> 02 003c ('wire')]"), CLOSED),
    # The byte behind the packet is no level of it, so a reply of MQTT 5.0 is wrong.
    _case("mqtt_3_1_4_1_connect_ends_before_its_level", "3.1.4-1", send("10 [('MQTT')] 05 02"), CLOSED, versions=_V311),
    _case(
        "mqtt_3_1_2_1_unknown_protocol_name",
        "3.1.2-1",
        send("10 [('XQTT') 04 02 003c ('w')]"),
        refused("20 02 00 01"),
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_2_1_lower_case_protocol_name",
        "3.1.2-1",
        send("10 [('mqtt') 04 02 003c ('w')]"),
        refused("20 02 00 01"),
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_2_2_level_6",
        "3.1.2-2 3.2.2-5 3.2.2-4",
        send("10 [('MQTT') 06 02 003c ('w')]"),
        expect("20 02 00 01"),
        CLOSED,
        versions=_V311,
    ),
    _case("mqtt_3_1_2_3_reserved_flag", "3.1.2-3", send("10 [<proto> 03 003c ('w')]"), CLOSED, versions=_V311),
    _case("mqtt_3_1_2_9_will_flag_without_will", "3.1.2-9", send("10 [<proto> 06 003c ('w')]"), CLOSED),
    _case("mqtt_3_1_2_9_will_flag_without_message", "3.1.2-9", send("10 [<proto> 06 003c ('w') ('t')]"), CLOSED),
    _case(
        "mqtt_3_1_2_11_will_without_flag",
        "3.1.2-11",
        send("10 [<proto> 02 003c ('w') ('t') ('m')]"),
        CLOSED,
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_2_13_will_qos_without_flag",
        "3.1.2-13 3.1.2-11",
        send("10 [<proto> 0A 003c ('w')]"),
        CLOSED,
        versions=_V311,
    ),
    _case("mqtt_3_1_2_14_will_qos_3", "3.1.2-14", send("10 [<proto> 1E 003c ('w') ('t') ('m')]"), CLOSED),
    _case(
        "mqtt_3_1_2_15_will_retain_without_flag",
        "3.1.2-15 3.1.2-11",
        send("10 [<proto> 22 003c ('w')]"),
        CLOSED,
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_2_18_user_name_without_flag",
        "3.1.2-18",
        send("10 [<proto> 02 003c ('w') ('user')]"),
        CLOSED,
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_2_19_flag_without_user_name",
        "3.1.2-19",
        send("10 [<proto> 82 003c ('w')]"),
        CLOSED,
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_2_20_password_without_flag",
        "3.1.2-20",
        send("10 [<proto> 82 003c ('w') ('user') ('pw')]"),
        CLOSED,
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_2_21_flag_without_password",
        "3.1.2-21",
        send("10 [<proto> C2 003c ('w') ('user')]"),
        CLOSED,
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_2_22_password_without_user_name",
        "3.1.2-22",
        send("10 [<proto> 42 003c ('w') ('pw')]"),
        CLOSED,
        versions=_V311,
    ),
    _case("mqtt_3_1_3_3_no_client_id", "3.1.3-3", send("10 [<proto> 02 003c]"), CLOSED),
    _case(
        "mqtt_3_1_3_4_client_id_not_utf8",
        "3.1.3-4",
        send("10 [<proto> 02 003c (FFFE)]"),
        refused("20 02 00 02"),
    ),
    _case(
        "mqtt_3_1_3_5_one_character",
        "3.1.3-5",
        send("10 [<proto> 02 003c ('Z')]"),
        expect("20 02 00 00"),
        ALIVE,
    ),
    _case(
        "mqtt_3_1_3_5_23_characters",
        "3.1.3-5",
        send("10 [<proto> 02 003c ('0123456789abcdefXYZpqrs')]"),
        expect("20 02 00 00"),
        ALIVE,
    ),
    _case(
        "mqtt_3_1_3_8_empty_id_persistent",
        "3.1.3-8 3.1.3-7 3.2.2-5",
        send("10 [<proto> 00 003c ()]"),
        expect("20 02 00 02"),
        CLOSED,
    ),
    _case(
        "mqtt_3_1_empty_id_is_refused",
        "",
        send("10 [<proto> 02 003c ()]"),
        expect("20 02 00 02"),
        CLOSED,
        versions=(3,),
    ),
    _case(
        "mqtt_3_1_3_10_will_topic_not_utf8",
        "3.1.3-10",
        send("10 [<proto> 06 003c ('w') (C328) ('m')]"),
        CLOSED,
    ),
    _case(
        "mqtt_4_7_1_1_will_topic_with_wildcard",
        "4.7.1-1",
        send("10 [<proto> 06 003c ('w') ('a/#') ('m')]"),
        refused("20 02 00 05"),
    ),
    _case("mqtt_4_7_3_1_empty_will_topic", "4.7.3-1", send("10 [<proto> 06 003c ('w') () ('m')]"), CLOSED),
    _case(
        "mqtt_3_1_3_11_user_name_not_utf8",
        "3.1.3-11",
        send("10 [<proto> 82 003c ('w') (C328)]"),
        CLOSED,
        versions=_V311,
    ),
    _case("mqtt_3_1_4_1_client_id_beyond_the_end", "3.1.4-1", send("10 [<proto> 02 003c 0009 'w']"), CLOSED),
    _case(
        "mqtt_3_1_4_1_wrong_flags",
        "3.1.4-1 2.2.2-2",
        send("11 [<proto> 02 003c ('w')]"),
        CLOSED,
        versions=_V311,
    ),
    _case(
        "mqtt_3_1_4_1_nul_in_client_id",
        "3.1.4-1 1.5.3-2",
        send("10 [<proto> 02 003c ('w' 00)]"),
        refused("20 02 00 02"),
    ),
    _case("mqtt_3_1_4_1_empty_packet", "3.1.4-1", send("10 00"), CLOSED),
)

_PUBLISH = (
    _case("mqtt_1_5_3_1_ill_formed_topic", "1.5.3-1 3.3.2-1", ONLINE, send("30 [(C328) 'x']"), CLOSED),
    _case("mqtt_1_5_3_1_surrogate_in_topic", "1.5.3-1", ONLINE, send("30 [(EDA080) 'x']"), CLOSED),
    _case("mqtt_1_5_3_1_overlong_topic", "1.5.3-1", ONLINE, send("30 [('a' C0AF) 'x']"), CLOSED),
    _case("mqtt_1_5_3_1_truncated_character", "1.5.3-1", ONLINE, send("30 [(E282) 'x']"), CLOSED),
    _case("mqtt_1_5_3_1_beyond_unicode", "1.5.3-1", ONLINE, send("30 [(F4908080) 'x']"), CLOSED),
    _case("mqtt_1_5_3_2_nul_in_topic", "1.5.3-2 4.7.3-2", ONLINE, send("30 [('a' 00 'b') 'x']"), CLOSED),
    _case("mqtt_2_3_1_1_publish_id_0", "2.3.1-1", ONLINE, send("32 [('t') 0000 'x']"), CLOSED),
    _case("mqtt_2_3_1_1_publish_qos_2_id_0", "2.3.1-1", ONLINE, send("34 [('t') 0000 'x']"), CLOSED),
    _case(
        "mqtt_2_3_1_6_puback_id",
        "2.3.1-6 2.2.2-1",
        ONLINE,
        send("32 [('t') 1234 'x']"),
        expect("40 02 12 34"),
    ),
    _case(
        "mqtt_2_3_1_6_qos_2_ids",
        "2.3.1-6 2.2.2-1 4.3.3-2",
        ONLINE,
        send("34 [('t') 4321 'x']"),
        expect("50 02 43 21"),
        send("62 02 4321"),
        expect("70 02 43 21"),
        ALIVE,
    ),
    _case("mqtt_3_3_1_4_qos_3", "3.3.1-4", ONLINE, send("36 [('t') 0001 'x']"), CLOSED),
    _case("mqtt_3_3_1_2_dup_at_qos_0", "3.3.1-2", ONLINE, send("38 [('t') 'x']"), CLOSED, versions=_V311),
    _case("mqtt_3_3_2_2_plus_in_topic", "3.3.2-2 4.7.1-1", ONLINE, send("30 [('a/+') 'x']"), CLOSED),
    _case("mqtt_3_3_2_2_hash_in_topic", "3.3.2-2 4.7.1-1", ONLINE, send("30 [('a/#') 'x']"), CLOSED),
    _case("mqtt_4_7_3_1_empty_topic", "4.7.3-1", ONLINE, send("30 [() 'x']"), CLOSED),
    _case("mqtt_3_3_2_1_topic_beyond_the_end", "3.3.2-1", ONLINE, send("30 03 0009 't'"), CLOSED),
    _case("mqtt_3_3_2_1_no_topic", "3.3.2-1", ONLINE, send("30 00"), CLOSED),
    _case("mqtt_2_3_1_1_no_room_for_the_id", "2.3.1-1", ONLINE, send("32 [('t') 01]"), CLOSED),
    _case(
        "mqtt_3_3_4_1_answer_by_qos",
        "3.3.4-1",
        ONLINE,
        send("30 [('t') 'x']"),
        ALIVE,
        send("32 [('t') 0001 'x']"),
        expect("40 02 00 01"),
        send("34 [('t') 0002 'x']"),
        expect("50 02 00 02"),
        send("62 02 0002"),
        expect("70 02 00 02"),
        ALIVE,
    ),
    _case(
        "mqtt_3_6_1_1_pubrel_flags",
        "3.6.1-1",
        ONLINE,
        send("34 [('t') 0001 'x']"),
        expect("50 02 00 01"),
        send("60 02 0001"),
        CLOSED,
        versions=_V311,
    ),
    _case("mqtt_2_2_2_2_puback_flags", "2.2.2-2", ONLINE, send("41 02 0001"), CLOSED, versions=_V311),
    _case(
        "mqtt_4_3_2_2_id_is_new_after_puback",
        "4.3.2-2",
        ONLINE,
        send("32 [('t') 0001 'x']"),
        expect("40 02 00 01"),
        send("3A [('t') 0001 'x']"),
        expect("40 02 00 01"),
        ALIVE,
    ),
    _case(
        "mqtt_4_3_3_2_pubrec_for_each_copy",
        "4.3.3-2",
        ONLINE,
        send("34 [('t') 0001 'x']"),
        expect("50 02 00 01"),
        send("3C [('t') 0001 'x']"),
        expect("50 02 00 01"),
        send("62 02 0001"),
        expect("70 02 00 01"),
        ALIVE,
    ),
    _case(
        "mqtt_4_3_3_2_pubrel_for_an_unknown_id",
        "4.3.3-2",
        ONLINE,
        send("62 02 7777"),
        expect("70 02 77 77"),
        ALIVE,
    ),
)

_SUBSCRIBE = (
    _case("mqtt_2_3_1_1_subscribe_id_0", "2.3.1-1", ONLINE, send("82 [0000 ('t') 00]"), CLOSED),
    _case("mqtt_2_3_1_1_unsubscribe_id_0", "2.3.1-1", ONLINE, send("A2 [0000 ('t')]"), CLOSED),
    _case(
        "mqtt_2_3_1_7_ids_of_acks",
        "2.3.1-7 3.8.4-1 3.8.4-2 3.10.4-4 2.2.2-1",
        ONLINE,
        send("82 [ABCD ('t') 00]"),
        expect("90 03 AB CD 00"),
        send("A2 [0102 ('t')]"),
        expect("B0 02 01 02"),
    ),
    _case(
        "mqtt_3_8_1_1_subscribe_flags",
        "3.8.1-1 2.2.2-2",
        ONLINE,
        send("80 [0001 ('t') 00]"),
        CLOSED,
        versions=_V311,
    ),
    _case("mqtt_3_8_3_1_filter_not_utf8", "3.8.3-1 1.5.3-1", ONLINE, send("82 [0001 (C328) 00]"), CLOSED),
    _case("mqtt_3_8_3_3_no_filter", "3.8.3-3", ONLINE, send("82 02 0001"), CLOSED, versions=_V311),
    _case("mqtt_3_8_3_4_qos_3", "3.8.3-4", ONLINE, send("82 [0001 ('t') 03]"), CLOSED),
    _case("mqtt_3_8_3_4_reserved_bit", "3.8.3-4", ONLINE, send("82 [0001 ('t') 04]"), CLOSED, versions=_V311),
    _case(
        "mqtt_3_8_3_4_reserved_high_bit",
        "3.8.3-4",
        ONLINE,
        send("82 [0001 ('t') 81]"),
        CLOSED,
        versions=_V311,
    ),
    _case("mqtt_3_8_3_1_no_qos_byte", "3.8.3-1", ONLINE, send("82 [0001 ('t')]"), CLOSED),
    _case(
        "mqtt_3_8_4_5_one_code_per_filter",
        "3.8.4-5 3.9.3-1",
        ONLINE,
        send("82 [0007 ('a') 00 ('b') 02 ('c') 01 ('d') 00]"),
        expect("90 06 00 07 00 02 01 00"),
    ),
    _case("mqtt_3_10_1_1_unsubscribe_flags", "3.10.1-1", ONLINE, send("A0 [0001 ('t')]"), CLOSED, versions=_V311),
    _case("mqtt_3_10_3_1_filter_not_utf8", "3.10.3-1", ONLINE, send("A2 [0001 (C328)]"), CLOSED),
    _case("mqtt_3_10_3_2_no_filter", "3.10.3-2", ONLINE, send("A2 02 0001"), CLOSED, versions=_V311),
    _case(
        "mqtt_3_10_4_5_nothing_to_remove",
        "3.10.4-5",
        ONLINE,
        send("A2 [0009 ('never/subscribed')]"),
        expect("B0 02 00 09"),
        ALIVE,
    ),
    _case(
        "mqtt_4_7_1_2_hash_within_a_level",
        "4.7.1-2 3.9.3-2",
        ONLINE,
        send("82 [0001 ('a#') 00]"),
        unheeded("90 03 00 01 80"),
    ),
    _case(
        "mqtt_4_7_1_2_hash_before_the_end",
        "4.7.1-2 3.9.3-2",
        ONLINE,
        send("82 [0001 ('a/#/b') 00]"),
        unheeded("90 03 00 01 80"),
    ),
    _case(
        "mqtt_4_7_1_3_plus_within_a_level",
        "4.7.1-3 3.9.3-2",
        ONLINE,
        send("82 [0001 ('a+') 00]"),
        unheeded("90 03 00 01 80"),
    ),
    _case(
        "mqtt_4_7_1_3_level_ends_in_plus",
        "4.7.1-3",
        ONLINE,
        send("82 [0001 ('a/b+/c') 00]"),
        unheeded("90 03 00 01 80"),
    ),
    _case(
        "mqtt_4_7_1_3_level_begins_with_plus",
        "4.7.1-3",
        ONLINE,
        send("82 [0001 ('a/+b') 00]"),
        unheeded("90 03 00 01 80"),
    ),
    _case("mqtt_4_7_3_1_empty_filter", "4.7.3-1", ONLINE, send("82 [0001 () 00]"), CLOSED),
    _case("mqtt_4_7_3_2_nul_in_filter", "4.7.3-2 1.5.3-2", ONLINE, send("82 [0001 ('a' 00 'b') 00]"), CLOSED),
)

_OTHER = (
    _case("mqtt_3_12_4_1_pingreq", "3.12.4-1 2.2.2-1", ONLINE, send("C0 00"), expect("D0 00")),
    _case("mqtt_2_2_2_2_pingreq_flags", "2.2.2-2", ONLINE, send("C1 00"), CLOSED, versions=_V311),
    _case("mqtt_4_8_0_1_pingreq_with_a_body", "4.8.0-1", ONLINE, send("C0 01 00"), CLOSED, versions=_V311),
    _case("mqtt_3_14_1_1_disconnect_flags", "3.14.1-1", ONLINE, send("E1 00"), CLOSED),
    _case("mqtt_4_8_0_1_packet_type_0", "4.8.0-1", ONLINE, send("00 00"), CLOSED),
    _case("mqtt_4_8_0_1_packet_type_15", "4.8.0-1", ONLINE, send("F0 00"), CLOSED),
    _case("mqtt_4_8_0_1_connack_from_a_client", "4.8.0-1", ONLINE, send("20 02 00 00"), CLOSED),
    _case("mqtt_4_8_0_1_suback_from_a_client", "4.8.0-1", ONLINE, send("90 03 00 01 00"), CLOSED),
    _case("mqtt_4_8_0_1_unsuback_from_a_client", "4.8.0-1", ONLINE, send("B0 02 00 01"), CLOSED),
    _case("mqtt_4_8_0_1_pingresp_from_a_client", "4.8.0-1", ONLINE, send("D0 00"), CLOSED),
    _case("mqtt_4_8_0_1_remaining_length_too_long", "4.8.0-1", ONLINE, send("30 FFFFFFFF 7F"), CLOSED),
    _case("mqtt_4_8_0_1_puback_too_short", "4.8.0-1", ONLINE, send("40 01 00"), CLOSED),
)

CASES: tuple[Case, ...] = _CONNECT + _PUBLISH + _SUBSCRIBE + _OTHER
