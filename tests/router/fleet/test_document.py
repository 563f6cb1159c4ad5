"""Fleet documents: what is wrong is named with its line, and a document is taken whole or not at all."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.routing import Fleet, FleetPool, Policy
from tidepool_router.errors import SettingsError
from tidepool_router.fleet.document import FleetError, read_fleet
from tidepool_router.fleet.endpoint import parse_source

GOOD = """\
pools:
- name: llama-8b
  models: [llama-3.1-8b, chat-default]
  endpoints: ["http://127.0.0.1:8101", "dns+http://llama-peers.ns.svc:8080"]
  routing:
    policy: RoundRobin
    queue: {maxWaiting: 7}
"""


def test_a_file_as_the_manual_shows_it() -> None:
    document = read_fleet(GOOD)

    pool = document.fleet.pools[0]
    assert (pool.name, pool.models, pool.routing.policy) == (
        "llama-8b",
        ("llama-3.1-8b", "chat-default"),
        Policy.ROUND_ROBIN,
    )
    assert pool.routing.queue.max_waiting == 7
    assert document.warnings == ()


@given(st.booleans(), st.floats(0, 1e10) | st.none())
def test_what_the_operator_writes_is_read_back(wakes: bool, issued_at: float | None) -> None:
    fleet = Fleet(issued_at=issued_at, pools=(FleetPool(name="ns/p", models=("m",), wakes=wakes),))

    assert read_fleet(fleet.model_dump_json(by_alias=True)).fleet == fleet


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("pools: [\n- x", 2, "did not find expected"),
        ("- a\n- b\n", 1, "mapping with the key 'pools'"),
        ("", 1, "mapping with the key 'pools'"),
        ("pools:\n- name: a\n  models: []\n", 3, "pools[0].models"),
        ("pools:\n- name: a\n", 2, "pools[0].models"),
        ("pools:\n- models: [m]\n  name: a\n  routing:\n    queue:\n      maxWaiting: -1\n", 6, "maxWaiting"),
        ("pools:\n- name: a\n  models: [m]\n  routing: {policy: Fastest}\n", 4, "policy"),
        ("pools:\n- name: a\n  models: [m]\n- name: a\n  models: [n]\n", 4, "'a' is there twice"),
        ("pools:\n- name: a\n  models: [m]\n  endpoints:\n  - http://x:1\n  - x:2\n", 6, "endpoints[1]"),
        ('{"pools": [\n{"name": "a", "models": ["m"],}\n', 3, "did not find expected"),
        ("pools:\n\t- name: a\n", 2, "cannot start any token"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, line: int, reason: str) -> None:
    with pytest.raises(FleetError) as caught:
        read_fleet(text)

    assert caught.value.line == line
    assert reason in str(caught.value)
    assert str(caught.value).startswith(f"line {line}: ")


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (GOOD.replace("endpoints", "endpoint"), "pools[0].endpoint is no known field"),
        (GOOD.replace("maxWaiting", "maxWait"), "pools[0].routing.queue.maxWait is no known field"),
        ("pool: []\npools: []\n", "pool is no known field"),
        (GOOD + "- name: other\n  models: [chat-default]\n", "'chat-default' belongs to 'llama-8b'"),
    ],
)
def test_what_has_no_effect_is_warned_of(text: str, warning: str) -> None:
    document = read_fleet(text)

    assert any(warning in text for text in document.warnings), document.warnings


@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda raw: raw.decode("latin-1")))
def test_any_text_is_a_fleet_or_a_fleet_error(text: str) -> None:
    with contextlib.suppress(FleetError):
        read_fleet(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=4,
)


@given(
    st.fixed_dictionaries({"pools": st.lists(st.fixed_dictionaries({"name": json_values, "models": json_values}))})
)
def test_any_json_is_a_fleet_or_a_fleet_error(data: dict[str, object]) -> None:
    with contextlib.suppress(FleetError):
        read_fleet(json.dumps(data))


@pytest.mark.parametrize(
    ("url", "key", "by_dns"),
    [
        ("http://127.0.0.1:8101", "127.0.0.1:8101", False),
        ("http://[::1]:8101/", "[::1]:8101", False),
        ("http://pod", "pod:80", False),
        ("dns+http://llama-peers.ns.svc:8080", "llama-peers.ns.svc:8080", True),
        ("https://pod", "https://pod:443", False),
        ("dns+https://llama-peers.ns.svc:8080", "https://llama-peers.ns.svc:8080", True),
    ],
)
def test_endpoint_urls(url: str, key: str, by_dns: bool) -> None:
    source = parse_source(url)

    assert (source.endpoint.key, source.by_dns) == (key, by_dns)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("127.0.0.1:8101", "must begin with http://"),
        ("http://:8080", "no host"),
        ("http://pod:99999", "cannot be read"),
        ("http://pod:8080/v1", "must end after the port"),
        ("http://user:secret@pod:8080", "must end after the port"),
        ("dns+http://10.0.0.1:8080", "is an address"),
        ("", "must begin with http://"),
    ],
)
def test_bad_endpoint_urls_say_what_to_write(url: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        parse_source(url)
