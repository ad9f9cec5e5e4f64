"""Topic names, filters, UTF-8."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbroker.mqtt.errors import MqttError
from shardbroker.mqtt.topics import check_topic_filter, check_topic_name, matches, parse_subscription


def allowed(check: object, text: bytes) -> bool:
    try:
        check(text, 0)  # type: ignore[operator]
    except MqttError:
        return False
    return True


@settings(max_examples=2000, deadline=None)
@given(st.binary(min_size=1, max_size=8) | st.text(max_size=4).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_utf_8_is_what_python_says_without_nul(text: bytes) -> None:
    try:
        text.decode("utf-8")
        good = bool(text) and not set(text) & set(b"\0+#")
    except UnicodeDecodeError:
        good = False
    assert allowed(check_topic_name, text) == good


@pytest.mark.parametrize("filter", [b"#", b"+", b"/", b"a/#", b"+/+", b"a/+/b", b"//", b"a//#", b"\xef\xbb\xbf"])
def test_good_filters(filter: bytes) -> None:
    assert allowed(check_topic_filter, filter)


@pytest.mark.parametrize("filter", [b"", b"a#", b"#/a", b"a/#/b", b"a+", b"+a", b"a/+b/c", b"##", b"++", b"a\0b", b"\xff"])
def test_bad_filters(filter: bytes) -> None:
    assert not allowed(check_topic_filter, filter)


def test_levels() -> None:
    check_topic_name(b"a/b/c", 3)
    for check in (check_topic_name, check_topic_filter):
        with pytest.raises(MqttError):
            check(b"a/b/c/d", 3)


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (b"a/b", (None, b"a/b")),
        (b"$share/g/a/+", (b"g", b"a/+")),
        (b"$share/g//", (b"g", b"/")),
        (b"$queue/a", (b"$queue", b"a")),
        (b"$shared/g/a", (None, b"$shared/g/a")),
    ],
)
def test_shared_filters(filter: bytes, expected: tuple[bytes | None, bytes]) -> None:
    assert parse_subscription(filter) == expected


@pytest.mark.parametrize("filter", [b"$share/g", b"$share//t", b"$share/g/", b"$share/g+/t", b"$share/#/t", b"$queue/"])
def test_bad_shared_filters(filter: bytes) -> None:
    with pytest.raises(MqttError) as error:
        parse_subscription(filter)
    assert error.value.reason_code == 0x8F


@pytest.mark.parametrize(
    ("filter", "topic", "expected"),
    [
        (b"a/#", b"a", True), (b"a/#", b"a/b/c", True), (b"a/#", b"ab", False), (b"+", b"/", False), (b"+/+", b"/", True),
        (b"/+", b"/a", True), (b"#", b"$SYS/x", False), (b"+/x", b"$SYS/x", False), (b"$SYS/#", b"$SYS/x", True),
        (b"A", b"a", False),
    ],
)  # fmt: skip
def test_matching(filter: bytes, topic: bytes, expected: bool) -> None:
    assert matches(filter, topic) == expected
