"""Names between the parts are promises: what an earlier release has started goes on by them."""

import inspect
import json
from pathlib import Path

from tidepool_api import contract

PROMISED = json.loads(Path(__file__).with_name("contract.json").read_text())


def test_no_name_between_the_parts_is_changed_or_taken_away() -> None:
    """Pods stay through upgrades, with sidecars and labels of the release that made them.

    A new name comes into contract.json with it. One may only go when two releases have not used it.
    """
    names = {name: value for name, value in vars(contract).items() if name.isupper()}
    made = {
        name: call(*inspect.signature(call).parameters)
        for name, call in vars(contract).items()
        if inspect.isfunction(call)
    }

    assert json.loads(json.dumps(names | made)) == PROMISED
