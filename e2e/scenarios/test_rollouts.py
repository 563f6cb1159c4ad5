"""Rollouts under streams, on a full cluster and on one with room: nothing fails, and enough pods serve all along.

ROLLOUT_SECONDS says for how long each pool of doubles is rolled out again and again (600 without).
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace

import pytest

from scenarios import rolling, stage
from scenarios.capacity import watched
from scenarios.evidence import BUILD
from scenarios.kube import Object, wait_for
from scenarios.neighbours import GPU, leaving_free
from scenarios.pools import NAMESPACE, cpu_pool
from scenarios.rows import table
from scenarios.streams import load
from scenarios.world import World

SECONDS = float(os.environ.get("ROLLOUT_SECONDS", "600"))

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(SECONDS + 1800)]


def pool_of_doubles(image: str) -> Object:
    """Four replicas whose engines are doubles: they start in seconds and stream at the pace of a large model."""
    return {
        "apiVersion": "tidepool.dev/v1alpha1",
        "kind": "ModelPool",
        "metadata": {"name": "doubles", "namespace": NAMESPACE},
        "spec": {
            "model": {"uri": "file:///model", "name": "doubles-model"},
            "engine": {
                "image": image,
                "maxModelLen": 8192,
                "env": [
                    {"name": "DOUBLE_LOADING_SECONDS", "value": "5"},
                    {"name": "DOUBLE_OUTPUT_TOKENS_PER_SECOND", "value": "20"},
                ],
            },
            "accelerator": {"resource": GPU, "count": 1},
            "replicas": 4,
            "rollout": {"drainTimeout": "240s"},
        },
    }


def pool_of_engines() -> Object:
    """Two replicas of real vLLM."""
    pool = cpu_pool("engines", replicas=2)
    del pool["spec"]["scaling"]
    return pool


@dataclass(frozen=True, slots=True)
class Case:
    """One pool in one surrounding."""

    name: str
    pool: Object
    full: bool
    tokens: int  # of each stream
    start_seconds: float  # of one engine, at most

    @property
    def replicas(self) -> int:
        """As the spec says."""
        return int(self.pool["spec"]["replicas"])

    @property
    def bound(self) -> int:
        """Pods that serve at any time, at least: docs/decisions/rollout-plan.md, with maxUnavailable Auto."""
        return self.replicas - 1 if self.full else self.replicas


@contextmanager
def rolled(world: World, case: Case, seconds: float) -> Iterator[rolling.Rolling]:
    """The pool rolled out again and again under streams; yields what was seen when the streams have ended."""
    place = replace(world, pool=case.pool)
    with leaving_free(world.kube, case.replicas) if case.full else nullcontext():
        world.kube.apply(case.pool)
        try:
            place.wait_settled(case.replicas, timeout_seconds=case.start_seconds)
            stage.find_service(place)
            with watched(world.kube, place.namespace, place.name) as capacity:
                with load(place.routes(), place.model, case.tokens) as clients:
                    clients.keep(rolling.LOOPS)
                    wait_for(
                        "the streams to run",
                        lambda: len(clients.running()) >= rolling.STREAMS or None,
                        timeout_seconds=60,
                    )
                    one = rolling.Rolling(
                        place, capacity, clients, case.replicas, timeout_seconds=case.replicas * case.start_seconds
                    )
                    one.roll(seconds)
                yield one
        finally:
            world.kube.run(
                *("delete", "modelpool", place.name, "-n", place.namespace, "--cascade=foreground"),
                "--timeout=300s",
                timeout_seconds=310,
            )


def judge(world: World, case: Case, seconds: float) -> None:
    """Roll, write the row down, and hold it against the bounds."""
    with rolled(world, case, seconds) as one:
        one.clients.write(BUILD / f"rollouts-{case.name.replace(',', '').replace(' ', '-')}.jsonl")
        row = one.row(case.name, case.bound)
    rows = world.evidence.facts.setdefault("rollouts", [])
    rows.append(asdict(row))
    world.evidence.write()
    (BUILD / "rollouts.md").write_text(table(rows) + "\n")
    print(f"\n{table(rows)}", flush=True)

    assert one.clients.failed() == []
    assert sum(stream.received for stream in one.clients.records) == case.tokens * len(one.clients.records)
    assert one.capacity.ended == ""
    assert one.capacity.below(case.bound, one.began) == []
    assert one.fewest_streams >= rolling.STREAMS


@pytest.fixture(scope="module")
def double_image() -> str:
    """The engine double's image, in all nodes."""
    return stage.cluster("images", "tidepool-engine-double").strip()


@pytest.mark.parametrize("full", [True, False], ids=["full", "room"])
def test_four_replicas_are_rolled_out_again_and_again(world: World, double_image: str, full: bool) -> None:
    name = f"4 doubles, {'full' if full else 'with room'}"
    judge(world, Case(name, pool_of_doubles(double_image), full, tokens=400, start_seconds=120), SECONDS)


@pytest.mark.parametrize("full", [True, False], ids=["full", "room"])
def test_two_replicas_of_real_vllm_are_rolled_out(world: World, full: bool) -> None:
    name = f"2 vLLM, {'full' if full else 'with room'}"
    judge(world, Case(name, pool_of_engines(), full, tokens=200, start_seconds=300), seconds=0)
