"""The table of guards holds: every report has a test, each test that cites one is in it, and its line is there."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest


def _table() -> Any:
    """guards.py, which lies beside this file and in no package."""
    path = Path(__file__).with_name("guards.py")
    spec = importlib.util.spec_from_file_location("guards_of_workflows", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TABLE = _table()


def test_every_report_has_a_guard() -> None:
    assert {guard.report for guard in TABLE.GUARDS} == set(TABLE.REPORTS)


def test_every_test_that_cites_a_report_is_guarded() -> None:
    cites = re.compile(r"def (test_\w+_(?:argo|kserve|kagent|vllm|sr)_\d+)\(")
    found = {name for path in Path(__file__).parent.glob("test_*.py") for name in cites.findall(path.read_text())}

    assert found
    assert not found - {guard.test.partition("::")[2] for guard in TABLE.GUARDS}


@pytest.mark.parametrize("guard", TABLE.GUARDS, ids=lambda guard: f"{guard.report}-{guard.what}")
def test_a_guard_names_one_line_and_a_test(guard: Any) -> None:
    """When this fails the line was rewritten: name the new one in guards.py, and see its test red without it."""
    module, _, name = guard.test.partition("::")
    assert f"def {name}" in (TABLE.TESTS / module).read_text()

    assert guard.apply((TABLE.ROOT / guard.file).read_text())
