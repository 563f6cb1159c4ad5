"""What the console's views say of pools and workflows."""

import json
from typing import Any

import pytest

from fakes.console import NOW, SCALING, World, busy_world, condition, pod, pool, record, story
from tidepool_api import rules
from tidepool_api.load import Health, LoadReport
from tidepool_api.workflow_run import RunEvent, RunStory, RunSummary
from tidepool_operator.cluster.kinds import AGENT_WORKFLOW, AGENT_WORKFLOW_RUN
from tidepool_operator.console.hub import Topic, What
from tidepool_operator.console.looks import Looks
from tidepool_operator.console.views import delta, demand, depth, flows, pools
from tidepool_operator.console.views.figures import PoolFigures, by_pool
from tidepool_operator.console.views.pools import PoolFacts, State
from tidepool_operator.pool.reasons import REMEDIES, Reason
from tidepool_operator.scaling.model import Decision, Demand, Known, Refused

REMEDY = REMEDIES[Reason.IMAGE_NOT_FOUND]


@pytest.mark.parametrize(
    ("reason", "more", "state", "why"),
    [
        ("Serving", (), State.READY, "all is well"),
        ("ScaledToZero", (), State.ZERO, "at zero on purpose"),
        ("Starting", (), State.STARTING, "it comes by itself"),
        ("ImageNotFound", (), State.FAILED, "it serves nothing, and somebody has to act"),
        (
            "Loading",
            [condition("Degraded", "EngineCrashed")],
            State.FAILED,
            "it says that it loads, and the engine dies of it",
        ),
        (
            "Serving",
            [condition("Degraded", "EngineCrashed")],
            State.DEGRADED,
            "one pod serves, another one crashes",
        ),
        (
            "Serving",
            [condition("CapacityAvailable", "InsufficientAccelerators", holds=False)],
            State.DEGRADED,
            "it serves with fewer than it is to have",
        ),
        (
            "Serving",
            [condition("ScalingActive", "MetricsMissing", holds=False)],
            State.DEGRADED,
            "it serves, and nobody can scale it",
        ),
        (
            "Serving",
            [condition("ScalingActive", "ScalingOff", holds=False)],
            State.READY,
            "scaling is off on purpose",
        ),
        ("Serving", [condition("Progressing", "RollingOut")], State.CHANGING, "a rollout is under way"),
    ],
)
def test_the_state_is_what_somebody_has_to_know_first(reason: str, more: Any, state: State, why: str) -> None:
    found, _ = pools.state_of(pool("a", reason=reason, conditions=tuple(more)))

    assert found == state, why


def test_a_row_has_the_reason_and_the_remedy_apart() -> None:
    row = pools.row(PoolFacts(pool("a", reason="ImageNotFound", message=f"There is no acme/vllm:9. {REMEDY}")))

    assert (row["reason"], row["what"], row["do"]) == ("ImageNotFound", "There is no acme/vllm:9.", REMEDY)


def test_replicas_are_those_that_serve_and_those_that_are_wanted() -> None:
    pods = [pod("a", "a-0"), pod("a", "a-1", ready=False), pod("a", "a-2")]
    pods[2]["metadata"]["deletionTimestamp"] = "2026-09-01T00:00:00Z"

    row = pools.row(PoolFacts(pool("a", replicas=3), pods))
    recommended = pool("a", replicas=3, scaling={**SCALING, "mode": "Recommend"}, desiredReplicas=5)

    assert (row["now"], row["pods"], row["want"]) == (1, 2, 3)
    assert pools.row(PoolFacts(recommended))["want"] == 5


def test_figures_stand_by_pod_and_latencies_beside_their_targets() -> None:
    figures = PoolFigures(1.7321, 0.0404, {"a-0": {"kv": 0.414, "waiting": 2.0, "output_tokens": 61.0}})
    facts = PoolFacts(
        pool("a", scaling=SCALING), [pod("a", "a-0"), pod("a", "a-1")], figures, Demand(held=Known(4.0))
    )

    row = pools.row(facts)

    assert (row["kv"], row["queue"], row["out"], row["held"]) == ([0.41], [2], 61, 4)
    assert (row["ttft"], row["ttftTarget"], row["tpot"], row["tpotTarget"]) == (1.7, 1.5, 0.04, 0.05)


@pytest.mark.parametrize(
    ("scraped_at", "asked_at", "known", "why"),
    [
        (NOW - 10, NOW, True, "fresh"),
        (NOW - 130, NOW, False, "the pod was last scraped too long ago"),
        (NOW - 10, NOW - 130, False, "Prometheus was last asked too long ago"),
    ],
)
def test_old_figures_are_none(scraped_at: float, asked_at: float, known: bool, why: str) -> None:
    place = ("team", "a", "a-0")
    answers = {rules.POD_KV_USAGE: {place: 0.5}, rules.POD_SCRAPED_AT: {place: scraped_at}}

    found = by_pool(answers, asked_at, NOW).get("team/a", PoolFigures())

    assert (found.of("a-0", "kv") is not None) is known, why


