"""Which paths the traffic port knows, what each is, and which stay closed."""

import re
from enum import StrEnum
from typing import Final
from urllib.parse import unquote

from tidepool_api import contract
from tidepool_router.facts import Api


class Kind(StrEnum):
    """What is done with a request for a path."""

    INFERENCE = "inference"  # counted in the ledger, admitted, routed by its model
    MODELS = "models"
    MODEL = "model"  # one card of the list; `path` ends with its name
    ENGINE = "engine"  # the sidecar asks its engine; a gateway answers for itself
    LOAD = "load"
    LOAD_STREAM = "load-stream"
    CLOSED = "closed"


class Route:
    """One known path; `methods` are those that it takes, as bytes of the request line."""

    __slots__ = ("api", "kind", "methods", "path")

    def __init__(
        self, kind: Kind, path: str, api: Api = Api.OTHER, methods: tuple[bytes, ...] = (b"GET", b"HEAD")
    ) -> None:
        self.kind = kind
        self.path = path
        self.api = api
        self.methods = methods


_INFERENCE: Final = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
    "/v1/messages/count_tokens": Api.COUNT_TOKENS,
    "/v1/embeddings": Api.EMBEDDINGS,
    "/v2/embed": Api.EMBEDDINGS,
    "/v1/rerank": Api.RERANK,
    "/v2/rerank": Api.RERANK,
    "/rerank": Api.RERANK,
    "/v1/score": Api.SCORE,
    "/score": Api.SCORE,
    "/pooling": Api.EMBEDDINGS,
    "/classify": Api.EMBEDDINGS,
    "/v1/audio/transcriptions": Api.TRANSCRIPTIONS,
    "/v1/audio/translations": Api.TRANSCRIPTIONS,
    "/tokenize": Api.TOKENIZE,
    "/detokenize": Api.TOKENIZE,
}

# Paths of vLLM that change or stop an engine, or show what only the operator may see.
_CLOSED: Final = (
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/collective_rpc",
    "/pause",
    "/resume",
    "/is_paused",
    "/scale_elastic_ep",
    "/is_scaling_elastic_ep",
    "/start_profile",
    "/stop_profile",
    "/init_weight_transfer_engine",
    "/update_weights",
    "/get_world_size",
    "/server_info",
    "/metrics",
)


def _table() -> dict[bytes, Route]:
    routes = [Route(Kind.INFERENCE, path, api, (b"POST",)) for path, api in _INFERENCE.items()]
    routes += [Route(Kind.CLOSED, path) for path in _CLOSED]
    routes += [
        Route(Kind.MODELS, "/v1/models"),
        Route(Kind.ENGINE, "/health"),
        Route(Kind.ENGINE, "/version"),
        Route(Kind.LOAD, contract.PATH_LOAD),
        Route(Kind.LOAD_STREAM, contract.PATH_LOAD_STREAM),
    ]
    return {route.path.encode(): route for route in routes}


_ROUTES: Final = _table()
_DELIMITERS: Final = (b"?", b"#")
_ABSOLUTE: Final = re.compile(rb"https?://[^/?#]*", re.IGNORECASE)
_ONE_MODEL: Final = b"/v1/models/"


def find(target: bytes) -> Route | None:
    """Route of a request target (origin form, or absolute form as a client writes to a proxy); None: unknown.

    Matched literally: a percent-encoded or doubled slash never reaches a closed path by another spelling,
    because what is not in the table is not forwarded at all.
    """
    route = _ROUTES.get(target)
    if route is not None:
        return route
    path = path_of(target)
    if path.startswith(_ONE_MODEL) and len(path) > len(_ONE_MODEL):
        return Route(Kind.MODEL, path.decode("latin-1"))  # an engine is never asked for this path
    return _ROUTES.get(path)


def model_of(path: str) -> str:
    """Name of the model in the path of its card; clients escape a slash in it, or do not."""
    return unquote(path[len(_ONE_MODEL) :])


def path_of(target: bytes) -> bytes:
    """Path of a request target without scheme, authority, query and fragment."""
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        target = target[absolute.end() :] or b"/"
    for delimiter in _DELIMITERS:
        target = target.partition(delimiter)[0]
    return target
