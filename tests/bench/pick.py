"""Times picks among a hundred pods, in the process, and prints microseconds by policy as JSON.

A script and not a part of the package: it runs with the product's own code, compiled or not.
"""

import json
import random
import time
from dataclasses import replace

from tidepool_api.load import Health, LoadReport
from tidepool_api.routing import FleetPool, Policy, Routing
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.gateway_metrics import GatewayMetrics
from tidepool_router.fleet.pool import PoolState
from tidepool_router.ledger import Outcome
from tidepool_router.wire.body import inspect

PODS = 100
_MODEL = "tiny"
_PATH = "/v1/chat/completions"
_PICKS = 4000
_CONVERSATIONS = 200
_PROMPT_WORDS = 1500
_LIVE = 400  # requests under way while picks are timed
_READY = LoadReport(boot="bench", seq=1, health=Health.READY, kv_capacity_tokens=500_000)


def pick_us(policy: Policy) -> dict[str, float]:
    """CPU time of a pick with its reservation, median and p99 in microseconds; the body has been read before."""
    now = [1000.0]
    config = FleetPool(name="default/bench", models=(_MODEL,), routing=Routing(policy=policy))
    pool = PoolState(config, GatewayMetrics(), lambda: now[0])
    pods, _ = pool.set_pods(Endpoint.at("10.0.0.1", 8000 + number) for number in range(PODS))
    draw = random.Random(1)
    for pod in pods:
        pool.pod_heard(pod, replace(_READY, running=draw.randrange(8), held_tokens=draw.randrange(20_000)))
    requests = [_facts(number) for number in range(_CONVERSATIONS)]
    live, spent = [], []
    for _ in range(_PICKS):
        now[0] += 0.001
        facts = draw.choice(requests)
        began = time.thread_time_ns()
        reservation = pool.pick(facts, now[0])
        spent.append(time.thread_time_ns() - began)
        if reservation is None:
            raise LookupError(f"{policy} found no pod among {PODS} ready ones")
        live.append(reservation)
        if len(live) > _LIVE:
            live.pop(draw.randrange(len(live))).close(Outcome.OK, now[0])
    spent.sort()
    return {"median": spent[_PICKS // 2] / 1e3, "p99": spent[_PICKS * 99 // 100] / 1e3}


def _facts(number: int) -> RequestFacts:
    """One conversation's request: half of its text is shared with nine others'."""
    words = random.Random(number // 10)
    own = random.Random(number)
    shared = " ".join(str(words.randrange(10_000)) for _ in range(_PROMPT_WORDS // 2))
    text = shared + " ".join(str(own.randrange(10_000)) for _ in range(_PROMPT_WORDS // 2))
    body = {"model": _MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": text}]}
    return inspect(Api.CHAT, _PATH, json.dumps(body).encode())


if __name__ == "__main__":
    print(json.dumps({policy.value: pick_us(policy) for policy in Policy}))
