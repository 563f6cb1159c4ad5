"""What bounds pools beside the nodes: ResourceQuotas by namespace, and the values of PriorityClasses.

Listed now and then, and only while pools contend for accelerators.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final

from tidepool_api.units import quantity_value
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import PRIORITY_CLASS, RESOURCE_QUOTA, Kind, Object
from tidepool_operator.errors import ApiError, Forbidden

log = logging.getLogger(__name__)

_FRESH_SECONDS: Final = 10.0
_REFUSED_SECONDS: Final = 600.0
# Quotas count extended resources by their requests only.
_REQUESTS: Final = "requests."
# https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/: every cluster has these two.
_BUILT_IN: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


@dataclass(frozen=True, slots=True)
class Bounds:
    """`left`: (name of the quota, devices left) by (namespace, device). `priorities`: values by class name, and
    under "" that of pods that name none."""

    left: Mapping[tuple[str, str], tuple[str, int]] = field(default_factory=dict)
    priorities: Mapping[str, int] = field(default_factory=lambda: {"": 0, **_BUILT_IN})


class Quotas:
    """Looks on demand. `wanted` False: never, since this installation may not see the whole cluster."""

    def __init__(self, api: Api, *, wanted: bool = True) -> None:
        self._api = api
        self._wanted = wanted
        self._bounds = Bounds()
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def bounds(self) -> Bounds:
        """Bounds as of a moment ago. Raises nothing: what cannot be listed bounds nobody."""
        async with self._lock:
            if self._wanted and time.monotonic() >= self._until:
                quotas, fresh = await self._list(RESOURCE_QUOTA)
                classes, too = await self._list(PRIORITY_CLASS)
                self._bounds = Bounds(left_of(quotas), priorities_of(classes))
                self._until = time.monotonic() + max(fresh, too)
            return self._bounds

    async def _list(self, kind: Kind) -> tuple[list[Object], float]:
        try:
            return [item async for page in self._api.pages(kind) for item in page], _FRESH_SECONDS
        except Forbidden as error:
            log.warning("accelerators are shared without knowing every %s: %s", kind, error)
            return [], _REFUSED_SECONDS
        except ApiError as error:
            log.warning("every %s could not be listed: %s", kind, error)
            return [], _FRESH_SECONDS


def left_of(quotas: list[Object]) -> dict[tuple[str, str], tuple[str, int]]:
    """The tightest quota of each namespace and device; one that is for some pods only bounds nobody here."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for item in quotas:
        spec, status = item.get("spec") or {}, item.get("status") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        used = status.get("used") or {}
        for name, hard in (status.get("hard") or spec.get("hard") or {}).items():
            if not name.startswith(_REQUESTS) or "/" not in name:
                continue
            left = int(_amount(hard) - _amount(used.get(name, "0")))
            place = (item["metadata"]["namespace"], name.removeprefix(_REQUESTS))
            if place not in found or left < found[place][1]:
                found[place] = (item["metadata"]["name"], left)
    return found


def priorities_of(classes: list[Object]) -> dict[str, int]:
    """Values by name; of several defaults the lowest counts, as the API server has it."""
    found = {"": 0, **_BUILT_IN}
    defaults = [int(item["value"]) for item in classes if item.get("globalDefault")]
    found[""] = min(defaults, default=0)
    return found | {item["metadata"]["name"]: int(item["value"]) for item in classes}


def _amount(text: object) -> Decimal:
    try:
        return quantity_value(str(text))
    except ValueError:
        return Decimal(0)
