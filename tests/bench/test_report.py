"""What the benchmark says about its runs: a figure must not stand that means nothing."""

from typing import Any

import pytest

from bench import report


def run(candidate: str = "gateway", work: str = "rate", **changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"candidate": candidate, "work": work, "requests": 6000, "events": 0, "errors": 0}
    base |= {"seconds": 2.0, "p50_ms": 0.5, "p99_ms": 2.0, "resident_bytes": 64 * 2**20, "wall_seconds": 2.0}
    base |= {"cpu_seconds": 0.6, "core_share": 0.3, "foreign_share": 0.0, "grown_bytes": 0}
    return base | changes


def results(*runs: dict[str, Any]) -> dict[str, Any]:
    labels = {name: name for name in dict.fromkeys(one["candidate"] for one in runs)}
    machine = {"cpu": "some", "cores": 2, "kernel": "6", "python": "3.11"}
    head = {"rates": {"rate": 3000}, "rounds": 1, "started": "now", "versions": {"a": "1"}, "machine": machine}
    return head | {"labels": labels, "runs": list(runs)}


def test_cells_are_the_median_with_the_range() -> None:
    text = report.markdown(results(*(run(cpu_seconds=seconds) for seconds in (0.6, 1.2, 0.9))))
    assert "150.0 (100.0-200.0)" in text


def test_a_peak_is_shown_only_where_the_proxys_core_was_full() -> None:
    full = run(work="peak", requests=12_345, seconds=1.0, core_share=0.97)
    starved = run("vllm-router", "peak", requests=23_456, seconds=1.0, core_share=0.8)
    text = report.markdown(results(full, starved))
    assert "12,345" in text
    assert "23,456" not in text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"errors": 1}, "one wrong answer"),
        ({"requests": 0}, "no answer at all"),
        ({"seconds": 2.2}, "requests piled up: another rate than the one that was offered"),
    ],
)
def test_worthless_runs_are_named(changes: dict[str, Any], reason: str) -> None:
    assert report.failures([run()], {"rate": 3000}) == []
    assert report.failures([run(), run(**changes)], {"rate": 3000}), reason


def test_the_page_tells_of_disturbed_runs() -> None:
    assert "gateway, rate: 20% of" in report.page(results(run(foreign_share=0.2)))
    assert "- none" in report.page(results(run()))
