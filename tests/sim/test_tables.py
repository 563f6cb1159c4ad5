"""What the tables say of their figures: targets held and missed, ratios paired by seed, failures shown."""

from dataclasses import replace

import pytest

from sim import tables as quality
from sim.candidates import OURS
from sim.score import Score
from sim.search import ROUND_ROBIN
from sim.steptime import least_squares

GOOD = Score(0.1, 1.0, 2.0, 0.02, 0.03, 9.0, 0.5, 0, 0, 0, 0.13)


def scores(*p90: float) -> list[Score]:
    return [replace(GOOD, ttft_p90=seconds) for seconds in p90]


def made(ours: float, peer: float, load: str = "mooncake") -> quality.Tables:
    tables = quality.Tables([1, 2], {load: 4.0})
    tables.latency[load] = {
        1.0: {OURS: scores(ours, ours), "KubeAI": scores(peer, peer), ROUND_ROBIN: scores(10.0, 10.0)}
    }
    return tables


@pytest.mark.parametrize(
    ("load", "ours", "held", "reason"),
    [
        ("mooncake", 4.5, True, "0.45 of round robin's is asked where prompts share beginnings"),
        ("mooncake", 4.6, False, "and this is more"),
        ("decode", 9.9, True, "elsewhere it must not be worse"),
        ("decode", 10.1, False, "and this is"),
    ],
)
def test_the_target_at_the_knee(load: str, ours: float, held: bool, reason: str) -> None:
    (verdict,) = quality.verdicts(made(ours, 8.0, load))
    assert verdict.startswith("held" if held else "MISSED"), reason
    assert "best peer KubeAI 0.80" in verdict


def test_throughput_is_compared_with_the_best_peer_and_never_with_ourselves() -> None:
    tables = made(4.0, 8.0)
    tables.throughput = {"mooncake": {OURS: [6.0, 6.0], "LeastLoad": [9.0, 9.0], "KubeAI": [5.0, 5.0]}}
    verdicts = quality.verdicts(tables)
    assert any("throughput 1.20 of the best peer's (KubeAI)" in line for line in verdicts)
    assert verdicts[-1].startswith("held: throughput on one load")


def test_ratios_are_paired_by_seed() -> None:
    tables = made(4.0, 8.0)
    tables.gateways = {"mooncake": {OURS: scores(8.0, 2.0)}}
    tables.latency["mooncake"][1.0][OURS] = scores(8.0, 2.0)
    assert any("two gateways 1.00 of one" in line for line in quality.verdicts(tables))


def test_a_fault_is_missed_when_one_peer_is_ahead() -> None:
    tables = made(4.0, 8.0)
    tables.faults = {"a fault": {"mooncake": {OURS: scores(3.0, 3.0), "KubeAI": scores(2.0, 2.0)}}}
    assert any(line.startswith("MISSED: a fault, mooncake") for line in quality.verdicts(tables))
    tables.faults["a fault"]["mooncake"]["KubeAI"] = [replace(GOOD, failed=3), GOOD]
    assert "3 failed" in quality.markdown(tables)


def test_who_was_not_run_on_a_load_has_no_figure_there() -> None:
    tables = made(4.0, 8.0)
    tables.throughput = {"mooncake": {OURS: [6.0]}, "agents": {OURS: [7.0], "KubeAI": [5.0]}}
    tables.faults = {"a fault": {"mooncake": {OURS: scores(3.0)}, "agents": {"KubeAI": scores(2.0)}}}
    lines = quality.markdown(tables).splitlines()

    assert "| KubeAI | - | 5 (5 to 5) |" in lines
    assert "| KubeAI | - | 2 (2 to 2) |" in lines
    assert f"| {OURS} | 3 (3 to 3) | - |" in lines


def test_figures_of_every_part_go_into_the_json() -> None:
    told = made(4.0, 8.0).as_dict()
    assert told["latency"]["mooncake"]["1.0"][OURS][0]["ttft_p90"] == 4.0
    assert told["knees"] == {"mooncake": 4.0}


def test_least_squares_finds_what_made_the_samples_and_never_less_than_nothing() -> None:
    rows = [(1.0, float(a), float(b)) for a in (1, 2, 4, 8) for b in (10, 1000, 100_000)]
    found = least_squares([(row, 0.008 + 0.0002 * row[1] + 7e-8 * row[2]) for row in rows])
    assert found == pytest.approx([0.008, 0.0002, 7e-8], rel=1e-6)
    falling = least_squares([((1.0, float(n)), 1.0 - 0.01 * n) for n in range(10)])
    assert falling[1] == 0.0
