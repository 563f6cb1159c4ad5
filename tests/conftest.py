"""For every test: how many examples property tests draw, and a garbage collector that keeps out of the way.

By default property tests draw the same few examples in every run. `make soak` draws others each time, and forty
times as many, under the profile "soak".
"""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from scripted.examples import USUAL_EXAMPLES

# They take the time that they need on a busy machine.
settings.register_profile(
    "tidepool",
    max_examples=USUAL_EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak", settings.get_profile("tidepool"), max_examples=40 * USUAL_EXAMPLES, derandomize=False
)
settings.load_profile("tidepool")


def pytest_configure(config: pytest.Config) -> None:
    """The same examples whatever a worker has imported before.

    Hypothesis also draws the constants of the modules that are loaded, and there is no setting against it (it is
    private: an upgrade that renames it must fail here). `make soak` wants all that it can draw.
    """
    if config.getoption("--hypothesis-profile", None) != "soak":
        nothing = providers._local_constants
        assert callable(providers._get_local_constants)
        assert len(nothing) == 0
        providers._get_local_constants = lambda: nothing


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests stay to the end: no garbage is looked for among them, now and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
