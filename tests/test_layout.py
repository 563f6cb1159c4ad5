"""The source roots stay roots: `operator/` on sys.path must never shadow the standard library."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("root", ["crds", "operator", "router", "tests", "e2e"])
def test_source_root_is_no_package(root: str) -> None:
    found = [str(path) for path in (ROOT / root).glob("__init__.py")]

    assert found == []


def test_no_test_folder_is_a_package() -> None:
    found = [str(path) for path in (ROOT / "tests").rglob("__init__.py")]

    assert found == []


def test_standard_library_operator_wins_from_the_repository_root() -> None:
    code = "import operator, collections; print(operator.__file__)"

    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    ).stdout

    assert str(ROOT) not in printed
