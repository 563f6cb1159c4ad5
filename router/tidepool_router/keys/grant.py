"""One key in force: what it allows, and how much of its limits is left."""

from collections.abc import Mapping
from typing import Final

from tidepool_router.errors import Refusal
from tidepool_router.keys.bucket import Bucket
from tidepool_router.keys.document import ApiKey

_WAIT_FLOOR_SECONDS: Final = 1.0


class Grant:
    """What one key allows here, with the key's share of its limits: those of the document by the number of
    gateways, since each counts for itself.

    Every request that `admit` let in owes exactly one `settle`.
    """

    __slots__ = (
        "_exact",
        "_prefixes",
        "_requests",
        "_tokens",
        "digest",
        "id",
        "key",
        "refused",
        "requests",
        "tenant",
        "used",
    )

    def __init__(self, key: ApiKey, gateways: int, now: float) -> None:
        self.refused: dict[str, int] = {}  # by reason
        self.requests = 0  # let in
        self.used = 0  # tokens
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.update(key, gateways, now)

    def update(self, key: ApiKey, gateways: int, now: float) -> None:
        """New terms; what is used up stays used up."""
        self.key = key
        self.id = key.id
        self.tenant = key.tenant
        self.digest = bytes.fromhex(key.sha256)
        models = key.models
        self._exact = None if models is None else frozenset(name for name in models if name[-1:] != "*")
        self._prefixes = () if models is None else tuple(name[:-1] for name in models if name[-1:] == "*")
        self._requests = _bucket(self._requests, key.requests_per_minute, gateways, now)
        self._tokens = _bucket(self._tokens, key.tokens_per_minute, gateways, now)

    @property
    def counts_tokens(self) -> bool:
        """Whether the key has a limit of tokens, so that an estimate is needed."""
        return self._tokens is not None

    def allows(self, model: str) -> bool:
        """Whether the key may ask for this model."""
        exact = self._exact
        return exact is None or model in exact or (bool(self._prefixes) and model.startswith(self._prefixes))

    def priority(self, asked: str | None, priorities: Mapping[str, int]) -> int:
        """Priority of a request that asks for this name: the key's own, or a lower one. Unknown: the key's own."""
        own = self.key.priority
        granted = own if isinstance(own, int) else priorities.get(own, 0)
        wanted = granted if asked is None else priorities.get(asked, granted)
        return wanted if wanted < granted else granted

    def admit(self, tokens: int, now: float) -> Refusal | None:
        """Take a request of about so many tokens from both limits; or from neither, and say when to come back."""
        requests, spare = self._requests, self._tokens
        if requests is not None:
            wait = requests.wait_seconds(1.0, now)
            if wait > 0.0:
                return self._refuse("requests", wait)
        if spare is not None:
            wait = spare.wait_seconds(tokens, now)
            if wait > 0.0:
                return self._refuse("tokens", wait)
            spare.take(tokens)
        self.requests += 1
        if requests is not None:
            requests.take(1.0)
        return None

    def settle(self, charged_tokens: int, used_tokens: int) -> None:
        """The request is over: what it used takes the place of what `admit` took for it."""
        self.used += used_tokens
        if self._tokens is not None:
            self._tokens.take(used_tokens - charged_tokens)

    def _refuse(self, what: str, wait_seconds: float) -> Refusal:
        self.count_refusal(what)
        wait = max(_WAIT_FLOOR_SECONDS, wait_seconds)
        message = (
            f"the key {self.id} has used up its {what} a minute; wait {wait:.0f} s, send fewer {what}, "
            "or ask for a higher limit"
        )
        return Refusal(429, "rate_limit_error", "rate_limit_exceeded", message, wait_seconds)

    def count_refusal(self, reason: str) -> None:
        """For the metrics."""
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def __repr__(self) -> str:
        return f"<Grant {self.id} of {self.tenant}>"


def _bucket(known: Bucket | None, per_minute: float | None, gateways: int, now: float) -> Bucket | None:
    if per_minute is None:
        return None
    share = per_minute / gateways
    if known is None:
        return Bucket(share, now)
    known.resize(share)
    return known
