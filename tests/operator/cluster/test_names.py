"""Which pools share a model name."""

from pools.objects import raw_pool
from tidepool_operator.cluster.names import Names
from tidepool_operator.cluster.store import Key

A = raw_pool("a", model={"uri": "hf://x/y", "name": "llama"})
B = raw_pool("b", model={"uri": "hf://x/y", "name": "other", "aliases": ["llama"]})


def test_a_name_and_an_alias_meet_and_part() -> None:
    names = Names()

    assert names.changed(None, A) == set()
    assert names.changed(None, B) == {Key("default", "a")}
    assert names.namesakes(A) == {"llama": ("default/b",)}
    assert names.namesakes(B) == {"llama": ("default/a",)}
    assert names.changed(B, None) == {Key("default", "a")}
    assert names.namesakes(A) == {}


def test_a_pool_that_goes_serves_no_name() -> None:
    names = Names()
    names.changed(None, A)
    names.changed(None, B)
    going = {**A, "metadata": {**A["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}

    assert names.changed(A, going) == {Key("default", "b")}
    assert names.namesakes(B) == {}


def test_a_spec_without_sense_has_no_names() -> None:
    names = Names()

    assert names.changed(None, {**A, "spec": {"model": "llama"}}) == set()
    assert names.changed(None, {**B, "spec": {"model": {"aliases": 7}}}) == set()
