"""Bursts and popular prompts go to all pods. Reports 8 and 23."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fakes.settings import EngineSettings, Pace
from pools.gateway import READY, first, make_pool, must_pick
from scripted.clients import RawClient, chat, crowd, post
from scripted.routers import until
from tidepool_api.routing import Policy, Routing

MANUAL = EngineSettings(pace=Pace.MANUAL, max_model_len=8192)


async def _burst(running: Any, bodies: list[bytes]) -> list[int]:
    """Send all at once to engines that make no step; how many each pod got."""
    async with crowd(running.port, len(bodies)) as clients:
        await asyncio.gather(*(client.send(post(body)) for client, body in zip(clients, bodies, strict=True)))
        await until(lambda: sum(running.parts()) == len(bodies))
        parts = running.parts()
    await running.empty()
    return parts


@pytest.mark.parametrize("policy", [Policy.PREDICTED, Policy.LEAST_LOAD, Policy.ROUND_ROBIN])
async def test_a_burst_of_equals_in_one_moment_is_spread_evenly(system: Any, policy: Policy) -> None:
    """Report 8 (AIBrix #2422, #646; llm-d PR #2515): equal scores, and figures that were older than the burst."""
    running = await system(pods=4, settings=MANUAL, routing=Routing(policy=policy))

    parts = await _burst(running, [chat(stream=True, max_tokens=10, user=str(number)) for number in range(40)])

    assert parts == [10, 10, 10, 10]


@pytest.mark.parametrize("policy", [Policy.PREDICTED, Policy.LEAST_LOAD])
def test_each_pick_of_a_burst_sees_the_picks_before_it(policy: Policy) -> None:
    """Report 8: one pod is emptier by four requests; it gets those four and its part, not the whole burst."""
    pool = make_pool(lambda: 1000.0, 2)
    pool.apply(pool.config.model_copy(update={"routing": Routing(policy=policy)}))
    busy = first(pool)
    pool.pod_heard(busy, replace(READY, seq=2, running=4, held_tokens=800, expected_tokens=400, opened_total=4))

    parts = Counter(must_pick(pool).endpoint.key == busy.key for _ in range(40))

    assert 16 <= parts[True] <= 20


@pytest.mark.parametrize("policy", [Policy.PREDICTED, Policy.PREFIX_HASH, Policy.LEAST_LOAD])
async def test_a_system_prompt_that_all_share_does_not_fill_one_pod(system: Any, policy: Policy) -> None:
    """Report 23 (production-stack #957; KubeAI #519 and PR #528): all had their longest match on one pod."""
    running = await system(pods=4, settings=MANUAL, routing=Routing(policy=policy))
    system_prompt = {"role": "system", "content": "you are a helpful assistant " * 300}
    bodies = [
        chat(stream=True, max_tokens=100, messages=[system_prompt, {"role": "user", "content": f"question {n}"}])
        for n in range(64)
    ]
    # One request first, so that one pod has the beginning in its cache and the others do not.
    async with RawClient(running.port) as client:
        await client.send(post(chat(stream=True, max_tokens=1, messages=[system_prompt])))
        await until(lambda: running.live()["engines"] == 1)
        for engine in running.engines:
            await engine.step(8)
        await client.answer()
    await running.empty()

    parts = await _burst(running, bodies)

    # Consistent hashing with bounded loads promises a quarter above the mean; twice is too much.
    assert max(parts) <= 2 * 64 / 4, Counter(parts)
    assert min(parts) > 0
