"""Prefill and decode apart on the real cluster: NIXL moves prompts between two real vLLMs in two pods."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from cluster import engine_install
from scenarios import insides, stage
from scenarios.kube import Object, condition, is_ready, wait_for
from scenarios.life import START_SECONDS
from scenarios.pools import ENGINE_ARGS, ENGINE_FOLDER, NAMESPACE, cpu_pool
from scenarios.world import POOL_LABEL, World

# Soak: it needs what moves the blocks beside the engine, 230 MB that nothing else does.
pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(1500)]

_ROLE_LABEL = "tidepool.dev/role"
_METRICS_PORT = 8081
# Some 700 tokens of the tiny model, in blocks of 128; each its own, so that nothing is cached.
_PROMPT = "number {number} of the tides that come in and go out again under the quick brown foxes " * 40
_FETCHED = "vllm:external_prefix_cache_hits_total"
_MOVES = "vllm:nixl_xfer_time_seconds_count"
_GENERATED = "vllm:generation_tokens_total"


def pool_in_two_roles() -> Object:
    """One pod of each role, on two nodes."""
    pool = cpu_pool("apart", replicas=1, disaggregation={"prefill": {"replicas": 1, "minTokens": 128}})
    del pool["spec"]["scaling"]
    pool["spec"]["engine"]["args"] = [*ENGINE_ARGS, "--enable-prompt-tokens-details"]
    template = pool["spec"]["podTemplate"]["spec"]
    template["containers"][0]["env"].append({"name": "PYTHONPATH", "value": f"{ENGINE_FOLDER}/nixl"})
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    template["topologySpreadConstraints"] = [spread | {"labelSelector": {"matchLabels": {POOL_LABEL: "apart"}}}]
    return pool


@dataclass(frozen=True, slots=True)
class Apart:
    """The pool, and what its pods and clients say."""

    world: World

    def pods(self, role: str) -> list[Object]:
        """The ready pods of a role."""
        return [pod for pod in self.world.ready_pods() if pod["metadata"]["labels"].get(_ROLE_LABEL) == role]

    def pod(self, role: str) -> Object:
        """The one that there is, waited for."""

        def one() -> Object | None:
            found = self.pods(role)
            return found[0] if len(found) == 1 else None

        return wait_for(f"one ready {role} pod", one, timeout_seconds=2 * START_SECONDS)

    def figure(self, role: str, name: str) -> float:
        """The sum of a family of metrics of the engine of a role, by way of its sidecar."""
        address = self.pod(role)["status"]["podIP"]
        page = httpx.get(f"http://{address}:{_METRICS_PORT}/metrics", timeout=10).raise_for_status().text
        found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", page, re.M)
        return sum(float(value) for value in found)

    def ask(self, number: int, url: str = "", **more: Any) -> httpx.Response:
        """A long prompt of its own, at the gateway if nothing is said, answered without chance."""
        body = {"model": self.world.model, "max_tokens": 12, "temperature": 0, **more}
        body["prompt"] = _PROMPT.format(number=number)
        return httpx.post(f"{url or self.world.gateway_url}/v1/completions", json=body, timeout=120)


@pytest.fixture(scope="module")
def apart(world: World) -> Iterator[Apart]:
    engine_install.install_nixl()
    made = Apart(replace(world, pool=pool_in_two_roles()))
    world.kube.apply(made.world.pool)
    try:
        nodes = {made.pod(role)["spec"]["nodeName"] for role in ("prefill", "decode")}
        assert len(nodes) == 2
        stage.find_service(made.world)
        wait_for(
            "the model at the gateway",
            lambda: made.world.model in made.world.gateway_models() or None,
            timeout_seconds=30,
        )
        yield made
    finally:
        world.kube.run(
            *("delete", "modelpool", "apart", "-n", NAMESPACE, "--cascade=foreground", "--timeout=300s"),
            timeout_seconds=310,
        )


def text(answer: httpx.Response) -> str:
    """Of an answer that must be a good one."""
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def two_steps(apart: Apart, number: int) -> httpx.Response:
    """An answer whose prompt one engine computed and the other fetched, by the counters of both."""
    names = (_FETCHED, _MOVES)
    before = [apart.figure("decode", name) for name in names]
    generated = apart.figure("prefill", _GENERATED)
    answer = apart.ask(number)
    fetched, moves = (apart.figure("decode", name) - was for name, was in zip(names, before, strict=True))
    prompt_tokens = answer.json()["usage"]["prompt_tokens"]

    assert answer.headers["x-tidepool-pod"] == apart.pod("decode")["metadata"]["name"]
    assert moves >= 1, "the blocks came over NIXL"
    assert prompt_tokens - 128 <= fetched <= prompt_tokens
    assert apart.figure("prefill", _GENERATED) - generated == 1, "the prefill engine made one token"
    return answer


def test_the_decode_pod_fetches_the_prompt_and_says_what_it_would_have_said_alone(apart: Apart) -> None:
    moved = text(two_steps(apart, 1))
    # The pool's own Service leads to decode pods, which do all of it.
    before = apart.figure("decode", _FETCHED)
    alone = apart.ask(1, apart.world.service_url, cache_salt="alone")

    assert moved == text(alone)
    assert apart.figure("decode", _FETCHED) == before
    status = apart.world.resource()["status"]
    assert (status["readyReplicas"], status["prefill"]["readyReplicas"]) == (1, 1)


def test_while_no_prefill_pod_is_there_the_decode_pod_computes_prompts(apart: Apart) -> None:
    prefill = apart.pod("prefill")["metadata"]["name"]
    apart.world.kube.run("delete", "pod", prefill, "-n", NAMESPACE, "--grace-period=0", "--force")
    fetched = apart.figure("decode", _FETCHED)

    # Also the first, which may still be sent to the pod that has gone.
    assert [apart.ask(number).status_code for number in range(10, 14)] == [200] * 4
    assert apart.figure("decode", _FETCHED) == fetched
    assert condition(apart.world.resource(), "Ready")["status"] == "True", "prefill pods are not needed for it"

    apart.pod("prefill")
    wait_for(
        "the prefill pod to be used again",
        lambda: (apart.ask(20).status_code == 200 and apart.figure("decode", _FETCHED) > fetched) or None,
        timeout_seconds=60,
    )
    text(two_steps(apart, 21))


def test_while_no_decode_pod_is_ready_a_prefill_pod_does_all_of_it(apart: Apart) -> None:
    prefill, decode = apart.pod("prefill")["metadata"]["name"], apart.pod("decode")
    insides.kill_container(decode)
    wait_for("the decode pod to be not ready", lambda: not apart.pods("decode") or None, timeout_seconds=60)
    answers = [apart.ask(number) for number in range(30, 34)]

    assert [answer.status_code for answer in answers] == [200] * 4
    assert {answer.headers["x-tidepool-pod"] for answer in answers} == {prefill}
    assert is_ready(apart.pod("decode"))
    text(two_steps(apart, 40))
