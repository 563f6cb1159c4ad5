"""The pod where the request does the least harm, in seconds: to itself, and to those that run there.

Harm is the sum of
- wait:    the pod's queued tokens, at its learned seconds a prompt token;
- prefill: the request's own uncached tokens at the same price, once for itself and once for each request there,
           whose next tokens wait meanwhile;
- decode:  what its steps cost the others, and theirs cost it;
- memory:  KV tokens that will not fit, each with the work that a preemption loses and the wait for room;
- adapter: loading a LoRA adapter, and loading the one again that has to go for it.
There is no weight for a cached prefix: it shows as tokens that need no work.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidepool_router.facts import RequestFacts
from tidepool_router.ledger import Estimate, whole_blocks
from tidepool_router.picking.candidate import Candidate
from tidepool_router.picking.policy import NO_MATCHES, Matches, Pick

REASON: Final = "predicted"
REASON_CACHED: Final = "predicted-cached"

# A second of a stream that has begun against a second before the first token: by the usual targets of 50 ms a
# token and 2 s to the first one, an answer of 250 tokens has 12.5 s for the one and 2 s for the other. Short
# answers have no time to make a stall good: below 100 tokens it weighs more, up to a half at 32. (Chosen on the
# simulator's training seeds: from 250 tokens on, documents among chats would wait a sixth longer.)
STALL_WEIGHT: Final = 0.16
_MOST_STALL_WEIGHT: Final = 0.5
_SHORT_TOKENS: Final = 100
# The same for slower steps. What a request costs others is learned with noise: with twice the weight two gateways
# part with prefixes that one would have kept.
DECODE_WEIGHT: Final = 0.16
# Part of the KV cache that is left free for what was not foreseen.
_KV_MARGIN: Final = 0.03
# Of the tokens still expected of running requests, those that are there at once: while some grow, others end.
_GROWTH_SHARE: Final = 0.5
_ADAPTER_LOAD_SECONDS: Final = 0.2
# A pod has at most so many times its part of the live requests, by its speed, once these are more than a few.
# What a shared prompt spares is counted for each request alone, and not that another pod would have it too from
# the next one on: without a bound one pod would get nearly all.
_MOST_PARTS: Final = 2.0
_FEW_REQUESTS: Final = 8
# Learned speeds of equal pods differ by chance; from here on they are not the same kind of accelerator.
_UNLIKE: Final = 2.0
# Two pods that differ by less take turns.
_TIE_SECONDS: Final = 0.0005
_ENDLESS: Final = float("inf")


class Predicted:
    """Pods that are equally good take turns, wherever they stand among the others."""

    uses_matches = True

    def __init__(self) -> None:
        self._turn = 0

    def pick(
        self, candidates: Sequence[Candidate], request: Estimate, facts: RequestFacts, cached: Matches = NO_MATCHES
    ) -> Pick:
        """See Picker."""
        prompt, output = request.prompt_tokens, request.output_tokens
        adapter = facts.adapter
        tokens_per_byte = prompt / (facts.prompt_bytes or 1)
        best = second = _ENDLESS
        index = 0
        live = 0
        harms: list[float] = []
        for pod in candidates:
            uncached = prompt
            if pod.slot in cached:
                uncached -= whole_blocks(cached[pod.slot], tokens_per_byte, prompt, pod.kv_block_tokens)
            harm = harm_of(pod, uncached, output, adapter)
            if harm < best:
                best, second = harm, best
                index = len(harms)
            elif harm < second:
                second = harm
            harms.append(harm)
            live += pod.live_requests
        if second - best < _TIE_SECONDS:
            limit = best + _TIE_SECONDS
            ties = [at for at, harm in enumerate(harms) if harm < limit]
            self._turn += 1
            index = ties[self._turn % len(ties)]
        if candidates[index].live_requests >= _FEW_REQUESTS:
            most = _MOST_PARTS * (live + 1) / len(harms)
            if candidates[index].live_requests >= most:
                index = _least_within(candidates, harms, _MOST_PARTS * (live + 1))
        chosen = candidates[index]
        hit = whole_blocks(cached.get(chosen.slot, 0), tokens_per_byte, prompt, chosen.kv_block_tokens)
        return Pick(index, REASON_CACHED, hit) if hit else Pick(index, REASON)


def _least_within(candidates: Sequence[Candidate], harms: Sequence[float], parts: float) -> int:
    """Where the harm is least among the pods with fewer live requests than their part of `parts`, by their speed.

    `parts` is above the sum of live requests, so there is one.
    """
    paces = [_pace(pod) for pod in candidates]
    total = sum(paces)
    if max(paces) < _UNLIKE * min(paces):
        paces, total = [1.0] * len(paces), float(len(paces))
    within = [at for at, pod in enumerate(candidates) if pod.live_requests < parts * paces[at] / total]
    return min(within, key=harms.__getitem__)


def _pace(pod: Candidate) -> float:
    """Usual answers a second: 512 uncached prompt tokens and 128 output tokens."""
    speed = pod.speed
    return 1.0 / max(1e-9, 512.0 * speed.prompt_token_seconds + 128.0 * speed.step_seconds)


def harm_of(pod: Candidate, uncached: int, output: int, adapter: str | None) -> float:
    """Seconds of harm of a request with so many uncached prompt tokens and expected output tokens on a pod.

    The sum of `parts_of`, in one go: this runs for each pod of each pick.
    """
    speed = pod.speed
    token_seconds = speed.prompt_token_seconds
    work = uncached * token_seconds
    stall = STALL_WEIGHT if output >= _SHORT_TOKENS else stall_weight(output)
    beside = stall * work + DECODE_WEIGHT * output * speed.step_seconds_a_request
    harm = pod.queued_tokens * token_seconds + work + pod.live_requests * beside
    if pod.kv_capacity_tokens:
        short = _short_tokens(pod, uncached, output)
        if short > 0.0:
            harm += short * _shortage_seconds(pod, output)
    if adapter is not None and adapter not in pod.adapters:
        harm += _adapter_seconds(pod)
    return harm


def stall_weight(output: int) -> float:
    """Of a second that running streams stand still, where answers of so many tokens are usual."""
    return max(STALL_WEIGHT, min(_MOST_STALL_WEIGHT, STALL_WEIGHT * _SHORT_TOKENS / (output or 1)))


class Parts(NamedTuple):
    """The harm's parts in seconds, as a client may ask for them."""

    wait: float
    prefill: float
    stall: float
    decode: float
    memory: float
    adapter: float


