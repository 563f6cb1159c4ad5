"""Keeps the LoRA adapters of a running engine as the settings want them: loads, moves, takes away.

Level by level: what the engine lists at the last look is held against what is wanted, whatever led to either. One
step is taken at a time and beside the looks, since a load may take minutes; one that fails is tried again, later
and later. An engine that is a new process has none of them, and gets them before its pod takes requests.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidepool_api.routing import WantedAdapter
from tidepool_router.errors import UpstreamError
from tidepool_router.fleet.client import Answer, post
from tidepool_router.fleet.endpoint import Endpoint
from tidepool_router.fleet.engine_probe import Probe

log = logging.getLogger("tidepool.sidecar")

_LOAD: Final = "/v1/load_lora_adapter"
_UNLOAD: Final = "/v1/unload_lora_adapter"
# The engine may have to download it.
_LOAD_SECONDS: Final = 300.0
_UNLOAD_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 2.0
_LONGEST_PAUSE_SECONDS: Final = 300.0
_REASON_CHARACTERS: Final = 300
_CLOSED: Final = "the engine takes no adapters while it runs; it was started without --enable-lora"


class Act(StrEnum):
    """What is done about one adapter."""

    LOAD = "load"
    MOVE = "move"  # it is loaded from elsewhere
    UNLOAD = "unload"


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the engine."""

    act: Act
    name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """What the engine said the last time, of which path, how often in a row, and when it is asked again."""

    path: str
    reason: str
    times: int
    again_at: float


def steps(
    wanted: Sequence[WantedAdapter], served: Mapping[str, str], failures: Mapping[str, Failure], now: float
) -> list[Step]:
    """What is to be done now. `served` are the engine's adapters, paths by name.

    First goes what nobody wants any more, since its slot may be needed.
    """
    names = {adapter.name for adapter in wanted}
    found = [Step(Act.UNLOAD, name) for name in sorted(served.keys() - names) if _may(name, "", failures, now)]
    for adapter in wanted:
        path = served.get(adapter.name)
        if path != adapter.path and _may(adapter.name, adapter.path, failures, now):
            found.append(Step(Act.LOAD if path is None else Act.MOVE, adapter.name, adapter.path))
    return found


def _may(name: str, path: str, failures: Mapping[str, Failure], now: float) -> bool:
    failed = failures.get(name)
    return failed is None or failed.path != path or now >= failed.again_at


class AdapterKeeper:
    """One engine's. `wanted` None: its adapters are nobody's business here."""

    def __init__(self, engine: Endpoint, now: Callable[[], float], changed: Callable[[], None]) -> None:
        self._engine = engine
        self._now = now
        self._changed = changed
        self._wanted: tuple[WantedAdapter, ...] | None = None
        self._served: dict[str, str] = {}
        self._failures: dict[str, Failure] = {}
        self._task: asyncio.Task[None] | None = None
        self._was_settled = False

    @property
    def settled(self) -> bool:
        """Whether each adapter has had its turn in this life of the engine: then requests may come. One that is
        added later does not take a pod away that serves."""
        if self._wanted is None or self._was_settled:
            return True
        return all(one.name in self._failures or self._served.get(one.name) == one.path for one in self._wanted)

    @property
    def failed(self) -> tuple[tuple[str, str], ...]:
        """Wanted adapters that the engine does not take, each with its words."""
        if not self._failures:
            return ()
        names = {adapter.name for adapter in self._wanted or ()}
        return tuple([(name, one.reason) for name, one in sorted(self._failures.items()) if name in names])

    def want(self, wanted: tuple[WantedAdapter, ...] | None) -> None:
        """From the settings. What changed is tried at the next look, what failed before as well."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._failures.clear()

    def looked(self, probe: Probe) -> None:
        """After a look at the engine: begin with what is to be done, unless something still is being done."""
        if not probe.answers:
            if probe.gone:
                self._failures.clear()
                self._served = {}
                self._was_settled = False
            return
        self._served = dict(zip(probe.adapters, probe.adapter_paths, strict=True))
        if self._wanted is None or (self._task is not None and not self._task.done()):
            return
        self._was_settled = self.settled
        found = steps(self._wanted, self._served, self._failures, self._now())
        if found:
            self._task = asyncio.create_task(self._take(found), name="adapters")

    async def close(self) -> None:
        """Give up what is being done."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _take(self, found: Sequence[Step]) -> None:
        for step in found:
            problem = await self._ask(step)
            if problem is None:
                log.info("adapter", extra={"act": str(step.act), "adapter": step.name})
                self._failures.pop(step.name, None)
                self._note(step)
            else:
                log.warning("adapter", extra={"act": str(step.act), "adapter": step.name, "reason": problem})
                self._failures[step.name] = self._failure(step, problem)
            self._changed()

    def _note(self, step: Step) -> None:
        """What the next look will show."""
        if step.act is Act.UNLOAD:
            self._served.pop(step.name, None)
        else:
            self._served[step.name] = step.path

    def _failure(self, step: Step, reason: str) -> Failure:
        before = self._failures.get(step.name)
        times = before.times + 1 if before is not None and before.path == step.path else 1
        pause_seconds = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** min(times - 1, 10))
        return Failure(step.path, reason, times, self._now() + pause_seconds)

    async def _ask(self, step: Step) -> str | None:
        """Why the engine did not do it; None when it did."""
        body: dict[str, object] = {"lora_name": step.name}
        path, seconds = _UNLOAD, _UNLOAD_SECONDS
        if step.act is not Act.UNLOAD:
            path, seconds = _LOAD, _LOAD_SECONDS
            body |= {"lora_path": step.path, "load_inplace": step.act is Act.MOVE}
        try:
            answer = await post(self._engine, path, json.dumps(body).encode(), seconds)
        except UpstreamError as error:
            return f"the engine does not answer: {error}"[:_REASON_CHARACTERS]
        gone = step.act is Act.UNLOAD and answer.status == 404
        return None if answer.status == 200 or gone else _words(answer)


def _words(answer: Answer) -> str:
    """The engine's own, from an error body of either shape that vLLM has had."""
    if answer.status in (404, 405) and b"lora" not in answer.body.lower():
        return _CLOSED
    try:
        told = json.loads(answer.body)
        message = told["error"]["message"] if "error" in told else told["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.body.decode("utf-8", "replace")
    return " ".join(str(message).split())[:_REASON_CHARACTERS] or f"the engine answers {answer.status}"
