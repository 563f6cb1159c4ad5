"""The sums of a tally as metrics."""

from typing import Final

from tidepool_api.contract import METRIC_USAGE_REQUESTS, METRIC_USAGE_TOKENS
from tidepool_router.metrics import Registry
from tidepool_router.usage.tally import Tally, Who

_KINDS: Final = ("prompt", "cached", "output")


def export(registry: Registry, tally: Tally) -> None:
    """Set them before each scrape. The set of label values is as bounded as the tally's lines."""
    requests = registry.counter(
        METRIC_USAGE_REQUESTS,
        "Requests that have ended, by who asked for what.",
        *Who._fields,
        "outcome",
    )
    tokens = registry.counter(
        METRIC_USAGE_TOKENS,
        "Tokens of requests that have ended, by who asked for what; cached ones are some of the prompt's.",
        *Who._fields,
        "kind",
    )

    def collect() -> None:
        for who, used in tally:
            requests.labels(*who, "whole").value = float(used.requests - used.failed)
            requests.labels(*who, "failed").value = float(used.failed)
            for kind, count in zip(_KINDS, used[2:], strict=True):
                tokens.labels(*who, kind).value = float(count)

    registry.before_scrape(collect)
