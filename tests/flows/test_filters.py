"""The tree of filters finds what the broker's own comparison finds."""

from hypothesis import given
from hypothesis import strategies as st

from shardbroker.flows.filters import FilterTree
from shardbroker.mqtt.topics import matches

LEVEL = st.sampled_from(["a", "b", "", "$c"])
FILTER = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]), st.lists(st.one_of(LEVEL, st.just("+")), min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
)  # fmt: skip


@given(st.lists(st.one_of(FILTER, st.just("#")), max_size=8), st.lists(LEVEL, min_size=1, max_size=4).map("/".join))
def test_it_agrees_with_matches(filters: list[str], topic: str) -> None:
    tree: FilterTree[str] = FilterTree()
    for filter in filters:
        tree.add(filter.encode(), filter)
    assert sorted(tree.match(topic.encode())) == sorted(one for one in filters if matches(one.encode(), topic.encode()))


@given(st.lists(st.tuples(FILTER, st.booleans()), max_size=8), st.lists(LEVEL, min_size=1, max_size=4).map("/".join))
def test_removed_filters_leave_nothing(filters: list[tuple[str, bool]], topic: str) -> None:
    tree: FilterTree[int] = FilterTree()
    for number, (filter, _) in enumerate(filters):
        tree.add(filter.encode(), number)
    for number, (filter, stays) in enumerate(filters):
        if not stays:
            tree.remove(filter.encode(), number)
    left = [number for number, (filter, stays) in enumerate(filters) if stays and matches(filter.encode(), topic.encode())]
    assert sorted(tree.match(topic.encode())) == left
    for number, (filter, stays) in enumerate(filters):
        if stays:
            tree.remove(filter.encode(), number)
    assert not tree._root.children and not tree._root.rest and not tree._root.here
