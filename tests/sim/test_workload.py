"""The loads are what their sources say, the same for a seed, and their bodies share what their tokens do."""

from itertools import takewhile

import pytest

from sim.request import NAME_TOKENS, body_of
from sim.search import KNEES, highest
from sim.workload import LOADS, SHARING, TEST_SEEDS, Load, agents, mooncake

COUNTS = {"mooncake": 1500, "agents": 800, "azure-code": 300, "decode": 300, "tenants": 300}


def small(name: str, seed: int = 1, count: int = 0) -> Load:
    return LOADS[name](seed, count or COUNTS[name])  # type: ignore[call-arg]


@pytest.mark.parametrize("name", LOADS)
def test_a_load_is_drawn_by_its_seed_alone(name: str) -> None:
    def told(load: Load) -> list[object]:
        return [(at, r.prompt_tokens, r.output_tokens, r.pieces) for at, r in load.arrivals]

    assert told(small(name, count=200)) == told(small(name, count=200))
    assert told(small(name, count=200)) != told(small(name, seed=2, count=200))


@pytest.mark.parametrize("name", LOADS)
def test_a_rate_stretches_time_and_changes_nothing_else(name: str) -> None:
    load = small(name)
    fast = load.at(10.0)
    assert fast[-1][0] == pytest.approx((len(fast) - 1) / 10.0)
    assert [request for _, request in fast] == [request for _, request in load.arrivals]
    times = [at for at, _ in fast]
    assert times == sorted(times)


@pytest.mark.parametrize("name", LOADS)
def test_pieces_and_names_cover_the_prompt(name: str) -> None:
    for _, request in small(name).arrivals:
        assert len(request.pieces) == -(-request.prompt_tokens // 512)
        assert len(request.names) == request.prompt_tokens // NAME_TOKENS


@pytest.mark.parametrize("name", [*SHARING, "tenants"])
def test_some_prompts_share_more_than_a_beginning(name: str) -> None:
    seen: set[int] = set()
    known = total = 0
    for _, request in small(name).arrivals:
        known += len(list(takewhile(seen.__contains__, request.pieces[1:])))
        total += len(request.pieces)
        seen.update(request.pieces)
    assert known / total > 0.08


def test_agents_are_750_prompts_of_150_groups_again_and_again() -> None:
    requests = [request for _, request in agents(1, 1500).arrivals]
    assert len({tuple(r.pieces) for r in requests}) == 750
    assert len({tuple(r.pieces[:12]) for r in requests}) == 150
    assert requests[0].pieces == requests[750].pieces
    assert {(r.prompt_tokens, r.output_tokens, r.max_tokens) for r in requests} == {(7200, 1000, 1000)}


def test_mooncakes_ticks_are_spread_over_their_three_seconds() -> None:
    times = [at for at, _ in mooncake(1, 300).arrivals]
    assert len(set(times)) == 300


def test_bodies_share_bytes_as_far_as_prompts_share_tokens() -> None:
    requests = [request for _, request in small("agents").arrivals]
    one = requests[0]
    other = next(r for r in requests[1:] if r.pieces[:12] == one.pieces[:12] and r.pieces != one.pieces)
    stranger = next(r for r in requests if r.pieces[0] != one.pieces[0])
    a, b, c = body_of(one), body_of(other), body_of(stranger)
    same = next(i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    assert same > 12 * 512 * 3
    assert next(i for i, (x, y) in enumerate(zip(a, c, strict=False)) if x != y) < 200


def test_the_product_reads_the_bodies_as_it_would_those_of_a_client() -> None:
    request = small("agents").arrivals[0][1]
    facts = request.facts
    assert facts.stream
    assert facts.max_tokens == 1000
    assert 3.0 < facts.prompt_bytes / request.prompt_tokens < 5.0


def test_seeds_for_tuning_are_not_those_of_the_tables() -> None:
    from sim.tables import TRAINING_SEEDS, test_seeds

    assert not set(TRAINING_SEEDS) & set(test_seeds(20))
    assert max(TRAINING_SEEDS) < TEST_SEEDS
    assert set(KNEES) == set(LOADS)


def test_the_search_ends_within_its_tolerance_from_both_sides() -> None:
    for start in (0.5, 7.0, 7.3, 90.0):
        assert highest(lambda rate: rate <= 7.25, start, tolerance=0.01) == pytest.approx(7.25, rel=0.0101)
    assert highest(lambda rate: False, 5.0) == 0.0
