"""All pools in one table. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tidepool_cli.explain import view
from tidepool_cli.kubectl import Object
from tidepool_cli.tables import age, moment, table

_HEADS = ("NAMESPACE", "POOL", "READY", "WANTED", "KV", "TOKENS/S", "TTFT", "STATE", "SINCE", "LAST DECISION")
_DECISION_CHARACTERS = 60


def rows(pools: Sequence[Object]) -> list[dict[str, Any]]:
    """One record a pool, those that are not Ready first."""
    found = []
    for pool in pools:
        seen = view(pool, (), ())
        found.append(
            {
                "namespace": seen.namespace,
                "name": seen.name,
                "ready": seen.ready,
                "readyReplicas": seen.serving,
                "replicas": seen.counted,
                "wanted": seen.wanted,
                "kvUtilization": seen.figures.get("kvUtilization"),
                "outputTokensPerSecond": seen.figures.get("outputTokensPerSecond"),
                "timeToFirstToken": seen.figures.get("timeToFirstToken"),
                "reason": seen.reason,
                "since": seen.since,
                "decision": seen.decisions[0].get("message", "") if seen.decisions else "",
            }
        )
    return sorted(found, key=lambda each: (each["ready"], each["namespace"], each["name"]))


def text(found: Sequence[dict[str, Any]], now: datetime) -> str:
    """For people."""
    if not found:
        return "There are no ModelPools here; -A looks in all namespaces."
    return table(
        _HEADS,
        [
            (
                *(each["namespace"], each["name"], f"{each['readyReplicas']}/{each['replicas']}", each["wanted"]),
                *(each["kvUtilization"], each["outputTokensPerSecond"], each["timeToFirstToken"], each["reason"]),
                *(age(moment(each["since"]), now), _cut(each["decision"])),
            )
            for each in found
        ],
    )


def _cut(words: str) -> str:
    return words if len(words) <= _DECISION_CHARACTERS else f"{words[: _DECISION_CHARACTERS - 1]}…"
