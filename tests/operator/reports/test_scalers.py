"""What others rely on who scale a pool, or wait for it: its count, its selector, and that Ready means ready."""

from dataclasses import replace
from typing import Any

import pytest

from pools.objects import NOW, SETTINGS, condition, observe, pod, raw_pool, stored
from tidepool_operator.pool.drift import stamped
from tidepool_operator.pool.model import Object, Observed
from tidepool_operator.pool.plan import plan
from tidepool_operator.pool.render import deployment, render


def served(replicas: int, engine: Object | None = None, **spec: Any) -> Observed:
    """A pool whose objects are there; its engines are as `engine` says, else ready."""
    bare = observe(raw_pool(replicas=replicas, **spec))
    made = render(bare.pool, SETTINGS)
    items = tuple(stored(stamped(item)) for item in (*made.objects, deployment(bare.pool, made, replicas)))
    pods = tuple(pod(f"p{n}", made.revision, ready=engine is None, engine=engine) for n in range(replicas))
    return replace(bare, objects=items, pods=pods)


def test_a_count_that_others_scale_outlives_whatever_else_is_applied() -> None:
    """An HPA has scaled the pool to four; then somebody edits a label of its Deployment."""
    observed = served(4)
    [made] = [item for item in observed.objects if item["kind"] == "Deployment"]
    made["metadata"]["labels"]["tidepool.dev/role"] = "changed"
    [applied] = plan(observed, NOW).applies

    assert applied["kind"] == "Deployment"
    assert applied["spec"]["replicas"] == 4


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"replicas": 2}, "an HPA looks before the first pod is there"),
        ({"replicas": 0}, "an HPA that scales from zero looks at a pool without pods"),
        ({"replicas": 2, "engine": {"args": ["--model=other"]}}, "a spec that is refused may be mended by others"),
    ],
    ids=["new", "zero", "refused"],
)
def test_a_scaler_finds_the_pools_selector_whatever_its_state(spec: Object, why: str) -> None:
    status = plan(observe(raw_pool(**spec)), NOW).status

    assert status is not None
    assert "tidepool.dev/pool=llama" in status["selector"].split(","), why


def test_a_pool_whose_engines_crash_is_not_ready_and_says_why() -> None:
    crash = {
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}},
        "lastState": {"terminated": {"exitCode": 1, "message": "ValueError: no such layer"}},
        "restartCount": 7,
    }
    status = plan(served(2, crash), NOW).status

    assert status is not None
    ready = condition(status, "Ready")
    assert (ready["status"], status["readyReplicas"]) == ("False", 0)
    assert ready["reason"] == "EngineCrashed"
    assert "ValueError: no such layer" in ready["message"]
