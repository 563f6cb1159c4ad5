"""Where a pool's model files lie in its pods, and who brings them there.

A model that is downloaded before the engine starts becomes a plain folder, named after its address and revision:
it needs no file system with links, several pools may share it, and an engine that is told of a folder asks no hub.
"""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool.model import Object

MODEL_MOUNT: Final = "/models"
CACHE_MOUNT: Final = "/var/cache/tidepool"
# Where engines keep what they download themselves, below the mount.
HUB_FOLDER: Final = "huggingface"
_MODELS: Final = "models"
VOLUME: Final = "cache"
_DIGITS: Final = 10
_SLUG: Final = 60
_STORES: Final = ("s3://", "gs://")


class Way(StrEnum):
    """How the model's files come to the engine."""

    MOUNTED = "mounted"  # they are there: a claim, an image, the engine's own file system
    ENGINE = "engine"  # the engine downloads them
    POD = "pod"  # an init container of each pod does
    JOB = "job"  # a Job does, before there is a pod


@dataclass(frozen=True, slots=True)
class Files:
    """What is downloaded as a whole: a model, at a revision where its address has any."""

    uri: str
    revision: str | None = None

    @property
    def folder(self) -> str:
        """Its name: readable, and different for each address and revision."""
        digest = hashlib.sha256(f"{self.uri}@{self.revision or ''}".encode()).hexdigest()[:_DIGITS]
        slug = re.sub(r"[^A-Za-z0-9.]+", "-", self.uri.partition("://")[2]).strip("-.")[:_SLUG]
        return f"{slug or 'model'}-{digest}"

    @property
    def path(self) -> str:
        """Where it lies in every pod that mounts the cache."""
        return f"{CACHE_MOUNT}/{_MODELS}/{self.folder}"


def way(pool: ModelPool) -> Way:
    """Who brings the model's files."""
    uri, cache = pool.spec.model.uri, pool.spec.cache
    if not uri.startswith(("hf://", *_STORES)):
        return Way.MOUNTED
    if cache is not None and cache.preload:
        return Way.JOB if preloads(pool) else Way.POD
    # Engines download from the hub by themselves; none of the others' loaders for object stores is in every image.
    return Way.POD if uri.startswith(_STORES) else Way.ENGINE


def preloads(pool: ModelPool) -> bool:
    """Whether Jobs fill the pool's cache: a claim can be filled for all, a node's folder only by a pod there."""
    cache = pool.spec.cache
    return cache is not None and cache.preload and cache.persistent_volume_claim is not None


def model_claim(pool: ModelPool) -> str | None:
    """The claim that a pvc:// model lies on."""
    scheme, _, rest = pool.spec.model.uri.partition("://")
    return rest.partition("/")[0] if scheme == "pvc" else None


def files(pool: ModelPool) -> Files:
    """The model's."""
    return Files(pool.spec.model.uri, pool.spec.model.revision)


def volume(pool: ModelPool) -> Object | None:
    """The volume that the cache's mount shows; None where the pool needs none."""
    cache = pool.spec.cache
    if cache is not None and cache.persistent_volume_claim:
        return {"name": VOLUME, "persistentVolumeClaim": {"claimName": cache.persistent_volume_claim}}
    if cache is not None and cache.host_path:
        # Made by whoever owns the nodes: what the kubelet makes belongs to root, and engines are somebody else.
        return {"name": VOLUME, "hostPath": {"path": cache.host_path, "type": "Directory"}}
    return {"name": VOLUME, "emptyDir": {}} if way(pool) is Way.POD else None


def claim_of(template: Object) -> str:
    """The claim that a pod's cache lies on; empty where it lies elsewhere."""
    volumes: list[Object] = template["spec"].get("volumes") or []
    claims = (one.get("persistentVolumeClaim") or {} for one in volumes if one["name"] == VOLUME)
    return str(next((claim.get("claimName", "") for claim in claims), ""))


def mount(*, read_only: bool) -> Object:
    """The mount of `volume`."""
    return {"name": VOLUME, "mountPath": CACHE_MOUNT} | ({"readOnly": True} if read_only else {})


def hub_home(pool: ModelPool) -> str | None:
    """HF_HOME of an engine that downloads into the cache by itself."""
    return f"{CACHE_MOUNT}/{HUB_FOLDER}" if pool.spec.cache is not None and way(pool) is Way.ENGINE else None
