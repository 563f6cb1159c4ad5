"""Checks of values against schemas: at once where that is little work, else in a child that may be stopped."""

import json
from collections.abc import Mapping
from typing import Any, Final

from tidepool_router.workflow.child import ChildFailed, Lanes
from tidepool_router.workflow.schemas import is_light, wrong

SECONDS: Final = 0.5


class Checker:
    """For all runs of a process; its children are started when they are first needed."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._lanes = Lanes("check_child", seconds)

    async def wrong(self, schema: Mapping[str, Any] | None, value: object, name: str) -> str | None:
        """What is wrong with a value, with its place below `name`; None: nothing."""
        if schema is None:
            return None
        if is_light(schema, value):
            return wrong(schema, value, name)
        try:
            answer = await self._lanes.ask(json.dumps(schema), {"schema": schema, "value": value, "name": name})
        except ChildFailed as error:
            return f"{name}: checking it against its schema {error}"
        found = answer["wrong"]
        return None if found is None else str(found)

    async def close(self) -> None:
        """End the children."""
        await self._lanes.close()
