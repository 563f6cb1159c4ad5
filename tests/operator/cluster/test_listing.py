"""Names and versions out of lists."""

import pytest

from tidepool_operator.cluster.listing import versions
from tidepool_operator.errors import Unavailable


def test_a_page_says_what_there_is_and_where_it_goes_on() -> None:
    text = b"""{"kind": "PodList", "metadata": {"resourceVersion": "9", "continue": "next"},
    "items": [{"metadata": {"name": "a", "namespace": "default", "resourceVersion": "7", "managedFields": [{}]}},
              {"metadata": {"name": "b"}, "spec": {"nodeName": "n"}}]}"""

    assert versions(text) == ([("default", "a", 7), ("", "b", -1)], "next")


@pytest.mark.parametrize("text", [b'{"items": null, "metadata": {"resourceVersion": "1"}}', b'{"metadata": {}}'])
def test_an_empty_list_has_nothing(text: bytes) -> None:
    assert versions(text) == ([], "")


@pytest.mark.parametrize(
    "text",
    [b"<html>", b"[]", b'{"items": [{}]}', b'{"items": [{"metadata": {"name": "a", "resourceVersion": "x"}}]}'],
)
def test_what_is_no_list_is_an_api_server_that_cannot_be_used(text: bytes) -> None:
    with pytest.raises(Unavailable, match="no list"):
        versions(text)
