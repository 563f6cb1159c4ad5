"""Which line of the operator guards each public report, and the proof: without the line its test is red.

`python tests/operator/reports/guards.py [REPORT ...]` copies the operator, breaks one line at a time and runs the
test that must fail then; some need a real API server, so it takes minutes. test_guards.py holds the table against
the code.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is a script, too

from scripted.guards import ROOT, TESTS, Guard, prove

__all__ = ["GUARDS", "REPORTS", "ROOT", "TESTS"]

# The numbers of the public reports of other operators; 5, 9, 12 and 13 were never given. From 101 on those of
# other autoscalers, of which 104 and 105 were never given; 112 has those without a number.
REPORTS = (1, 2, 3, 4, 6, 7, 8, 10, 11, 14, 15, 101, 102, 103, 106, 107, 108, 109, 110, 111, 112)

_POOL = "operator/tidepool_operator/pool"
_PLACES = "            surge = min(surge, max(new.replicas + max(0, space.places), base + allowed.asks))\n".strip()
_ENGINE_ALONE = "    engine, _ = apart(template)\n"
_BORN_WITH = "router = made_with(new.deployment) if new.deployment is not None and keeps else None"
_SCALING = "operator/tidepool_operator/scaling"
_ON_READY_ONES = 'return Need("waiting", count * (1 + more)'
_FAILURES = "operator/scaling/test_published_failures.py"
_FORECASTERS = "operator/scaling/test_published_forecaster_failures.py"
GUARDS = (
    Guard(
        1, "a surge that finds no accelerator waits for ever",
        "operator/pool/test_rollout.py::test_where_nodes_are_known_no_pod_waits_for_a_place",
        f"{_POOL}/rollout.py", _PLACES, "pass",
    ),
    Guard(
        1, "the same before a real API server",
        "operator/cluster/test_rollouts.py::test_on_a_full_node_one_pod_goes_first",
        f"{_POOL}/rollout.py", _PLACES, "pass",
    ),
    Guard(
        1, "where nodes are not ours to see, the scheduler's word counts",
        "operator/pool/test_rollout.py::test_without_room_pods_are_replaced_one_at_a_time",
        f"{_POOL}/rollout.py", "return Allowance(surge, 1 if short else 0)", "return Allowance(surge, 0)",
    ),
    Guard(
        1, "no surge and nothing unavailable can never roll",
        "api/test_rules.py::test_rule_refuses_with_the_field_and_the_remedy",
        "crds/tidepool_api/placement.py",
        'holds=lambda rollout: not {rollout.max_surge, rollout.max_unavailable} <= {0, "0%"},',
        "holds=lambda rollout: True,",
    ),
    Guard(
        2, "a count that others scale is sent back to its default",
        "operator/reports/test_scalers.py::test_a_count_that_others_scale_outlives_whatever_else_is_applied",
        f"{_POOL}/plan.py", "replicas = new.replicas if new.deployment else goal", "replicas = 1",
    ),
    Guard(
        2, "the same with a real autoscaler",
        "operator/cluster/test_deletion.py::test_an_hpa_drives_a_pool_without_scaling",
        f"{_POOL}/plan.py", "replicas = new.replicas if new.deployment else goal", "replicas = 1",
    ),
    Guard(
        3, "a scaler finds no selector",
        "operator/reports/test_scalers.py::test_a_scaler_finds_the_pools_selector",
        f"{_POOL}/status.py", '        "selector": selector(pool),\n', "",
    ),
    Guard(
        3, "the same through the scale subresource",
        "operator/cluster/test_operator.py::test_a_pool_may_be_scaled_by_others",
        f"{_POOL}/status.py", '        "selector": selector(pool),\n', "",
    ),
    Guard(
        4, "old pods make a changed pool ready",
        "operator/pool/test_plan.py::test_old_pods_never_make_a_changed_pool_ready",
        f"{_POOL}/conditions.py", "    if new is not None and new.ready:\n        message = f\"{min(",
        "    new = next((old for old in picture.olds if old.ready), new)\n"
        "    if new is not None and new.ready:\n        message = f\"{min(",
    ),
    Guard(
        4, "the same before a real API server",
        "operator/cluster/test_operator.py::test_a_spec_change_rolls_over",
        f"{_POOL}/conditions.py", "    if new is not None and new.ready:\n        message = f\"{min(",
        "    new = next((old for old in picture.olds if old.ready), new)\n"
        "    if new is not None and new.ready:\n        message = f\"{min(",
    ),
    Guard(
        6, "a pool is ready while its engines crash",
        "operator/reports/test_scalers.py::test_a_pool_whose_engines_crash_is_not_ready",
        f"{_POOL}/fleet.py", 'ready=ready.get("status") == "True",', 'ready=status.get("phase") == "Running",',
    ),
    Guard(
        7, "a change of the spec reaches no pod",
        "operator/pool/test_revision.py::test_what_an_engine_must_restart_for_is_a_new_revision",
        f"{_POOL}/revision.py", _ENGINE_ALONE, f'{_ENGINE_ALONE}    engine["spec"]["containers"] = []\n',
    ),
    Guard(
        8, "a parallelism that nothing uses is taken",
        "api/test_rules.py::test_rule_refuses_with_the_field_and_the_remedy",
        "crds/tidepool_api/hardware.py",
        "or spec.parallelism.tensor * spec.parallelism.pipeline"
        " == spec.accelerator.count * spec.parallelism.hosts",
        "or True",
    ),
    Guard(
        10, "a pool whose spec is broken cannot go",
        "operator/pool/test_plan.py::test_a_pool_that_goes_needs_no_sound_spec",
        f"{_POOL}/plan.py", "    if observed.pool.metadata.deletion_timestamp:\n", "    if False:\n",
    ),
    Guard(
        10, "the same before a real API server: what is collected is made again while the pool goes",
        "operator/cluster/test_deletion.py::test_a_deleted_pool_leaves_nothing",
        f"{_POOL}/plan.py", "    if observed.pool.metadata.deletion_timestamp:\n", "    if False:\n",
    ),
    Guard(
        11, "an upgrade of the operator restarts every engine",
        "operator/pool/test_revision.py::test_a_new_router_image_is_no_new_revision",
        f"{_POOL}/revision.py", _ENGINE_ALONE, "    engine = template\n",
    ),
    Guard(
        11, "the same where the router gets another argument, volume, probe or limit",
        "operator/pool/test_revision.py::test_what_a_release_changes_around_the_engine",
        f"{_POOL}/revision.py", _ENGINE_ALONE, "    engine = template\n",
    ),
    Guard(
        11, "a revision that serves gets the router of the new release written under it",
        "operator/pool/test_upgrade.py::test_what_serves_is_left_as_it_is",
        f"{_POOL}/plan.py", _BORN_WITH, "router = None",
    ),
    Guard(
        11, "the same before a real API server",
        "operator/cluster/test_rollouts.py::test_an_upgrade_restarts_nothing",
        f"{_POOL}/revision.py", _ENGINE_ALONE, "    engine = template\n",
    ),
    Guard(
        11, "a router that is written under a revision there restarts every engine",
        "operator/cluster/test_rollouts.py::test_an_upgrade_restarts_nothing",
        f"{_POOL}/plan.py", _BORN_WITH, "router = None",
    ),
    Guard(
        14, "a pod is ready before those who send to it know of it",
        "operator/cluster/test_operator.py::test_a_pod_is_known_to_gateways_before_it_is_ready",
        f"{_POOL}/prefill.py", '"publishNotReadyAddresses": True, ', "",
    ),
    Guard(
        15, "a CRD that was left behind drops fields in silence",
        "operator/pool/test_crd_skew.py::test_a_schema_of_before_is_told",
        f"{_POOL}/crd_skew.py", "        yield path\n        return", "        return",
    ),
    Guard(
        15, "the same before a real API server",
        "operator/cluster/test_reasons.py::test_a_crd_that_an_upgrade_left_behind",
        f"{_POOL}/crd_skew.py", "        yield path\n        return", "        return",
    ),
    Guard(
        15, "a field that the API server does not know is asked for again and again, and nobody is told",
        "operator/cluster/test_operator.py::test_a_refused_pod_template_is_told",
        "operator/tidepool_operator/cluster/client.py",
        "    if message.startswith(_TYPED_PATCH_FAILED):", "    if False:",
    ),
    Guard(
        101, "0/0 of an idle pool is read as a gap, and it never goes down",
        f"{_FAILURES}::test_a_ratio_of_nothing_to_nothing",
        f"{_SCALING}/figures.py", "    if any(requests(pod) != 0 for pod, _ in serving):", "    if True:",
    ),
    Guard(
        101, "a count that is not there is read as zero",
        f"{_FAILURES}::test_zero_only_while_the_scrapes_are_up",
        f"{_SCALING}/idle.py", "return all(figures.usable(sample) == 0 for sample in must) and not any(",
        "return not any(figures.usable(sample) for sample in must) and not any(",
    ),
    Guard(
        102, "Prometheus lost is read as no load",
        f"{_FAILURES}::test_prometheus_lost_at_peak",
        f"{_SCALING}/figures.py", "        return None\n    return sample.value",
        "        return 0.0\n    return sample.value",
    ),
    Guard(
        103, "an outage leaves replicas below the floor",
        f"{_FAILURES}::test_bounds_hold_without_any_estimate",
        f"{_SCALING}/decide.py", "    if current < spec.min_replicas:",
        "    if current < spec.min_replicas and reading.ready:",
    ),
    Guard(
        106, "a queue grows beside an empty KV cache",
        f"{_FAILURES}::test_a_queue_that_grows_beside_an_empty_cache",
        f"{_SCALING}/needs.py", "[kv(reading, spec), waits, latency(", "[kv(reading, spec), latency(",
    ),
    Guard(
        106, "a metric is renamed, and the pool shrinks",
        f"{_FAILURES}::test_one_renamed_metric",
        f"{_SCALING}/figures.py", "if None in (kv_usage(pod), waiting(pod), running(pod))]",
        "if None in (waiting(pod), running(pod))]",
    ),
    Guard(
        107, "requests in flight are cut when a pool shrinks",
        "operator/pool/test_plan.py::test_the_least_loaded_pod_is_marked",
        f"{_POOL}/plan.py", "        marks += choice.marks\n", "",
    ),
    Guard(
        108, "pods that are not ready hold a pool up",
        f"{_FAILURES}::test_pods_that_are_not_ready",
        f"{_SCALING}/model.py", "for each in self.counted if each[0].state is PodState.READY)",
        "for each in self.counted)",
    ),
    Guard(
        108, "pods that find no node lead to more",
        f"{_FAILURES}::test_unschedulable_pods",
        f"{_SCALING}/needs.py", _ON_READY_ONES, 'return Need("waiting", current * (1 + more)',
    ),
    Guard(
        108, "one pod's broken metrics stop the pool",
        f"{_FAILURES}::test_one_pods_broken_metrics",
        f"{_SCALING}/decide.py", "held_by_gaps = bool(gaps) and raw < current", "held_by_gaps = bool(gaps)",
    ),
    Guard(
        109, "forty scale-ups in a quarter of an hour",
        f"{_FAILURES}::test_one_step_at_a_time",
        f"{_SCALING}/needs.py", _ON_READY_ONES, 'return Need("waiting", current * (1 + more)',
    ),
    Guard(
        110, "at zero the metric's source is gone, and refused requests count for nothing",
        f"{_FAILURES}::test_at_zero_the_gateways_wake",
        f"{_SCALING}/idle.py", "if held + refused > 0 else None", "if held > 0 else None",
    ),
    Guard(
        111, "a forecast is negative, or no number",
        f"{_FAILURES}::test_a_forecast_that_is_no_forecast",
        f"{_SCALING}/ahead.py", "if _sound(moment) and moment.at > now]", "if moment.at > now]",
    ),
    Guard(
        111, "an idle interval is divided by its requests",
        f"{_FORECASTERS}::test_no_demand_at_all",
        f"{_SCALING}/forecast.py", "base = np.maximum(loss.pop(LAST_VALUE), 1e-12)", "base = loss.pop(LAST_VALUE)",
    ),
    Guard(
        111, "below two seasons the forecaster raises",
        f"{_FORECASTERS}::test_less_than_two_seasons",
        f"{_SCALING}/experts.py", "        if begin >= length:\n            break\n", "",
    ),
    Guard(
        111, "what is foreseen replaces what is measured",
        f"{_FORECASTERS}::test_a_forecast_moves_the_count",
        f"{_SCALING}/decide.py",
        "    if top is not None and alone is not None and alone >= wanted and alone != current:", "    if False:",
    ),
    Guard(
        111, "a pause moves the cycle",
        f"{_FORECASTERS}::test_a_forecast_is_of_the_right_time",
        f"{_SCALING}/record.py", "    skipped = min(last - record.last - 1, length)", "    skipped = 0",
    ),
    Guard(
        111, "NaN and infinity are kept as a load",
        f"{_FORECASTERS}::test_garbage_in_the_past",
        f"{_SCALING}/record.py",
        "    if rates is None or not all(math.isfinite(rate) and rate >= 0 for rate in rates):",
        "    if rates is None:",
    ),
    Guard(
        112, "the last figures of pods that are gone go on to count",
        f"{_FORECASTERS}::test_the_queue_of_a_pod_that_is_gone",
        "operator/tidepool_operator/telemetry/series.py",
        "    pods = tuple(_pod(pool, pod, view) for pod in pool.pods)",
        "    told = view.snapshot.series[rules.POD_WAITING]\n"
        "    pods = tuple(_pod(pool, LivePod(name, pool.pods[0].state), view) for _, _, name in told)",
    ),
    Guard(
        112, "a manual edit is undone at once",
        f"{_FAILURES}::test_a_manual_edit",
        f"{_SCALING}/decide.py",
        "    if memory.since is None or current not in (memory.replicas, memory.decided):",
        "    if memory.since is None:",
    ),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(prove(GUARDS, sys.argv[1:], ("operator", "crds"), (), 600.0))