def parts_of(pod: Candidate, request: Estimate, hit: int, adapter: str | None) -> Parts:
    """What the harm of a request consists of, with `hit` prompt tokens cached."""
    speed, output = pod.speed, request.output_tokens
    uncached = request.prompt_tokens - hit
    work = uncached * speed.prompt_token_seconds
    short = max(0.0, _short_tokens(pod, uncached, output)) if pod.kv_capacity_tokens else 0.0
    return Parts(
        wait=pod.queued_tokens * speed.prompt_token_seconds,
        prefill=work,
        stall=pod.live_requests * stall_weight(output) * work,
        decode=pod.live_requests * DECODE_WEIGHT * output * speed.step_seconds_a_request,
        memory=short * _shortage_seconds(pod, output),
        adapter=0.0 if adapter is None or adapter in pod.adapters else _adapter_seconds(pod),
    )


def hit_tokens(cached: Matches, pod: Candidate, request: Estimate, facts: RequestFacts) -> int:
    """Prompt tokens that a pod has cached, by its share of the prompt's bytes, as its engine will count them."""
    prompt = request.prompt_tokens
    tokens_per_byte = prompt / (facts.prompt_bytes or 1)
    return whole_blocks(cached.get(pod.slot, 0), tokens_per_byte, prompt, pod.kv_block_tokens)


def _short_tokens(pod: Candidate, uncached: int, output: int) -> float:
    """KV tokens that will be missing when the request runs there; below zero: room that is left."""
    growth = _GROWTH_SHARE * (pod.expected_tokens + output)
    return pod.kv_tokens + uncached + growth - (1.0 - _KV_MARGIN) * pod.kv_capacity_tokens


def _shortage_seconds(pod: Candidate, output: int) -> float:
    """Seconds for each KV token that is missing: it is worked through again, after room has come.

    Running requests leave within the time of an output, and with them all that is in use.
    """
    speed = pod.speed
    lasting = output * (speed.step_seconds + pod.live_requests * speed.step_seconds_a_request)
    return speed.prompt_token_seconds + lasting / max(1, pod.kv_tokens)


def _adapter_seconds(pod: Candidate) -> float:
    full = pod.adapter_slots and len(pod.adapters) >= pod.adapter_slots
    return 2.0 * _ADAPTER_LOAD_SECONDS if full else _ADAPTER_LOAD_SECONDS
