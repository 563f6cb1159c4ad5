"""Whether a live object still is what was asked for, judged by what we asked for only."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from tidepool_api.contract import GROUP
from tidepool_api.units import quantity_value
from tidepool_operator.pool.model import Object

# Hash of the object as it was last applied: a field that is no longer asked for leaves no other trace.
APPLIED_ANNOTATION: Final = f"{GROUP}/applied"
# Maps that are replaced as a whole: one more entry in a Service's selector, and it selects nothing
# (+mapType=atomic and +structType=atomic in k8s.io/api and apimachinery's LabelSelector).
_ATOMIC: Final = ("selector", "podSelector", "namespaceSelector", "nodeSelector", "labelSelector")
# In the order in which a list's entries are told apart (list map keys in k8s.io/api/core/v1/types.go).
_KEYS: Final = ("name", "containerPort", "mountPath", "topologyKey", "ip", "uid")
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?")


def stamped(desired: Object) -> Object:
    """`desired` with its own hash; a workload's replicas are not part of it, since they are scaled apart."""
    plain = json.dumps(_without_replicas(desired), sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(plain.encode()).hexdigest()[:16]
    metadata = desired["metadata"]
    annotations = (metadata.get("annotations") or {}) | {APPLIED_ANNOTATION: digest}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def differs(desired: Object, live: Object | None) -> bool:
    """Whether `desired` (stamped) must be applied.

    Foreign fields, also foreign entries of lists with keys, are nobody's business here.
    """
    return live is None or not _covers(_without_replicas(desired), live)


def _without_replicas(item: Object) -> Object:
    if item["kind"] not in ("Deployment", "LeaderWorkerSet"):
        return item
    return {**item, "spec": {key: value for key, value in item["spec"].items() if key != "replicas"}}


def _covers(desired: Any, live: Any) -> bool:  # noqa: ANN401 - any JSON value
    if isinstance(desired, Mapping):
        # The API server drops empty maps and lists.
        return isinstance(live or {}, Mapping) and all(
            _same_map(value, (live or {}).get(key)) if key in _ATOMIC else _covers(value, (live or {}).get(key))
            for key, value in desired.items()
        )
    if isinstance(desired, list):
        return _covers_list(desired, live or [])
    if isinstance(desired, str) and isinstance(live, str) and desired != live:
        return _same_quantity(desired, live)
    # An unset field and its zero value are one to the API server.
    return bool(desired == live) or (live is None and desired in (False, 0, ""))


def _same_map(desired: Any, live: Any) -> bool:  # noqa: ANN401 - any JSON value
    return (desired or {}) == (live or {})


def _covers_list(desired: Sequence[Any], live: Any) -> bool:  # noqa: ANN401 - any JSON value
    if not isinstance(live, list):
        return False
    key = _key(desired)
    if key is None:
        return len(desired) == len(live) and all(map(_covers, desired, live))
    found = {entry.get(key): entry for entry in live if isinstance(entry, Mapping)}
    return all(entry[key] in found and _covers(entry, found[entry[key]]) for entry in desired)


def _key(entries: Sequence[Any]) -> str | None:
    if not entries or not all(isinstance(entry, Mapping) for entry in entries):
        return None
    for key in _KEYS:
        values = [entry.get(key) for entry in entries]
        if None not in values and len(set(map(str, values))) == len(values):
            return key
    return None


def _same_quantity(desired: str, live: str) -> bool:
    """`1000m` comes back as `1`."""
    if not (_QUANTITY.fullmatch(desired) and _QUANTITY.fullmatch(live)):
        return False
    values: tuple[Decimal, Decimal] = (quantity_value(desired), quantity_value(live))
    return values[0] == values[1]
