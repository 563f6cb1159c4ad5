"""A pool's `traffic`, compiled: names of pools are pools, conditions are what they are compared with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from tidepool_api.traffic import Classifier, RequestType, Traffic, TrafficRule, When
from tidepool_api.units import duration_seconds
from tidepool_router.facts import Api
from tidepool_router.governance.asked import Asked

P = TypeVar("P")
API_OF: Final = {kind: Api[kind.name] for kind in RequestType}


@dataclass(frozen=True, slots=True)
class Condition:
    """All of it must hold; what is None or empty holds always. Cheap parts are looked at first."""

    models: frozenset[str]
    apis: frozenset[Api]
    min_prompt_tokens: int | None
    max_prompt_tokens: int | None
    headers: tuple[tuple[bytes, frozenset[str]], ...]
    parameters: tuple[tuple[str, frozenset[str]], ...]

    def holds(self, asked: Asked) -> bool:
        """Whether the request is meant."""
        facts = asked.facts
        if (self.models and facts.model not in self.models) or (self.apis and facts.api not in self.apis):
            return False
        return self._long_enough(asked) and self._marked(asked)

    def _long_enough(self, asked: Asked) -> bool:
        low, high = self.min_prompt_tokens, self.max_prompt_tokens
        if low is None and high is None:
            return True
        tokens = asked.prompt_tokens
        return (low is None or tokens >= low) and (high is None or tokens <= high)

    def _marked(self, asked: Asked) -> bool:
        for name, values in self.headers:
            found = asked.header(name)
            if not found or (values and values.isdisjoint(found)):
                return False
        for member, values in self.parameters:
            value = asked.parameter(member)
            if value is None or (values and value not in values):
                return False
        return True


@dataclass(frozen=True, slots=True)
class ClassifierTable(Generic[P]):
    """Whom to ask, for how long, and which class goes where."""

    url: str
    timeout_seconds: float
    classes: Mapping[str, P]


@dataclass(frozen=True, slots=True)
class RuleTable(Generic[P]):
    """One rule with a place to go to."""

    name: str
    condition: Condition
    pool: P | None
    classifier: ClassifierTable[P] | None


@dataclass(frozen=True, slots=True)
class Table(Generic[P]):
    """`shares` are (upper bound of the point, pool), rising; a point above all of them stays with `own`.

    `mirror_below` bounds the points that are copied.
    """

    own: P
    rules: tuple[RuleTable[P], ...]
    shares: tuple[tuple[float, P], ...]
    mirror: P | None
    mirror_below: float
    fallback: tuple[P, ...]


def compile_traffic(traffic: Traffic, own: P, pools: Mapping[str, P]) -> Table[P]:
    """The table of one pool.

    What names a pool that is not there has no effect until it is: a rule does not hold, a share stays here.
    """
    mirror = traffic.mirror
    return Table(
        own=own,
        rules=tuple(rule for each in traffic.rules if (rule := _rule(each, pools)) is not None),
        shares=_shares(traffic, own, pools),
        mirror=None if mirror is None else pools.get(mirror.pool),
        mirror_below=0.0 if mirror is None else mirror.percent / 100.0,
        fallback=tuple(pools[name] for name in traffic.fallback if name in pools),
    )


def _shares(traffic: Traffic, own: P, pools: Mapping[str, P]) -> tuple[tuple[float, P], ...]:
    # Each share keeps its place whether its pool is there or not, so that a pool's coming moves nobody else.
    bounds: list[tuple[float, P]] = []
    upper = 0
    for share in traffic.split:
        upper += share.percent
        bounds.append((upper / 100.0, pools.get(share.pool, own)))
    return tuple(bounds)


def _rule(rule: TrafficRule, pools: Mapping[str, P]) -> RuleTable[P] | None:
    pool = None if rule.pool is None else pools.get(rule.pool)
    classifier = None if rule.classifier is None else _classifier(rule.classifier, pools)
    if pool is None and (classifier is None or not classifier.classes):
        return None
    return RuleTable(rule.name, _condition(rule.when), pool, classifier)


def _classifier(classifier: Classifier, pools: Mapping[str, P]) -> ClassifierTable[P]:
    classes = {each.name: pools[each.pool] for each in classifier.classes if each.pool in pools}
    return ClassifierTable(classifier.url, duration_seconds(classifier.timeout), classes)


def _condition(when: When) -> Condition:
    return Condition(
        models=frozenset(when.models),
        apis=frozenset(API_OF[kind] for kind in when.types),
        min_prompt_tokens=when.min_prompt_tokens,
        max_prompt_tokens=when.max_prompt_tokens,
        headers=tuple((match.name.lower().encode(), frozenset(match.values)) for match in when.headers),
        parameters=tuple((match.name, frozenset(match.values)) for match in when.parameters),
    )
