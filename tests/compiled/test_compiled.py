"""The router as its image has it: what the tests say of the sources must hold for the compiled modules too."""

import os
import subprocess
import sys

import pytest

from bench.programs import product
from cluster.paths import REPOSITORY

pytestmark = [pytest.mark.compiled, pytest.mark.timeout(900)]

# Those that start programs of their own would start the sources' again.
_CHOSEN = "not interpreted and not traffic"


@pytest.mark.parametrize(
    "tests",
    [
        pytest.param(("tests/router/proxy", "tests/router/wire"), id="the data path"),
        pytest.param(("tests/router",), id="all", marks=pytest.mark.soak),
    ],
)
def test_the_routers_tests_hold_for_its_compiled_modules(tests: tuple[str, ...]) -> None:
    home = product()
    assert list(home.glob("*__mypyc*.so")), "nothing was compiled"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", _CHOSEN, *tests]
    environment = os.environ | {"PYTHONPATH": str(home)}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:]


def test_the_compiled_modules_are_the_ones_that_run() -> None:
    home = product()
    asked = "import tidepool_router.proxy.exchange as one; print(one.__file__)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", asked],
        env=os.environ | {"PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip().endswith(".so")
