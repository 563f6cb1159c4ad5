"""Owner of what pools contend for: holds all decisions of a look against the room and the quotas there are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from tidepool_api.scaling import Mode
from tidepool_operator.cluster.quotas import Bounds
from tidepool_operator.pool.room import Room, Shape
from tidepool_operator.scaling.arbitration import Claim, Market, Share, contested, shares
from tidepool_operator.scaling.model import Decision, PodState, Refused, ScaledPool
from tidepool_operator.scaling.schedules import bounded

GAVE_WAY: Final = "GaveWay"


@dataclass(frozen=True, slots=True)
class Asks:
    """What a pool's pods ask for: their priority class, and by variant shape, device and number of devices."""

    priority_class: str
    shapes: Mapping[str, tuple[Shape, str, int]]


class Looks(Protocol):
    """The cluster's nodes."""

    async def room(self) -> Room | None:
        """The room as of a moment ago; None where it cannot be known."""
        ...


class Bounding(Protocol):
    """What bounds pools beside the nodes."""

    async def bounds(self) -> Bounds:
        """Quotas and priorities as of a moment ago."""
        ...


class Shapes(Protocol):
    """What pools' pods look like."""

    def asks(self, key: str) -> Asks | None:
        """For a pool ("namespace/name"); None while its spec is unsound."""
        ...


Decided = tuple[ScaledPool, Decision, Mapping[str, int]]  # the last: its replicas by variant as they are


class Arbiter:
    """Judges all decisions of a look together; looks at the cluster only where pools want more than they have."""

    def __init__(self, nodes: Looks, quotas: Bounding, shapes: Shapes) -> None:
        self._nodes = nodes
        self._quotas = quotas
        self._shapes = shapes

    async def settled(self, now: float, decided: Sequence[Decided]) -> list[Decision]:
        """The decisions with the replicas that each pool may have now, in their order."""
        decisions = [decision for _, decision, _ in decided]
        acting = [each for each in decided if each[0].spec.mode is Mode.AUTO]
        pending = any(pod.state is PodState.PENDING for pool, _, _ in acting for pod in pool.pods)
        wants = any(_more(pool, decision, mix) for pool, decision, mix in acting)
        if not wants and not pending:
            return decisions
        room = await self._nodes.room()
        if room is None:
            return decisions
        bounds = await self._quotas.bounds()
        claims = [claim for each in acting for claim in self._claims(now, each, bounds)]
        if not contested(claims, pending=pending):
            return decisions
        given = shares(claims, Market(room, bounds.left))
        return [_given(pool, decision, given) for pool, decision, _ in decided]

    def _claims(self, now: float, decided: Decided, bounds: Bounds) -> list[Claim]:
        pool, decision, mix = decided
        asks = self._shapes.asks(pool.key)
        if asks is None:
            return []
        lowest = bounded(now, pool.spec, 0.0).min_replicas
        wanted = decision.mix if pool.spec.variants else {"": decision.replicas}
        current = mix if pool.spec.variants else {"": pool.replicas}
        claims = []
        for variant, want in wanted.items():
            if variant not in asks.shapes:
                continue
            shape, device, devices = asks.shapes[variant]
            minimum = min(want, lowest)
            lowest -= minimum
            claims.append(
                Claim(
                    key=_key(pool, variant),
                    namespace=pool.namespace,
                    current=current.get(variant, 0),
                    want=want,
                    minimum=minimum,
                    priority=bounds.priorities.get(asks.priority_class, bounds.priorities[""]),
                    shape=shape,
                    pods=tuple(pod.uid for pod in pool.pods if pod.variant == variant or not pool.spec.variants),
                    device=device,
                    devices=devices,
                )
            )
        return claims


def _key(pool: ScaledPool, variant: str) -> str:
    return f"{pool.key} {variant}" if variant else pool.key


def _more(pool: ScaledPool, decision: Decision, mix: Mapping[str, int]) -> bool:
    if pool.spec.variants:
        return any(count > mix.get(name, 0) for name, count in decision.mix.items())
    return decision.replicas > pool.replicas


def _given(pool: ScaledPool, decision: Decision, given: Mapping[str, Share]) -> Decision:
    names = tuple(decision.mix) if pool.spec.variants else ("",)
    found = {name: share for name in names if (share := given.get(_key(pool, name))) is not None}
    if pool.spec.mode is not Mode.AUTO or not found:
        return decision
    wanted = decision.mix if pool.spec.variants else {"": decision.replicas}
    mix = {name: found[name].replicas if name in found else wanted[name] for name in names}
    refusals = {name: share.refused for name, share in found.items() if share.refused is not None}
    if not refusals and mix == dict(wanted):
        return decision
    replicas = sum(mix.values())
    message = decision.message
    for name, refusal in refusals.items():
        message += f"; {name + ': ' if name else ''}{refusal.message}"
    if replicas != decision.replicas:
        message += f"; given {replicas}"
    refused = _together(refusals)
    return replace(
        decision,
        replicas=replicas,
        mix=mix if pool.spec.variants else {},
        reason=_reason(pool, decision, replicas, refused),
        message=message,
        refused=refused,
        lacking=tuple(name for name in refusals if name),
    )


def _together(refusals: Mapping[str, Refused]) -> Refused | None:
    if not refusals:
        return None
    first = next(iter(refusals.values()))
    words = "; ".join(f"{name}: {each.message}" if name else each.message for name, each in refusals.items())
    return Refused(sum(each.replicas for each in refusals.values()), first.reason, words)


def _reason(pool: ScaledPool, decision: Decision, replicas: int, refused: Refused | None) -> str:
    if replicas < min(pool.replicas, decision.replicas):
        return GAVE_WAY
    return refused.reason if refused is not None and replicas != decision.replicas else decision.reason