def test_no_figure_of_a_view_is_one_that_json_has_no_word_for() -> None:
    answers = {
        rules.POOL_TTFT_P90: {("team", "a", ""): float("nan")},
        rules.POD_KV_USAGE: {("team", "a", "a-0"): float("inf")},
    }
    row = pools.row(
        PoolFacts(pool("a"), [pod("a", "a-0")], by_pool(answers, NOW, NOW).get("team/a", PoolFigures()))
    )

    assert json.dumps(row, allow_nan=False)
    assert "ttft" not in row


def test_the_deciders_own_word_goes_before_the_status() -> None:
    told = {"time": "2026-09-01T00:00:00Z", "replicas": 2, "reason": "Waiting", "message": "once"}
    raw = pool("a", scaling=SCALING)
    raw["status"]["scaling"] = {"lastDecision": told, "history": [told]}
    decided = Decision(NOW, 5, "KvUtilization", "now", refused=Refused(2, "QuotaExceeded", "no room"))

    leader, other = depth.decisions(PoolFacts(raw, decision=decided)), depth.decisions(PoolFacts(raw))

    assert (leader["now"]["replicas"], leader["refused"]["replicas"]) == (5, 2)
    assert other["now"]["message"] == "once"
    assert [one["replicas"] for one in leader["history"]] == [2]


