"""Asks the API server and sidecars for what a diagnosis needs: logs, events, health; few, short and seldom.

Logs are read of pods in trouble only, and once for each life of an engine. What cannot be had (the chart may leave
these rights out) is a gap in the diagnosis and nothing worse.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidepool_api.load import Health
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import Object
from tidepool_operator.cluster.nodes import Nodes
from tidepool_operator.cluster.sidecars import Sidecars
from tidepool_operator.errors import ApiError
from tidepool_operator.pool.clues import Question, Wanted, happenings, wanted
from tidepool_operator.pool.engine_log import last_words
from tidepool_operator.pool.model import Clues, Happening

log = logging.getLogger(__name__)

# A trace of several workers is some hundred lines; usage of all flags, which vLLM prints for a wrong one, too.
_LINES: Final = 400
_BYTES: Final = 256 * 1024
_EVENTS: Final = 50
# Pods of one pool fail alike: a few of them tell as much as all.
_PODS: Final = 4
_REMEMBERED: Final = 512
# Neither an event nor a log says by itself that it has grown.
_AGAIN_SECONDS: Final = 15.0
_SELDOM_SECONDS: Final = 300.0
_AT_LEAST_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 5.0


@dataclass(slots=True)
class _Answer:
    """Clues, since when the pod is in this trouble, and until when they hold."""

    life: str
    questions: frozenset[Question]
    clues: Clues
    since: float
    until: float


class ClueReader:
    """Reads clues and remembers them: logs for a life of the engine, the rest for a quarter of a minute."""

    def __init__(
        self,
        api: Api,
        sidecars: Sidecars,
        nodes: Nodes,
        clock: Callable[[], float] = time.monotonic,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._api = api
        self._sidecars = sidecars
        self._nodes = nodes
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._known: OrderedDict[str, _Answer] = OrderedDict()
        self._refused = False

    async def read(self, namespace: str, pods: Sequence[Object]) -> tuple[Mapping[str, Clues], float | None]:
        """Clues by pod name, and when to look again (None: nothing is open)."""
        troubled = [(found, pod) for pod in pods if (found := wanted(pod))]
        asked = sorted(troubled, key=lambda pair: pair[0].pod)[:_PODS]
        if not asked:
            return {}, None
        answers = await asyncio.gather(*(self._of(namespace, one, pod) for one, pod in asked))
        soonest = min(answer.until for answer in answers) - self._clock()
        clues = {one.pod: answer.clues for (one, _), answer in zip(asked, answers, strict=True)}
        return clues, max(_AT_LEAST_SECONDS, soonest)

    async def _of(self, namespace: str, one: Wanted, pod: Object) -> _Answer:
        known, now = self._known.get(one.uid), self._clock()
        same = known is not None and (known.life, known.questions) == (one.life, one.questions)
        if known is not None and same and now < known.until:
            return known
        ended = known is not None and same and Question.HEALTH not in one.questions
        node = await self._nodes.trouble(one.node) if Question.NODE in one.questions else ""
        # On a node that is lost nobody answers for the pod.
        clues = Clues(
            log="" if node else (known.clues.log if known and ended else "") or await self._log(namespace, one),
            events=await self._events(namespace, one),
            health=None if node or Question.HEALTH not in one.questions else await self._health(pod),
            node=node,
        )
        since = known.since if known is not None and same else now
        # What has been wrong for long is looked at less often.
        pause = min(_SELDOM_SECONDS, max(_AGAIN_SECONDS, (now - since) / 4))
        answer = self._known[one.uid] = _Answer(one.life, one.questions, clues, since, now + pause)
        self._known.move_to_end(one.uid)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return answer

    async def _log(self, namespace: str, one: Wanted) -> str:
        if not one.questions & {Question.LOG, Question.LOG_BEFORE}:
            return ""
        before = Question.LOG_BEFORE in one.questions
        try:
            # The kubelet answers this one; where its node is gone nobody does, and the pool must not wait for it.
            async with asyncio.timeout(self._patience_seconds):
                text = await self._api.log(
                    namespace, one.pod, one.container, lines=_LINES, limit=_BYTES, previous=before
                )
        except (ApiError, TimeoutError) as error:
            self._missed(f"the log of pod {namespace}/{one.pod}", error)
            return ""
        # What is kept is what may be told: no more of a log than its errors stays in memory.
        return last_words(text)

    async def _events(self, namespace: str, one: Wanted) -> tuple[Happening, ...]:
        if Question.EVENTS not in one.questions:
            return ()
        try:
            async with asyncio.timeout(self._patience_seconds):
                return happenings(await self._api.events_of(namespace, one.uid, _EVENTS))
        except (ApiError, TimeoutError) as error:
            self._missed(f"the events of pod {namespace}/{one.pod}", error)
            return ()

    async def _health(self, pod: Object) -> Health | None:
        reports = await self._sidecars.loads([pod])
        return next((report.health for report in reports.values()), None)

    def _missed(self, what: str, error: Exception) -> None:
        level = logging.DEBUG if self._refused else logging.WARNING
        log.log(level, "%s could not be read, so the diagnosis does without: %r", what, error)
        self._refused = True
