"""Why the scheduler finds no node for a pod, by the message of its PodScheduled condition.

The message sums up, with a number of nodes before each: "0/5 nodes are available: 2 Insufficient nvidia.com/gpu,
3 node(s) had untolerated taint {gpu: true}." (k8s.io/kubernetes pkg/scheduler/framework/types.go, FitError).
"""

import re
from typing import Final

from tidepool_operator.pool.reasons import Reason

_VOLUME: Final = re.compile(
    r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim \S+ (not found|is being deleted|bound to)|"
    r"didn't find available persistent volumes|volume node affinity conflict|binding volumes|"
    r"did not have enough free storage|max volume count",
    re.I,
)
# Taints that Kubernetes itself sets keep everybody out; they are no place for the pool's pods.
_TAINT: Final = re.compile(
    r"\d+ node\(s\) had untolerated taint(\(s\))?"
    r"(?! \{(node-role\.kubernetes\.io/control-plane|node\.kubernetes\.io/))"
)
_SELECTOR: Final = re.compile(r"(\d+) node\(s\) didn't match Pod's node affinity/selector")
# Nodes that would perhaps do, if they took pods: then nobody knows that no node has the labels.
_SHUT: Final = re.compile(
    r"\d+ node\(s\) (were unschedulable|had untolerated taint(\(s\))? \{node\.kubernetes\.io/)"
)
_INSUFFICIENT: Final = re.compile(r"\d+ Insufficient (\S+?)[,.]?(\s|$)|\d+ Too many pods")


def why_unplaced(message: str, accelerator: str) -> Reason:
    """The foremost of what the message sums up: a missing volume stops every node, a device may be freed."""
    if _VOLUME.search(message):
        return Reason.VOLUME_PENDING
    # A node that only lacks free devices has passed selectors and taints: those of other nodes do not matter.
    if re.search(rf"\d+ Insufficient {re.escape(accelerator)}([,.\s]|$)", message):
        return Reason.INSUFFICIENT_ACCELERATORS
    if _INSUFFICIENT.search(message):
        return Reason.INSUFFICIENT_RESOURCES
    if _TAINT.search(message):
        return Reason.TAINT_NOT_TOLERATED
    unmatched = _SELECTOR.search(message) is not None and _SHUT.search(message) is None
    return Reason.NODE_SELECTOR_UNMATCHED if unmatched else Reason.UNSCHEDULABLE
