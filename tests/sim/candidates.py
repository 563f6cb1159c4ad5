"""Who takes part in the tables."""

from functools import partial
from typing import Final

from tidepool_api.routing import Policy

from .baselines.cache_aware import CacheAware
from .baselines.kubeai import KubeAI
from .baselines.least_inflight import LeastInFlight
from .baselines.llm_d_blend import LlmDBlend
from .baselines.llm_d_sticky import LlmDSticky
from .baselines.power_of_two import PowerOfTwo
from .baselines.round_robin import RoundRobin
from .ours import product
from .world import Hire, baseline

BASELINES: Final[dict[str, Hire]] = {
    "round robin": baseline(RoundRobin),
    "least in-flight": baseline(LeastInFlight),
    "power of two": baseline(PowerOfTwo),
    "KubeAI": baseline(KubeAI),
    "llm-d 2/2/3": baseline(LlmDBlend),
    "llm-d sticky": baseline(LlmDSticky),
    "cache aware": baseline(CacheAware),
}

OURS: Final = "Predicted"
PRODUCT: Final[dict[str, Hire]] = {
    OURS: product(Policy.PREDICTED),
    "LeastLoad": product(Policy.LEAST_LOAD),
    "PrefixHash": product(Policy.PREFIX_HASH),
    "RoundRobin": product(Policy.ROUND_ROBIN),
}
# Baselines with the constants that tune.py found best on the training seeds; the published ones stand above.
TUNED: Final[dict[str, Hire]] = {
    "KubeAI tuned": baseline(partial(KubeAI, load_factor=1.1)),
    "llm-d blend tuned": baseline(partial(LlmDBlend, weights=(2.0, 2.0, 1.0))),
    "llm-d sticky tuned": baseline(partial(LlmDSticky, penalty_seconds=0.5, tokens_per_second=17_400.0)),
    "cache aware tuned": baseline(partial(CacheAware, cache_threshold=0.5, abs_threshold=32, rel_threshold=1.1)),
}
CANDIDATES: Final = PRODUCT | BASELINES | TUNED
