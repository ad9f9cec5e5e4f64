"""Calls with the answers that EMQX 5.8.9 gives."""

import math
from typing import Any

import pytest

from shardbroker.rules.functions.equality import identical
from shardbroker.rules.values import UNDEFINED, EvaluationError
from tests.rules.functions.expressions import call

RAISES = object()

ANSWERS: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "abs": [((-2.5,), RAISES), ((True,), RAISES)],
    "acosh": [((0,), RAISES)],
    "ascii": [(("你",), 228), (("",), RAISES)],
    "base64_decode": [(("y0jN",), b"\xcb\x48\xcd"), (("aGVs\nbG8=",), "hello"), (("a",), RAISES), ((1,), RAISES)],
    "bin2hexstr": [(("\x01\x02",), "0102"), (("\x01\x02", "🧠"), "🧠0102"), ((1,), RAISES)],
    "bool": [((1.0,), True), ((0,), False), ((3,), RAISES), (("True",), RAISES), ((UNDEFINED,), RAISES)],
    "bytesize": [((["ab", 1, ["c"]],), 4), ((1,), RAISES)],
    "ceil": [((-1.2,), -1), (("1",), RAISES)],
    "coalesce": [(([],), UNDEFINED), (([UNDEFINED, 42, UNDEFINED],), 42), ((None, 1), None)],
    "coalesce_ne": [((["", UNDEFINED],), UNDEFINED), (([], 2), 2)],
    "concat": [(("a", None), "anull"), (("a", UNDEFINED), "aundefined"), (([1, "b", 2.0],), "1b2.0"), (("a", b"\xff"), RAISES)],
    "contains": [((1, [1.0]), False), (({"a": "b"}, [{"a": 1}, {"a": "b"}]), True), ((1, [True]), False), ((1, "1"), RAISES)],
    "date_to_unix_ts": [
        (("nanosecond", "+08:00", "%Y-%m-%d %H-%M-%S.%3N", "2024-03-01 10:30:38.333"), 1709260238333000000),
        (("second", "%Y-%m-%d %H:%M:%S", "2022-05-26 10-40-12"), 1653561612),
        (("second", "%Y-%m-%d %H:%M:%S", "2100-03-01 12:44:31"), 4107588271),
        (("second", "%Y-%m-%d %H:%M:%S.%3N%:z", "2024-02-23 15:00:00.123+08:00"), 1708671600),
        (("second", "%Y-%m-%d %H:%M:%S", "2022-059999-26 10:40:12"), RAISES),
        (("second", "%y-%m-%d %H:%M:%S", "2022-05-26 10:40:12"), RAISES),
        (("second", "%Y-%d %H:%M:%S", "2022-32 10:40:12"), RAISES),
        (("second", "%Y-%m-%d %H:%M:%S", "2023-02-29 10:40:12"), RAISES),
        (("day", "%Y", "2023"), RAISES),
    ],
    "div": [((7, -2), -3), ((7, 0), RAISES), ((7.0, 2), RAISES)],
    "find": [
        (("acbcd", "c"), "cbcd"),
        (("acbcd", "c", "trailing"), "cd"),
        (("acbcd", "e"), ""),
        (("", ""), ""),
        ((1, "a"), RAISES),
    ],
    "first": [(([],), RAISES)],
    "float": [
        (("3.14e+4",), 31400.0),
        (("20",), 20.0),
        (("1e3",), RAISES),
        ((".5",), RAISES),
        ((True,), RAISES),
        (("1.0e400",), RAISES),
    ],
    "float2str": [
        ((20.2, 10), "20.2"),
        ((20.2, 16), "20.1999999999999993"),
        ((0.1, 25), "0.1000000000000000055511151"),
        ((1, 2), RAISES),
    ],
    "fmod": [((-7, 3), -1.0), ((1, 0), RAISES)],
    "format_date": [
        (("millisecond", "+00:00", "%Y-%m-%d %H:%M:%S.%3N%z", 1700000000123), "2023-11-14 22:13:20.123+0000"),
        (("second", "-02:30", "%H:%M %::z", 0), "21:30 -02:30:00"),
        (("second", "x", "%H", 0), RAISES),
    ],
    "hash": [(("sha1", "abc"), "a9993e364706816aba3e25717850c26c9cd0d89d"), (("none", "abc"), RAISES)],
    "hexstr2bin": [
        (("6364f",), "\x06\x36\x4f"),
        (("0B5", "0B"), "\x05"),
        (("zz",), RAISES),
        (("0x63", "ab"), RAISES),
        (("6 3",), RAISES),
    ],
    "int": [
        ((-1.9,), -2),
        (("3.1415e2",), 314),
        (("+200",), 200),
        ((True,), 1),
        ((None,), RAISES),
        (("-100+200",), RAISES),
        (([49],), 1),
    ],
    "is_empty": [(([1],), False), (("{}",), True), ((1,), RAISES), ((UNDEFINED,), RAISES)],
    "is_null": [((None,), False), (("undefined",), False)],
    "is_num": [((True,), False), (("",), False)],
    "is_str": [((b"\xff",), True), ((True,), False)],
    "join_to_sql_values_string": [
        (([1, "a", {"a": 1}, [97, 98], "it's", "\\"],), "1, 'a', '{\"a\":1}', '[97,98]', 'it\\'s', '\\\\'")
    ],
    "join_to_string": [
        ((", ", [1, "c", {"a": 1}, [1, 2], [{"key": 1, "value": 2}]]), '1, c, {"a":1}, [1,2], [{"value":2,"key":1}]')
    ],
    "json_decode": [(("18446744073709551617",), 2**64 + 1), (('{"a":',), RAISES), (("NaN",), RAISES), (({},), RAISES)],
    "json_encode": [
        ((UNDEFINED,), '"undefined"'),
        (({"a": [1.0, None]},), '{"a":[1.0,null]}'),
        ((2**65,), str(2**65)),
        ((b"\xff",), RAISES),
    ],
    "length": [(("ab",), RAISES)],
    "log": [((0,), RAISES)],
    "lower": [((True,), "true"), ((None,), RAISES), ((UNDEFINED,), RAISES), ((1,), RAISES)],
    "map": [((1.0,), RAISES), (("[1]",), RAISES), (([],), {}), (("a",), RAISES)],
    "map_get": [
        (("a.c", {"a": {"b": 1}}), UNDEFINED),
        (("a.b", {"a": '{"b": 1}'}), 1),
        (("a.b", {"a": None}, 0), 0),
        (("a", 1), UNDEFINED),
    ],
    "map_keys": [(('{"b":1,"a":2}',), ["a", "b"])],
    "map_put": [(("a.c", 1, {"a": {"b": 1}}), {"a": {"b": 1, "c": 1}}), (("a", UNDEFINED, {}), {}), (("a", 1, "x"), {"a": 1})],
    "map_size": [(([],), 0), (("{}",), 0), ((1,), RAISES)],
    "map_to_redis_hset_args": [
        (({"a": 1.1},), ["map_to_redis_hset_args", "a", "1.1"]),
        (({"a": True, "b": [], 3: 4},), ["map_to_redis_hset_args", "a", "true"]),
        (("not json",), ["map_to_redis_hset_args"]),
    ],
    "mget": [(("a", '{"a" : 1}'), 1), (("a.b", {"a.b": 1}), 1), (("x", {}), UNDEFINED), ((["a", "b"], {"a": {"b": 1}}), 1)],
    "mod": [((-7, 3), -1), ((7, -3), 1)],
    "mput": [(("a", 2, '{"a" : 1}'), {"a": 2}), ((["a", "b"], 2, {"c": 1}), {"c": 1, "a": {"b": 2}})],
    "nth": [((5, [1]), RAISES), ((0, [1]), RAISES)],
    "pad": [(("abc", 5, "both", "ex"), "exabcex"), (("ab", 5, "both"), " ab  "), (("abc", 0), "abc"), (("a", 2, "middle"), RAISES)],
    "power": [((2, -1), 0.5), ((10, 400), RAISES)],
    "regex_extract": [
        (("Hello, world!", r"(\w+).*\s(\w+)"), ["Hello", "world"]),
        (("x", r"(\d+)"), []),
        (("b", "(a)?(b)(c)?"), ["", "b"]),
    ],
    "regex_match": [(("a\nb", "a.b"), False), (("", ".*"), True), (("bcd", "(ac)+"), False), (("a", "("), RAISES)],
    "regex_replace": [(("accbcd", "c+", "[&]"), "a[cc]b[c]d"), (("ab", "(a)(b)", r"\2\g1\&"), "ba&"), (("", "c.*", "e"), "")],
    "replace": [(("ab c  ", " ", "-", "trailing"), "ab c -"), (("abc", "", "-"), "abc"), ((None, "a", "b"), RAISES)],
    "rfc3339_to_unix_ts": [(("2024-02-23T15:56:30.87Z", "millisecond"), 1708703790870), (("2024-02-23",), RAISES)],
    "round": [((2.5,), 3), ((-2.5,), -3), ((0.49999999999999994,), 0)],
    "split": [
        (("/a/b//c/", "/"), ["a", "b", "c"]),
        (("", "/", "notrim"), [""]),
        (("/a/b/c", "/", "leading"), ["a/b/c"]),
        (("a/b//c/", "/", "trailing_notrim"), ["a/b//c", ""]),
        (("a", "/", "none"), RAISES),
    ],
    "sprintf": [
        (("Name: ~ts, Count: ~p", "ABC", 2), "Name: ABC, Count: 2"),
        (
            ("~0p|~10.3.0f|~-5s|~3s|~.16B|~e~n", {"a": [1]}, 1.5, "ab", "abcd", 255, 3.5),
            '#{<<"a">> => [1]}|000001.500|ab   |abc|FF|3.50000e+0\n',
        ),
        (("~s", 1), RAISES),
        (("~s",), RAISES),
        (("x", 1), RAISES),
    ],
    "str": [
        ((2.0,), "2.0"),
        ((1.0e-7,), "0.0000001"),
        (([97, 98],), "ab"),
        ((None,), "null"),
        (({"a": 1},), '{"a":1}'),
        ((1e300,), RAISES),
    ],
    "str_utf16_le": [(([128075],), "[\x001\x002\x008\x000\x007\x005\x00]\x00"), (("👋",), b"\x3d\xd8\x4b\xdc")],
    "strlen": [(("你好",), 2), (("e\u0301\r\n",), 2), ((1,), RAISES)],
    "subbits": [
        ((b"\xff", 2, 8), 127),
        ((b"\xff", 9, 1), UNDEFINED),
        ((b"\xff", 0, 1), UNDEFINED),
        ((b"\xff\xff\xfe\x38", 1, 32, "integer", "signed", "big"), -456),
        ((bytes.fromhex("4015333333333333"), 1, 64, "float"), 5.3),
        ((bytes.fromhex("3333333333331540"), 1, 64, "float", "signed", "little"), 5.3),
        (("abc", 1, 8, "bits"), "a"),
        ((b"\x34\x20", 1, 12, "integer", "unsigned", "little"), 0x234),
        (("abc", 1, 8, "float"), RAISES),
        (("abc", 1, 8, "text"), RAISES),
    ],
    "sublist": [((4, 2, [1, 2, 3, 4]), [4]), ((5, 2, [1, 2]), []), ((10, [1]), [1]), ((0, 1, [1]), RAISES), ((-1, [1]), RAISES)],
    "substr": [(("abcdef", 9), ""), (("abcd", 1, 2), "bc"), (("a", -1), RAISES)],
    "term_decode": [
        ((b"\x83m\x00\x00\x00\x03abc",), "abc"),
        ((b"\x83h\x00",), RAISES),
        ((b"\x83m\xff\xff\xff\xff",), RAISES),
        (("x",), RAISES),
    ],
    "timezone_to_second": [(("+00:01:42",), 102), ((42,), 42), ((UNDEFINED,), 0), (("+24:00",), RAISES), (("8",), RAISES)],
    "tokens": [
        ((" /a/ b /c", " /"), ["a", "b", "c"]),
        (("a ,b,c\r\n", ", "), ["a", "b", "c\r\n"]),
        (("a,b\r\n,c\n", ",", "nocrlf"), ["a", "b", "c"]),
        (("哈哈, 你好", ", "), ["哈哈", "你好"]),
        (("a\r\nb", "\n"), ["a\r\nb"]),
    ],
    "trim": [((" \t\u2028a\xa0 ",), "a\xa0")],
    "unescape": [
        (("\\x20AC",), "€"),
        (("hej\\x0Ahej",), "hej\nhej"),
        (("\\L",), RAISES),
        (("\\xG1",), RAISES),
        (("\\x11000000",), RAISES),
        (("a\\",), "a\\"),
    ],
    "unzip": [((bytes.fromhex("cb48cdc9c90700"),), "hello"), (("x",), RAISES), ((bytes.fromhex("cb48"),), RAISES)],
    "upper": [(("ß",), "SS")],
}


