"""What a gateway counts by key. A key is named by its id; its text is nowhere."""

from tidepool_api import contract
from tidepool_router.keys import KeyRing
from tidepool_router.metrics import Registry


def count_keys(registry: Registry, ring: KeyRing) -> None:
    """Add the families of the keys; they are read when a scrape asks, so that requests pay nothing for them."""
    requests = registry.counter(contract.METRIC_KEY_REQUESTS, "Requests let in, by API key.", "key", "tenant")
    tokens = registry.counter(contract.METRIC_KEY_TOKENS, "Tokens of requests that ended.", "key", "tenant")
    refused = registry.counter(contract.METRIC_KEY_REFUSED, "Requests that keys did not open.", "key", "reason")

    def read() -> None:
        for family in (requests, tokens, refused):
            family.clear()  # keys that are gone go with their series
        for reason, count in ring.refused.items():
            refused.labels("", reason).set(count)
        for grant in ring:
            requests.labels(grant.id, grant.tenant).set(grant.requests)
            tokens.labels(grant.id, grant.tenant).set(grant.used)
            for reason, count in grant.refused.items():
                refused.labels(grant.id, reason).set(count)

    registry.before_scrape(read)
