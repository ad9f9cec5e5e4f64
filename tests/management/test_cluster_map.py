"""Rows of core nodes and replicants, made of what each node knows of itself, which may be anything."""

from typing import Any

import pytest

from shardbroker.management.cluster_map import rows
from shardbroker.management.cluster_view import Peer


def peer(name: str, state: str = "running") -> Peer:
    return Peer(name, 1, f"{name}:5370", state, 1, "up" if state == "running" else "down", "normal", 0, 0)


def own(role: str, serves: str = "", uses: str = "", linked: Any = ()) -> dict[str, Any]:
    return {"role": role, "serves": serves, "uses": uses, "linked": [*linked]}


def test_a_replicant_is_at_the_core_node_whose_etcd_it_uses() -> None:
    answers = {
        "r": own("replicant", uses="http://b:1", linked=("a", "b")),
        "b": own("core", "http://b:1", "http://b:1", ("a", "r")),
        "a": own("core", "http://a:1", "http://a:1", ("b", "r")),
        "s": own("replicant", uses="http://gone:1"),
        "t": own("replicant"),
    }
    found = rows([peer(name) for name in "rbst"], answers, {})
    assert [(row["node"], row["role"], row["cores"]) for row in found] == [
        ("a", "core", ["b"]), ("b", "core", ["a"]), ("r", "replicant", ["b"]), ("s", "replicant", ["http://gone:1"]),
        ("t", "replicant", []),
    ]  # fmt: skip


def test_a_node_that_does_not_answer_has_its_reason() -> None:
    found = rows([peer("b", "stopped"), peer("c")], {"a": own("core")}, {"b": "its link is down", "c": "it did not respond"})
    assert [(row["node"], row["role"], row["state"], row["reason"]) for row in found] == [
        ("a", "core", "running", ""), ("b", "unknown", "stopped", "its link is down"),
        ("c", "unknown", "running", "it did not respond"),
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [{}, {"role": 5}, {"role": "core", "linked": 7}, {"role": "core", "serves": [1]}, "text", None])
def test_an_answer_of_another_shape_is_harmless(answer: Any) -> None:
    found = rows([peer("b")], {"a": own("core", linked=["b"]), "b": answer}, {})
    assert {row["node"] for row in found} == {"a", "b"}
