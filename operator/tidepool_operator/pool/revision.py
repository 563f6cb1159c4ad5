"""The name of a pod shape: what makes two engines differ makes two revisions."""

import hashlib
import json
from copy import deepcopy
from typing import Final

from tidepool_api.contract import LOADER_CONTAINER, REVISION_LABEL, ROUTER_CONTAINER
from tidepool_operator.pool.model import Object

_LENGTH: Final = 10


def revision_of(template: Object) -> str:
    """Ten hexadecimal digits of the whole pod template's hash.

    Two things are left out: the label that carries the revision itself, and the router's image, which loads models
    too, so that an upgrade of the operator restarts no engine (a pod keeps the router that it was born with; new
    ones get the newest). Settings, replicas, scaling, routing and drain are no part of the template in the first
    place.
    """
    plain = deepcopy(template)
    plain.get("metadata", {}).get("labels", {}).pop(REVISION_LABEL, None)
    for container in plain["spec"].get("initContainers", []):
        if container.get("name") in (ROUTER_CONTAINER, LOADER_CONTAINER):
            container["image"] = ""
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]
