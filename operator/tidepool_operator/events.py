"""Kubernetes events about pools and workflows: each message at most once in a while."""

import logging
import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final

from tidepool_api.contract import FIELD_MANAGER
from tidepool_operator.cluster.api import Api
from tidepool_operator.cluster.kinds import EVENT, Object
from tidepool_operator.errors import ApiError
from tidepool_operator.pool.model import Note

log = logging.getLogger(__name__)

_QUIET_SECONDS: Final = 600.0
_REMEMBERED: Final = 4096
_NOTE_BYTES: Final = 1024  # bound of Event.note in events.k8s.io/v1


class Recorder:
    """Posts events. The same words about the same object are said once in ten minutes; a failed post is dropped,
    since an event must never hold up the work that it tells of."""

    def __init__(self, api: Api, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._said: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    async def post(self, about: Object, note: Note) -> None:
        """Say `note` about an object."""
        metadata = about["metadata"]
        if not self._new((metadata["uid"], note.reason, note.message)):
            return
        try:
            await self._api.event(metadata["namespace"], self._event(about, note))
        except ApiError as error:
            log.warning("event %s about %s not posted: %s", note.reason, metadata["name"], error)

    def _new(self, key: tuple[str, str, str]) -> bool:
        now = time.monotonic()
        said = self._said.get(key)
        if said is not None and now - said < _QUIET_SECONDS:
            return False
        self._said[key] = now
        self._said.move_to_end(key)
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        return True

    def _event(self, about: Object, note: Note) -> Object:
        metadata, now = about["metadata"], datetime.now(UTC)
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": f"{metadata['name']}.{time.time_ns():x}", "namespace": metadata["namespace"]},
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": FIELD_MANAGER,
            "reportingInstance": self._instance[:128],
            "action": "Reconcile",
            "type": str(note.severity),
            "reason": note.reason[:128],
            "note": note.message.encode()[: _NOTE_BYTES - 1].decode(errors="ignore"),
            "regarding": {
                "apiVersion": about["apiVersion"],
                "kind": about["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
        }
