"""What a gateway with API keys does with a request: who asks, for which model, at what price."""

from collections.abc import Mapping
from time import monotonic
from typing import Final

import msgspec

from tidepool_router.errors import Refusal, Refused
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.fleet.pool import PoolState
from tidepool_router.keys import Grant
from tidepool_router.ledger import Entry, Outcome
from tidepool_router.wire.headers import API_KEY, AUTHORIZATION, COLON, CRLF, PRIORITY, TENANT
from tidepool_router.wire.messages import Request
from tidepool_router.wire.usage import Usage

_COVERED: Final = frozenset((AUTHORIZATION, API_KEY, PRIORITY, TENANT))


def require_model(grant: Grant, model: str) -> None:
    """Raises Refused (403) when the key does not grant the model, whether or not there is one of that name."""
    if grant.allows(model):
        return
    grant.count_refusal("model")
    granted = ", ".join((grant.key.models or ())[:20]) or "none"
    message = f"the key {grant.id} does not grant the model {model[:200]!r}; it grants: {granted}"
    raise Refused(Refusal(403, "permission_error", "model_not_allowed", message))


def restricted(grant: Grant | None) -> bool:
    """Whether a key grants some models only."""
    return grant is not None and grant.key.models is not None


def within_grant(facts: RequestFacts, request: Request, pool: PoolState, grant: Grant) -> RequestFacts:
    """The facts with the key's tenant, and with its priority or the lower one that the request asks for."""
    asked = request.special.get(PRIORITY)
    number = grant.priority(None if asked is None else asked.decode("latin-1"), pool.routing.priorities)
    return msgspec.structs.replace(facts, priority=number, tenant=grant.tenant)


def cover(request: Request, facts: RequestFacts, pool: PoolState, grant: Grant) -> None:
    """Take off the key, which goes no further than here, and tell the sidecars what the facts say."""
    add = [TENANT, COLON, grant.tenant.encode("latin-1"), CRLF]
    name = None if facts.priority == 0 else name_of(facts.priority, pool.routing.priorities)
    if name is not None:
        add += (PRIORITY, COLON, name, CRLF)
    request.rewrite(_COVERED, add)


def name_of(number: int, priorities: Mapping[str, int]) -> bytes | None:
    """Name of the highest of the pool's priorities that is not above this; None: there is none."""
    names = [(value, name) for name, value in priorities.items() if value <= number]
    return max(names)[1].encode("latin-1", "replace") if names else None


def charge(grant: Grant, facts: RequestFacts, pool: PoolState) -> int:
    """Take the request from the key's limits; the tokens that were taken, which `Grant.settle` wants to know.

    Raises Refused (429).
    """
    tokens = 0
    if grant.counts_tokens and facts.api is not Api.TRANSCRIPTIONS:  # bytes of sound say nothing of tokens
        estimate = pool.estimator.estimate(facts)
        tokens = estimate.prompt_tokens + estimate.output_tokens
    refusal = grant.admit(tokens, monotonic())
    if refusal is not None:
        raise Refused(refusal)
    return tokens


def used_tokens(api: Api, outcome: Outcome, status: int, usage: Usage | None, entry: Entry | None) -> int:
    """What a request that has ended used: as the engine counted, else as was seen; nothing where none worked."""
    if usage is not None:
        return usage.prompt_tokens + usage.output_tokens
    if entry is None or api is Api.TRANSCRIPTIONS:
        return 0
    if outcome is not Outcome.CANCELLED and status >= 400 and entry.output_tokens == 0:
        return 0
    return entry.prompt_tokens + entry.output_tokens
