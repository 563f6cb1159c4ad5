"""What is generated is as the models say."""

import pytest

from chart.programs import ROOT
from tidepool_api.manifests import generated


@pytest.mark.parametrize("path", sorted(map(str, generated())))
def test_make_manifests_would_change_nothing(path: str) -> None:
    expected = {str(name): text for name, text in generated().items()}[path]

    assert (ROOT / path).read_text() == expected, "run `make manifests` and commit what it writes"