@pytest.mark.parametrize(
    ("name", "arguments", "answer"), [(name, arguments, answer) for name, rows in ANSWERS.items() for arguments, answer in rows]
)
def test_answers(name: str, arguments: tuple[Any, ...], answer: Any) -> None:
    if answer is RAISES:
        with pytest.raises((EvaluationError, ArithmeticError, ValueError)):
            call(name, *arguments)
    elif isinstance(answer, float):
        assert math.isclose(call(name, *arguments), answer, rel_tol=1e-12)
    else:
        assert identical(call(name, *arguments), answer), call(name, *arguments)


def test_bits_that_fill_no_byte() -> None:
    bits = call("subbits", bytes.fromhex("9F4E58"), 1, 6, "bits", "unsigned", "big")
    assert call("bin2hexstr", bits) == "27"
    assert call("bitsize", bits) == 6
    assert call("subbits", bits, 2, 5) == 7
    assert not call("is_str", bits)


@pytest.mark.parametrize(
    "value", ["abc", {"a": 1}, {"3": [1, 2, 4]}, [1.5, None, True, 2**70, -5, b"\xff", UNDEFINED], -(2**31) - 1, [], [300]]
)
def test_terms_come_back(value: Any) -> None:
    assert identical(call("term_decode", call("term_encode", value)), value)


@pytest.mark.parametrize("unit", ["second", "millisecond", "microsecond", "nanosecond"])
def test_times_come_back(unit: str) -> None:
    now = call("now_timestamp", unit)
    assert call("rfc3339_to_unix_ts", call("unix_ts_to_rfc3339", now, unit), unit) == now
