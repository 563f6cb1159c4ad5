"""Where the cluster keeps things: a cache that survives `down`, and a state that does not."""

import os
import re
from pathlib import Path

from cluster.errors import ClusterError

REPOSITORY = Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """Built programs, base images, the engine: expensive to make, shared by all clones."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tidepool"


_DEFAULT_NAME = "tidepool"
NAME_VARIABLE = "TIDEPOOL_CLUSTER"


def cluster_name() -> str:
    """Tells clusters on one machine apart: the tests of this folder make one beside yours.

    Raises ClusterError on a name that cannot be part of a network device's.
    """
    name = os.environ.get(NAME_VARIABLE) or _DEFAULT_NAME
    if not re.fullmatch(r"[a-z][a-z0-9]{0,11}", name):
        raise ClusterError(f"{NAME_VARIABLE}={name}: use up to 12 small letters and digits, a letter first")
    return name


def state_dir() -> Path:
    """What a running cluster is made of; `down` removes all of it."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return (
        Path(base) / "tidepool" / ("cluster" if cluster_name() == _DEFAULT_NAME else f"cluster-{cluster_name()}")
    )
