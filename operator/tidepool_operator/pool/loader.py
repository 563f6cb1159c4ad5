"""The container that downloads a model: in a Job of its own, or before the engine in a pod."""

import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Final

from tidepool_api import contract
from tidepool_api.engine import SecretKey
from tidepool_api.modelpool import ModelPool
from tidepool_operator.pool import cache
from tidepool_operator.pool.cache import Files
from tidepool_operator.pool.model import Object
from tidepool_operator.pool.pod_parts import locked_down

_TMP: Final = "/tmp"  # noqa: S108 - a volume of the pod
_FIXED: Final = {
    "HOME": _TMP,
    "USER": "tidepool",
    "HF_HOME": f"{_TMP}/huggingface",
    "DO_NOT_TRACK": "1",
    # Its copy of chunks would take the room of a second model.
    "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
}
# Of the engine's variables those that say how to reach a store: endpoints, regions, proxies, certificates.
_SHARED: Final = re.compile(
    r"(HF|AWS|GOOGLE)_[A-Z0-9_]+|(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)"
)
# Keys that a Secret for s3:// has, and variables of the same names; whether each must be there.
_S3_KEYS: Final = {
    "AWS_ACCESS_KEY_ID": True,
    "AWS_SECRET_ACCESS_KEY": True,
    "AWS_SESSION_TOKEN": False,
}


def container(pool: ModelPool, files: Files, image: str) -> Object:
    """Loads `files` into the cache's mount, and ends; what is there already takes it no time."""
    revision = ["--revision", files.revision] if files.revision else []
    return {
        "name": contract.LOADER_CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["load", files.uri, files.path, *revision, "--user", user(pool)],
        "env": environment(pool, files),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}},
        "securityContext": locked_down(),
        # Its last line is the cause, which the diagnosis reads.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": _TMP}, cache.mount(read_only=False)],
    }


def user(pool: ModelPool) -> str:
    """Whose files they are, in a claim that several may share."""
    return f"{pool.metadata.namespace}.{pool.metadata.name}"


def target(template: Object) -> str:
    """Where the loader of a Job's pod template brings its files to."""
    found = next(one for one in template["spec"]["containers"] if one["name"] == contract.LOADER_CONTAINER)
    return str(found["args"][2])


def asked(pool: ModelPool, files: Files) -> Object:
    """What a loader is to bring and by whose account, however a release has it done."""
    secret = _secret(pool, files.uri)
    return asdict(files) | ({} if secret is None else {"secret": [secret.name, secret.key]})


def environment(pool: ModelPool, files: Files) -> list[Object]:
    """Variables of the loader: credentials by reference, and what of spec.engine.env is about stores."""
    made: dict[str, Object] = {name: {"name": name, "value": value} for name, value in _FIXED.items()}
    made |= {entry["name"]: entry for entry in (*_credentials(pool, files.uri), *shared(pool))}
    return list(made.values())


def shared(pool: ModelPool) -> list[Object]:
    """Of the engine's variables those that are the loader's too."""
    found = (variable for variable in pool.spec.engine.env if _SHARED.fullmatch(variable.name))
    return [variable.model_dump(by_alias=True, exclude_none=True, mode="json") for variable in found]


def _secret(pool: ModelPool, uri: str) -> SecretKey | None:
    # An adapter's store has an account of its own, or the model's where both are of a kind.
    alike = uri.partition("://")[0] == pool.spec.model.uri.partition("://")[0]
    return pool.spec.model.auth_secret_ref if alike else None


def _credentials(pool: ModelPool, uri: str) -> Iterator[Object]:
    secret = _secret(pool, uri)
    if secret is None:
        return
    if uri.startswith("s3://"):
        for name, required in _S3_KEYS.items():
            reference: Object = {"name": secret.name, "key": name} | ({} if required else {"optional": True})
            yield {"name": name, "valueFrom": {"secretKeyRef": reference}}
        return
    variable = "GOOGLE_SERVICE_ACCOUNT_KEY" if uri.startswith("gs://") else "HF_TOKEN"
    yield {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret.name, "key": secret.key}}}
