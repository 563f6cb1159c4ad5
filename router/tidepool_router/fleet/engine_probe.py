"""What a sidecar asks its engine: is it up, what does it serve, how full is it."""

import json
from dataclasses import dataclass

from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.client import Answer, get
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.engine_page import EngineFigures, read_engine_page

_TIMEOUT_SECONDS = 5.0
_MOST_ADAPTERS = 256  # that are told on; a load report stays a line


@dataclass(frozen=True, slots=True)
class Probe:
    """One look at an engine. `problem` is None when it answers and serves what it must, else what is wrong."""

    answers: bool
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()  # of these, LoRA adapters: models that have another one as their parent
    adapter_paths: tuple[str, ...] = ()  # where each of these was loaded from
    problem: str | None = None
    gone: bool = False  # nobody listens on its port


async def probe_engine(engine: Endpoint, model: str | None, timeout_seconds: float = _TIMEOUT_SECONDS) -> Probe:
    """GET /health and /v1/models; `model` None accepts whatever it serves."""
    try:
        health = await get(engine, "/health", timeout_seconds)
        if health.status != 200:
            return Probe(answers=False, problem=f"the engine answers /health with {health.status}")
        listed = await get(engine, "/v1/models", timeout_seconds)
    except UpstreamError as error:
        return Probe(answers=False, problem=f"the engine does not answer: {error}", gone=error.kind == "connect")
    cards = _cards(listed)
    if cards is None:
        return Probe(answers=False, problem=f"the engine answers /v1/models with {listed.status} and no list")
    models = tuple(name for name, _, _ in cards)
    if model is not None and model not in models:
        return Probe(
            answers=False,
            models=models,
            problem=f"the engine serves {', '.join(models) or 'nothing'}, not {model}",
        )
    children = [(name, path) for name, is_child, path in cards if is_child][:_MOST_ADAPTERS]
    adapters, paths = tuple(name for name, _ in children), tuple(path for _, path in children)
    return Probe(answers=True, models=models, adapters=adapters, adapter_paths=paths)


async def scrape_engine(engine: Endpoint, timeout_seconds: float = _TIMEOUT_SECONDS) -> EngineFigures | None:
    """The engine's own figures; None when it does not tell them now."""
    try:
        answer = await get(engine, "/metrics", timeout_seconds)
    except UpstreamError:
        return None
    return read_engine_page(answer.body) if answer.status == 200 else None


def _cards(answer: Answer) -> list[tuple[str, bool, str]] | None:
    """Names of the list, whether each is a child of another model, and where it was loaded from."""
    if answer.status != 200:
        return None
    try:
        listed = json.loads(answer.body)
        return [
            (str(card["id"]), bool(card.get("parent")), str(card.get("root") or "")) for card in listed["data"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
