"""What is written of live quality, and the page: losses must be said, and sections without results left out."""

import json
from typing import Any

from bench import page, quality_report, workflow_report
from sim import tables as sim_tables
from sim.score import Score


def run(candidate: str, first: float, end: float, wrong: dict[str, int] | None = None) -> dict[str, Any]:
    spread = {"p50": first / 2, "p90": first, "p99": 2 * first}
    base = {"candidate": candidate, "round": 1, "ttft": spread, "tpot": spread, "e2e": {"p90": end}}
    base |= {"hit_share": 0.2, "preemptions": 0.0, "router_cores": 0.1}
    return base | {"right": 9, "sent": 10, "wrong": wrong or {}}


def results(*runs: dict[str, Any]) -> dict[str, Any]:
    labels = {name: name for name in dict.fromkeys(one["candidate"] for one in runs)}
    facts = {"cpu": "some", "cores": 2, "kernel": "6", "python": "3.11"}
    load = {"seconds": 50.0, "warmup": 12.0, "speedup": 6.5}
    head = {"rounds": 1, "started": "now", "versions": {"a": "1"}, "machine": facts, "load": load}
    return head | {"labels": labels, "runs": list(runs)}


def simulated(**p90: float) -> dict[str, Any]:
    scores = {name.replace("_", " "): [{"ttft_p90": seconds}] for name, seconds in p90.items()}
    return {"latency": {"mooncake": {"1.0": scores}}}


def test_each_target_is_held_against_the_best_of_all_others() -> None:
    found = results(run("envoy-lr", 0.9, 2.0), run("vllm-ca", 0.5, 3.0), run("tidepool", 0.4, 2.5))

    first, end = quality_report.verdicts(found)

    assert first == "TTFT p90: 0.40 s, the best of the others 0.50 s (vllm-ca): held; best in 1 of 1 rounds"
    assert end == "end to end p90: 2.50 s, the best of the others 2.00 s (envoy-lr): MISSED; best in 0 of 1 rounds"


def test_own_policies_are_no_peers() -> None:
    found = results(run("envoy-lr", 0.9, 3.0), run("tidepool", 0.4, 2.0), run("tidepool-ll", 0.3, 1.0))

    assert all("held" in line for line in quality_report.verdicts(found))


def test_wrong_answers_are_told() -> None:
    found = results(run("envoy-lr", 0.9, 3.0, {"status 503": 4}))

    assert quality_report.verdicts(found) == ["answers that were wrong: envoy-lr: {'status 503': 4}"]


def test_a_router_without_a_right_answer_is_never_the_best() -> None:
    broken = run("envoy-rr", 0.1, 0.1) | {"ttft": {}, "e2e": {}, "right": 0}

    assert (
        "(envoy-lr)"
        in quality_report.verdicts(results(broken, run("envoy-lr", 0.9, 3.0), run("tidepool", 0.4, 2.0)))[0]
    )


def test_orders_count_the_pairs_that_agree() -> None:
    found = results(run("envoy-rr", 2.0, 3.0), run("vllm-ca", 1.0, 2.0), run("tidepool", 0.5, 2.0))

    lines = quality_report.orders(found, simulated(round_robin=9.0, cache_aware=3.0, Predicted=4.0))

    assert lines[0].endswith("tidepool (0.50 s), vllm-ca (1.00 s), envoy-rr (2.00 s)")
    assert lines[1].endswith("vllm-ca (3.00 s), tidepool (4.00 s), envoy-rr (9.00 s)")
    assert lines[2].startswith("2 of 3 pairs")
    assert len(quality_report.orders(found, {})) == 1


def test_the_simulators_tables_are_written_from_their_json() -> None:
    score = Score(0.1, 0.234, 0.4, 0.02, 0.03, 1.0, 0.3, 0, 0, 0, 0.2)
    scores = {"round robin": [score], "Predicted": [score]}
    tables = sim_tables.Tables([11], {"mooncake": 4.5}, {"mooncake": {1.0: scores}})

    text = page.render({"sim": json.loads(json.dumps(tables.as_dict()))})

    assert sim_tables.markdown(tables) in text
    assert "0.23" in text


def test_a_figure_that_the_simulator_misses_is_told_on_the_page() -> None:
    figures = [
        {"load": "chat", "figure": "ttft p50", "real": [0.1, 0.1, 0.1], "simulated": simulated}
        for simulated in (0.119, 0.079)
    ]

    text = page.render({"sim-validation": {"date": "2026-01-02", "figures": figures}})

    assert ": 1 of 2 do." in text
    assert text.count("MISSED") == 1


def test_the_page_has_what_was_measured_and_no_more() -> None:
    text = page.render({"quality": results(run("tidepool", 0.4, 2.0))})

    assert "## Live quality" in text
    assert "## Soak" not in text
    assert "## Cost" not in text


def test_policies_that_stand_in_another_order_live_are_a_miss() -> None:
    def row(mean: float, late: float) -> dict[str, float]:
        return {"mean": mean, "p95": 9.0, "worst": 9.0, "late": late, "quality": 0.7}

    simulated = {"first": row(3.0, 0.2), "shortest": row(2.0, 0.1), "ours": row(1.0, 0.0)}
    live = {"first": row(9.0, 0.2), "shortest": row(4.0, 0.1), "ours": row(5.0, 0.0)}

    mean, late = workflow_report.live_verdicts({"live": live, "simulated": simulated})

    assert "ours < shortest < first" in mean
    assert mean.endswith("MISSED, live shortest < ours < first")
    assert late.endswith("held")


def test_what_the_store_takes_is_not_the_engines() -> None:
    figures = {"cpu_ms_a_step": 1.0, "added_ms_a_step_p99": 30.0, "beyond_commits_ms_p99": 10.5, "peak_mb": 100.0}

    cpu, added, memory = workflow_report.verdicts({"SQLite": figures})

    assert cpu.endswith("held")
    assert added == "SQLite: 10.50 ms added a step at p99 beyond the store's commits, at most 10: MISSED"
    assert memory.endswith("held")


def test_memory_that_grows_is_told_and_that_which_wavers_is_not() -> None:
    flat, grows = {"last_mb": 140.0, "first_mb": 140.0}, {"last_mb": 310.0, "first_mb": 140.0}
    found = {"A": flat | {"mb_a_minute": 0.05}, "B": grows | {"mb_a_minute": 0.5}}

    assert workflow_report.growth_verdicts(found) == [
        "A: 140.00 MB at the end, at most 300.0: held",
        "A: 3.00 MB more an hour, at most 7.0: held",
        "B: 310.00 MB at the end, at most 300.0: MISSED",
        "B: 30.00 MB more an hour, at most 7.0: MISSED",
    ]
