"""Cycles and ancestors, beside a search of every path."""

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.language.graph import ancestors, cycles

_NAMES = "abcdef"
_graphs = st.dictionaries(st.sampled_from(_NAMES), st.lists(st.sampled_from(_NAMES + "x"), max_size=4).map(tuple))


def _reach(graph: Mapping[str, tuple[str, ...]]) -> dict[str, set[str]]:
    """Warshall's closure: a fixed point over all pairs, nothing in common with the code under test."""
    reach = {name: set(graph.get(name, ())) for name in _NAMES + "x"}
    for middle, through in reach.items():
        for known in reach.values():
            if middle in known:
                known |= through  # noqa: PLW2901, the set itself grows
    return reach


@given(_graphs)
def test_a_cycle_is_found_exactly_when_some_name_reaches_itself(graph: Mapping[str, tuple[str, ...]]) -> None:
    reach = _reach(graph)

    found = cycles(graph)

    assert bool(found) == any(name in reach[name] for name in reach)


@given(_graphs)
def test_every_cycle_found_is_a_real_one_without_detours(graph: Mapping[str, tuple[str, ...]]) -> None:
    found = cycles(graph)

    for cycle in found:
        assert cycle[0] == cycle[-1]
        assert len(set(cycle)) == len(cycle) - 1
        assert all(need in graph[name] for name, need in pairwise(cycle))
    inside = [name for cycle in found for name in cycle[1:]]
    assert len(inside) == len(set(inside))


@given(_graphs)
def test_breaking_the_cycles_one_after_the_other_leaves_none(graph: dict[str, tuple[str, ...]]) -> None:
    for _ in range(4 * len(_NAMES)):
        for cycle in cycles(graph):
            graph[cycle[0]] = tuple(need for need in graph[cycle[0]] if need != cycle[1])

    assert cycles(graph) == []


@given(_graphs)
def test_ancestors_are_all_that_can_be_reached(graph: Mapping[str, tuple[str, ...]]) -> None:
    reach = _reach(graph)

    assert {name: ancestors(name, graph) for name in reach} == reach


def test_a_cycle_is_told_as_the_shortest_way_round() -> None:
    graph = {"start": ("a",), "a": ("b", "c"), "b": ("c",), "c": ("a",)}

    assert cycles(graph) == [("a", "c", "a")]


def test_a_step_that_needs_itself() -> None:
    assert cycles({"a": ("a",)}) == [("a", "a")]


def test_a_chain_of_thousands_is_no_problem() -> None:
    chain = {str(n): (str(n + 1),) for n in range(5000)}

    assert cycles({**chain, "5000": ("0",)})[0][0] == "0"
    assert len(ancestors("0", chain)) == 5000
