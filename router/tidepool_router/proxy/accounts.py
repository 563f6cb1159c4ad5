"""Where the usage of a request is counted, and how much that is."""

from tidepool_router.facts import Api, RequestFacts
from tidepool_router.keys import Grant
from tidepool_router.ledger import Entry, Outcome
from tidepool_router.usage.tally import Tally, Who
from tidepool_router.wire.usage import Usage

Account = tuple[Tally, Who]


def account_of(tally: Tally, facts: RequestFacts, grant: Grant | None) -> Account:
    """The account of a request: of its key, or of the tenant that it names."""
    if grant is None:
        return tally, Who("", facts.tenant or "", facts.model)
    return tally, Who(grant.id, grant.tenant, facts.model)


def close_account(
    account: Account, api: Api, outcome: Outcome, status: int, usage: Usage | None, entry: Entry | None
) -> None:
    """Count a request that is over: as the engine counted, else as was seen; nothing where none worked."""
    tally, who = account
    whole = outcome is Outcome.OK and status < 400
    prompt, cached, output = 0, 0, 0
    if usage is not None:
        prompt, cached, output = usage.prompt_tokens, usage.cached_tokens or 0, usage.output_tokens
    elif entry is not None and api is not Api.TRANSCRIPTIONS:  # bytes of sound say nothing of tokens
        refused = outcome is not Outcome.CANCELLED and status >= 400 and entry.output_tokens == 0
        if not refused:
            prompt, output = entry.prompt_tokens, entry.output_tokens
    tally.ended(who, whole=whole, prompt_tokens=prompt, cached_tokens=cached, output_tokens=output)
