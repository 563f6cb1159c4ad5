"""Where the cluster keeps things: a cache that survives `down`, and a state that does not."""

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def cache_dir() -> Path:
    """Built programs, base images, the engine: expensive to make, shared by all clones."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "tidepool"


def state_dir() -> Path:
    """What a running cluster is made of; `down` removes all of it."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "tidepool" / "cluster"
