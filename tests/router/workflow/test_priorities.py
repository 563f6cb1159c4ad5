"""What a workflow's calls have of their caller's priority: what the key grants, or less."""

from typing import Any

import pytest

from tidepool_api import contract
from tidepool_router.keys import ApiKey, Grant
from tidepool_router.workflow.manager import Workflows
from tidepool_router.workflow.models import as_pool_knows
from tidepool_router.workflow.serving import Serving

PRIORITIES = {"interactive": 100, "batch": 0, "spare": -10}


@pytest.mark.parametrize(
    ("granted", "asked", "name", "why"),
    [
        ("interactive", None, "interactive", "a name that the pool has"),
        ("interactive", "spare", "spare", "a header lowers it"),
        ("batch", "interactive", None, "and never raises it"),
        (100, None, "interactive", "a number is told by its name"),
        (50, None, "batch", "or by the next lower one"),
        (-10, None, "spare", "below all that ask for nothing"),
        (-10, "batch", "spare", "which no header raises"),
        (-99, None, None, "the pool has no name for that"),
        ("nobody", "interactive", None, "a name that the pool does not have is 0"),
        (0, "unknown", None, "what nobody knows changes nothing"),
    ],
)
def test_a_key_grants_and_a_header_may_lower(granted: Any, asked: str | None, name: str | None, why: str) -> None:
    key = ApiKey(id="q2m5tz7a", sha256="0" * 64, tenant="team", priority=granted)
    nobody: Any = None
    headers = {} if asked is None else {contract.HEADER_PRIORITY: asked}

    caller = Serving(nobody, Grant(key, 1, 0.0), keeps=False)._caller(headers)

    assert as_pool_knows(caller, PRIORITIES).get(contract.HEADER_PRIORITY) == name, why
    assert caller[contract.HEADER_TENANT] == "team"


def test_what_a_caller_says_of_itself_fits_the_store() -> None:
    nobody: Any = None

    caller = Serving(nobody, None, keeps=True)._caller({contract.HEADER_TENANT: "t" * 5000})

    assert caller == {contract.HEADER_TENANT: "t" * 128}


@pytest.mark.parametrize("run", ["a\x00b", "x" * 65, "", "ä"])
async def test_what_no_run_can_be_called_is_not_looked_for(run: str) -> None:
    nobody: Any = None  # a store that is asked would fail here

    assert await Workflows(nobody, nobody, "me").record(run) is None


def test_without_keys_a_caller_asks_for_a_name() -> None:
    for asked, name in (("interactive", "interactive"), ("spare", "spare"), ("nobody", None)):
        assert as_pool_knows({contract.HEADER_PRIORITY: asked}, PRIORITIES).get(contract.HEADER_PRIORITY) == name
