"""The process in which values are checked against schemas that may take long, one at a time (child_loop.py)."""

from collections.abc import Mapping
from typing import Any

from tidepool_router.workflow.child_loop import serve
from tidepool_router.workflow.schemas import wrong


def _checked(request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return {"wrong": wrong(request["schema"], request["value"], request["name"])}
    except MemoryError:
        return {"wrong": "cannot be checked: it needs more memory than it may have; make it smaller"}


if __name__ == "__main__":
    _checked({"schema": {"type": "object"}, "value": {}, "name": ""})  # what is imported late comes now
    serve(_checked)
