"""The build hook: what it must refuse before a compiler is asked."""

import importlib.util
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from cluster.paths import REPOSITORY


@pytest.fixture
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", REPOSITORY / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "base.py").write_text("class Base:\n    pass\n")
    (tmp_path / "one" / "child.py").write_text("from one.base import Base\nclass Child(Base):\n    pass\n")
    return tmp_path


def test_an_interpreted_class_that_extends_a_compiled_one_is_refused_with_the_remedy(
    hook: ModuleType, place: Path
) -> None:
    with pytest.raises(
        RuntimeError, match=r"one/child.py: Child extends Base, .* list one/child.py in pyproject.toml"
    ):
        hook._refuse_strays(place, ["one/base.py"])


def test_a_family_that_is_compiled_together_is_taken(hook: ModuleType, place: Path) -> None:
    hook._refuse_strays(place, ["one/base.py", "one/child.py"])


@pytest.mark.traffic  # reads the whole product
def test_the_listed_modules_and_their_classes_fit_together(hook: ModuleType) -> None:
    config = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    listed = config["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    hook._refuse_strays(REPOSITORY / "router", listed)
