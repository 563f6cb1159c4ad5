"""What each pool of this gateway would do with a call, as its own picks see its pods."""

from tidepool_api.workflow_steps import PoolChoice
from tidepool_router.facts import RequestFacts
from tidepool_router.fleet.pod import Pod, PodState
from tidepool_router.fleet.pool import PoolState
from tidepool_router.ledger import whole_blocks
from tidepool_router.workflow.core.choice import Offer
from tidepool_router.workflow.core.profiles import CallProfile


def offer(
    choice: PoolChoice, state: PoolState, facts: RequestFacts, profile: CallProfile, run_tokens: int, now: float
) -> Offer:
    """Of the pool's pod that would have the answer first."""
    estimate = state.estimator.estimate(facts)
    output = profile.output.or_else(float(estimate.output_tokens))
    success = profile.success.or_else(1.0)
    ready = [pod for pod in state.pods.values() if pod.state(now) is PodState.READY]
    queue = state.queue
    ahead = queue.work_before(facts.priority, facts.tenant, run_tokens) if queue.held else 0
    held = (state.holding.entrance.drain.seconds(ahead) or 0.0) if ahead else 0.0
    cached = state.prefixes.match(facts.prefix)
    tokens_per_byte = estimate.prompt_tokens / (facts.prompt_bytes or 1)
    offers = [
        Offer(
            choice.name,
            choice.quality,
            held + pod.queued_tokens * pod.speed.prompt_token_seconds,
            estimate.prompt_tokens
            - whole_blocks(cached.get(pod.slot, 0), tokens_per_byte, estimate.prompt_tokens, pod.kv_block_tokens),
            output,
            pod.speed.prompt_token_seconds,
            _step_seconds(pod),
            success,
        )
        for pod in ready
    ]
    if offers:
        return min(offers, key=lambda one: one.seconds)
    speed = state.speed
    prompt = float(estimate.prompt_tokens)
    step = speed.step.at(1)
    return Offer(
        choice.name, choice.quality, held, prompt, output, speed.prefill.slope, step, success, ready=False
    )


def _step_seconds(pod: Pod) -> float:
    return pod.speed.step_seconds + pod.live_requests * pod.speed.step_seconds_a_request
