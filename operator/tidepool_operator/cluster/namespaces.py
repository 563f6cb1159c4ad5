"""What administrators allow a namespace's workflows and classifiers, by an annotation that only they may write.

Each namespace that has some is asked for now and then, by its name: that works with a Role in it as well,
where namespaces can be neither listed nor watched.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Final

from tidepool_api.contract import WORKFLOW_HOSTS_ANNOTATION
from tidepool_api.hosts import read_hosts
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import NAMESPACE
from tidepool_operator.errors import ApiError, NotFound

log = logging.getLogger(__name__)

# What was taken back ends so much later, and a little more for each namespace: they are asked for in turn.
LOOK_SECONDS: Final = 10.0
_EACH_SECONDS: Final = 0.1


class AllowedHosts:
    """Hosts by namespace. `wanted` names the namespaces; `changed` is called when the answer to one changed."""

    def __init__(self, api: Api, wanted: Callable[[], Collection[str]], changed: Callable[[], None]) -> None:
        self._api = api
        self._wanted = wanted
        self._changed = changed
        self._texts: dict[str, str] = {}  # the annotation as it stands, for what was told
        self._hosts: dict[str, tuple[str, ...]] = {}
        self._due = asyncio.Event()

    def of(self, namespace: str) -> tuple[str, ...]:
        """What gateways may call for a namespace; nothing before the first look."""
        return self._hosts.get(namespace, ())

    def mark_due(self) -> None:
        """There is a new workflow, or a new classifier."""
        self._due.set()

    async def look(self, pause_seconds: float = 0.0) -> None:
        """Ask for each namespace in turn. Raises nothing: one that cannot be asked for stays as it was."""
        self._due.clear()
        wanted, before = set(self._wanted()), dict(self._hosts)
        for gone in self._texts.keys() - wanted:
            del self._texts[gone]
            self._hosts.pop(gone, None)
        for namespace in sorted(wanted):
            text = await self._text(namespace)
            if text is not None and text != self._texts.get(namespace):
                self._take(namespace, text)
            await asyncio.sleep(pause_seconds)
        if self._hosts != before:
            self._changed()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._due.wait()
            await self.look(_EACH_SECONDS)

    async def _text(self, namespace: str) -> str | None:
        try:
            found = await self._api.get(NAMESPACE, None, namespace)
        except NotFound:
            return ""
        except ApiError as error:
            log.warning("namespace %s could not be asked for the hosts of its workflows: %s", namespace, error)
            return None
        return str((found["metadata"].get("annotations") or {}).get(WORKFLOW_HOSTS_ANNOTATION, ""))

    def _take(self, namespace: str, text: str) -> None:
        hosts, wrong = read_hosts(text)
        self._texts[namespace] = text
        self._hosts[namespace] = hosts
        if wrong:
            log.warning(
                "namespace %s: %s names %s, which is no host (such as search.tools, *.tools or search.tools:8080) "
                "or one too many; it is left out",
                namespace,
                WORKFLOW_HOSTS_ANNOTATION,
                ", ".join(repr(name[:100]) for name in wrong[:5]),
            )