def test_pods_have_their_ledger_or_what_they_wait_for() -> None:
    unplaced = pod("a", "a-1", ready=False)
    unplaced["spec"]["nodeName"] = None
    unplaced["status"]["conditions"].append(
        {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    )
    load = LoadReport(health=Health.READY, running=3, waiting=2, held=1, kv_usage=0.4567)

    found = depth.pods(PoolFacts(pool("a"), [pod("a", "a-0"), unplaced]), {"a-0": load})

    assert found["a-0"]["state"] == "ready"
    assert {"running": 3, "waiting": 2, "held": 1, "kv": 0.46, "health": "ready"}.items() <= found["a-0"][
        "ledger"
    ].items()
    assert (found["a-1"]["state"], found["a-1"]["why"]) == ("pending", "0/2 nodes are available")
    assert "ledger" not in found["a-1"]


def test_the_band_of_the_past_is_what_was_said_before_it_came() -> None:
    known = record(days=2)
    # What came last cannot change what was said of it an hour before.
    surprised = known.bins.copy()
    surprised[:, -1] *= 3.0

    found = demand.told(known, 86_400.0, 3600.0, predicts=True)
    other = demand.told(type(known)(surprised, known.last), 86_400.0, 3600.0, predicts=True)

    assert found is not None
    assert other is not None
    one, changed = found["series"]["output"], other["series"]["output"]
    assert len(found["at"]) == len(one["came"]) == len(one["low"]) == 288
    assert found["at"][-1] == known.end
    assert (one["low"][-1], one["high"][-1]) == (changed["low"][-1], changed["high"][-1])
    assert one["came"][-1] != changed["came"][-1]
    assert found["ahead"][-1] == known.end + 3600
    assert one["aheadLow"][-1] < one["aheadPoint"][-1] < one["aheadHigh"][-1]
    inside = sum(low <= came <= high for low, came, high in zip(one["low"], one["came"], one["high"], strict=True))
    assert inside / 288 > 0.75


def test_a_pool_that_predicts_nothing_has_no_band() -> None:
    found = demand.told(record(days=1), 86_400.0, 600.0, predicts=False)

    assert found is not None
    assert set(found["series"]["prompt"]) == {"came"}
    assert "ahead" not in found


def test_the_graph_has_what_each_step_waits_for() -> None:
    raw = next(iter(busy_world(1).store.all(AGENT_WORKFLOW)))

    found = {step["name"]: (step["depth"], step["needs"]) for step in flows.graph(raw)}

    assert found == {
        "plan": (0, []),
        "search": (1, ["plan"]),
        "analyse": (2, ["search"]),
        "lookup": (3, ["analyse"]),
        "write": (3, ["analyse"]),
        "notify": (4, []),
    }


def test_a_circle_of_steps_is_drawn_all_the_same() -> None:
    steps = [{"name": "a", "depends": "b", "http": {}}, {"name": "b", "depends": "a", "http": {}}]

    assert len(flows.graph({"metadata": {"name": "x"}, "spec": {"steps": steps}})) == 2


def test_a_call_is_queue_prefill_and_decode_as_far_as_they_are_known() -> None:
    bars = {
        (bar["step"], bar.get("item")): bar
        for bar in flows.story(story("r", NOW), {"team/pool-000": 1000.0})["bars"]
    }

    # Streamed: its first token came after 0.9 s, 0.3 of them in the queue.
    assert (bars["write", None]["queue"], bars["write", None]["prefill"]) == (0.3, 0.6)
    assert "guessed" not in bars["write", None]
    # Whole: 400 prompt tokens at 1,000 a second.
    assert (bars["plan", None]["queue"], bars["plan", None]["prefill"], bars["plan", None]["guessed"]) == (
        0.4,
        0.4,
        True,
    )
    assert "queue" not in bars["search", 1]
    assert (bars["search", 1]["from"], bars["search", 1]["to"]) == (2.4, 4.0)


def test_an_open_step_has_no_end_and_forgotten_ones_are_told_without_times() -> None:
    told = RunStory(
        summary=RunSummary(id="r", created=NOW),
        events=(RunEvent(step="b", phase="Running", at=NOW + 1),),
        steps=(RunEvent(step="a", phase="Succeeded", tokens=3), RunEvent(step="b", phase="Failed")),
    )

    found = flows.story(told, {})

    assert found["bars"] == [{"step": "b", "from": 1.0, "phase": "Running"}]
    assert found["rest"] == [{"step": "a", "phase": "Succeeded", "tokens": 3}]


def test_runs_of_objects_and_of_gateways_are_one_list() -> None:
    objects = [
        {"metadata": {"name": "mine"}, "status": {"run": "object-1", "phase": "Running"}},
        {"metadata": {"name": "waits"}, "status": {}},
    ]
    summaries = [RunSummary(id="object-1", created=NOW), RunSummary(id="run-2", created=NOW - 9)]

    found = flows.runs(summaries, objects, 60.0)

    assert list(found) == ["object waits", "object-1", "run-2"]
    assert found["object-1"]["object"] == "mine"
    assert found["run-2"]["deadline"] == NOW + 51


BEFORE = {"rows": {"a": {"x": 1}, "b": {"x": 1}}, "list": [1], "old": 1}


@pytest.mark.parametrize(
    ("after", "expected", "why"),
    [
        (BEFORE, None, "nothing changed"),
        ({**BEFORE, "rows": {**BEFORE["rows"], "a": {"x": 2}}}, {"put": {"rows": {"a": {"x": 2}}}}, "one member"),  # type: ignore[dict-item]
        ({**BEFORE, "rows": {"a": {"x": 1}}}, {"out": {"rows": ["b"]}}, "a member is gone"),
        ({**BEFORE, "list": [2]}, {"set": {"list": [2]}}, "lists are sent whole"),
        ({"rows": BEFORE["rows"], "list": [1]}, {"gone": ["old"]}, "a section is gone"),
        ({**BEFORE, "rows": None}, {"set": {"rows": None}}, "a section has no members any more"),
    ],
)
def test_only_what_changed_is_sent(after: dict[str, Any], expected: Any, why: str) -> None:
    assert delta.change(BEFORE, after) == expected, why


def test_a_view_in_depth_fits_into_json() -> None:
    world: World = busy_world(6)
    raw = pool("pool-000", scaling=SCALING)
    facts = PoolFacts(raw, [pod("pool-000", "pool-000-0")])

    text = json.dumps([depth.head(facts), depth.conditions(facts), depth.rollouts(facts, [])], allow_nan=False)

    assert "team/pool-000" in text
    assert world.store.keys(AGENT_WORKFLOW)


async def test_each_run_is_looked_at_once_however_many_workflows_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = busy_world(3)
    for name in ("a", "b", "c"):
        world.put(AGENT_WORKFLOW, {"metadata": {"namespace": "team", "name": name}, "spec": {"steps": []}})
    run = {
        "metadata": {"namespace": "team", "name": "a-1"},
        "spec": {"workflow": "a"},
        "status": {"phase": "Running"},
    }
    world.put(AGENT_WORKFLOW_RUN, run)
    sources = world.sources()
    every, asked = sources.store.all, []

    def counted(kind: Any) -> Any:
        asked.append(kind)
        return every(kind)

    monkeypatch.setattr(sources.store, "all", counted)
    made = await Looks(sources)(Topic(What.WORKFLOWS))

    assert asked.count(AGENT_WORKFLOW_RUN) == 1
    assert [made["workflows"][f"team/{name}"].get("objects") for name in "abc"] == [{"Running": 1}, None, None]
