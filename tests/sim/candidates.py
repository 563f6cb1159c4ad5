"""Who takes part in the tables."""

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
# Baselines with constants tuned on the training seeds (tune.py); the published ones stand above.
TUNED: Final[dict[str, Hire]] = {}
CANDIDATES: Final = PRODUCT | BASELINES | TUNED
