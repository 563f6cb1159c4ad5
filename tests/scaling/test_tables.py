"""What the bench says of its runs."""

from collections.abc import Sequence

import pytest

from scaling.tables import Run, aims, levels, pareto, regret, results


def run(
    policy: str, blocks: Sequence[tuple[float, float, float, float]], startup: float = 300.0, seed: int = 0
) -> Run:
    """Blocks of requests, those in time, GPU hours paid and needed."""
    return Run("m-small", startup, policy, seed, 3, blocks)


OURS = run("ours", [(100, 99, 10, 8), (100, 98, 11, 9), (100, 100, 9, 7)])


def row(table: str, *begins: str) -> list[str]:
    found = [line.split(" | ") for line in table.splitlines() if line.startswith("| " + " | ".join(begins))]
    assert len(found) == 1, table
    return [cell.strip(" |") for cell in found[0]]


def test_levels_and_hours_are_of_all_blocks_and_seeds() -> None:
    other = run("ours", [(100, 97, 10, 8), (100, 96, 11, 9), (100, 98, 9, 7)], seed=1)

    told = row(levels(results([OURS, other])), "m-small", "300 s", "ours")

    assert told[3].startswith("98.00 % (")
    assert told[4:] == ["30", "3", "80 %"]


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ([(100, 100, 9, 8), (100, 100, 10, 9), (100, 100, 8, 7)], ["no", "HPA", "-"]),  # better and cheaper
        ([(100, 60, 9, 8), (100, 60, 10, 9), (100, 60, 8, 7)], ["yes", "-", "-"]),  # cheaper and far worse
        ([(100, 100, 19, 8), (100, 100, 20, 9), (100, 100, 18, 7)], ["yes", "-", "-"]),  # better and dearer
        # As good, and now cheaper, now dearer.
        ([(100, 99, 12, 8), (100, 98, 9, 9), (100, 100, 10, 7)], ["yes, within the intervals", "-", "HPA"]),
    ],
)
def test_the_front_is_told_with_its_doubt(
    other: Sequence[tuple[float, float, float, float]], verdict: list[str]
) -> None:
    told = row(pareto(results([OURS, run("HPA", other)])), "m-small", "300 s")

    assert told[2:] == verdict


def test_aims_are_told_beside_what_came() -> None:
    at_once = run("ours", [(100, 100, 8, 8), (100, 100, 8, 8), (100, 100, 8, 8)], startup=0.0)
    peak = run("static peak", [(100, 100, 20, 8), (100, 100, 20, 8), (100, 100, 20, 8)])
    knows = run("oracle", [(100, 100, 8, 8), (100, 100, 8, 8), (100, 100, 8, 8)])

    told = row(aims(results([at_once, OURS, peak, knows])), "m-small", "300 s")

    assert told[2:] == ["99.00 %", "1.00", "1.250", "80 %", "2.00", "1.25"]


def test_traces_of_an_hour_tell_the_regret() -> None:
    def trace(policy: str, late: float, hours: float) -> Run:
        return Run("azure-code", 60.0, policy, 0, 1, [(100, 100 - late, hours, 1)])

    told = row(regret(results([trace("ours", 10, 4), trace("oracle", 2, 3)])), "azure-code", "60 s", "ours")

    assert told[3:] == ["8.0", "+1.0"]
