"""Where a request goes, by a pool's traffic."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidepool_api.traffic import RequestType, Traffic
from tidepool_router.facts import Api, RequestFacts
from tidepool_router.governance import Asked, Plan, compile_traffic, route
from tidepool_router.governance.table import API_OF

POOLS = {name: name for name in ("own", "next", "long", "small", "big")}


def asked(
    *,
    key: str = "k",
    model: str = "m",
    api: Api = Api.CHAT,
    headers: dict[str, str] | None = None,
    body: object = None,
    tokens: int = 100,
) -> Asked:
    lines: list[bytes] = []
    for name, value in (headers or {}).items():
        lines += (name.encode(), b": ", value.encode(), b"\r\n")
    raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return Asked(RequestFacts(api, "/", model), lines, lambda: raw, lambda: tokens, key.encode())


def planned(traffic: dict[str, Any], request: Asked, pools: dict[str, str] = POOLS, after: int = 0) -> Plan[str]:
    return route(request, compile_traffic(Traffic.model_validate(traffic), "own", pools), after)


def ruled(when: dict[str, Any], request: Asked) -> str | None:
    return planned({"rules": [{"name": "r", "when": when, "pool": "long"}]}, request).pool


@pytest.mark.parametrize(
    ("when", "request_", "meant", "why"),
    [
        ({}, asked(), True, "no condition holds of all"),
        ({"models": ["m", "n"]}, asked(model="n"), True, "one of the names"),
        ({"models": ["n"]}, asked(model="m"), False, "another name of the pool"),
        ({"types": ["Embeddings"]}, asked(api=Api.EMBEDDINGS), True, "the API"),
        ({"types": ["Embeddings"]}, asked(api=Api.CHAT), False, "another API"),
        ({"minPromptTokens": 100}, asked(tokens=100), True, "at the bound"),
        ({"minPromptTokens": 101}, asked(tokens=100), False, "below the bound"),
        ({"maxPromptTokens": 100}, asked(tokens=100), True, "at the bound"),
        ({"maxPromptTokens": 99}, asked(tokens=100), False, "above the bound"),
        (
            {"headers": [{"name": "X-Tier", "values": ["gold"]}]},
            asked(headers={"x-tier": "gold"}),
            True,
            "any case",
        ),
        (
            {"headers": [{"name": "x-tier", "values": ["gold"]}]},
            asked(headers={"x-tier": "Gold"}),
            False,
            "exactly",
        ),
        ({"headers": [{"name": "x-tier"}]}, asked(headers={"x-tier": ""}), True, "it is there"),
        ({"headers": [{"name": "x-tier"}]}, asked(headers={"x-other": "x-tier"}), False, "a value is no name"),
        ({"parameters": [{"name": "effort", "values": ["high"]}]}, asked(body={"effort": "high"}), True, "a text"),
        ({"parameters": [{"name": "top_k", "values": ["5"]}]}, asked(body={"top_k": 5}), True, "a number"),
        ({"parameters": [{"name": "stream", "values": ["true"]}]}, asked(body={"stream": True}), True, "a truth"),
        ({"parameters": [{"name": "tools"}]}, asked(body={"tools": []}), True, "it is there"),
        ({"parameters": [{"name": "tools"}]}, asked(body={"tools": None}), False, "null is not there"),
        ({"parameters": [{"name": "tools"}]}, asked(body={"x": {"tools": 1}}), False, "not at the top"),
        ({"parameters": [{"name": "tools"}]}, asked(body=b"--form"), False, "a form has no members"),
        ({"models": ["m"], "types": ["Tokenize"]}, asked(), False, "all must hold"),
    ],
)
def test_which_requests_a_rule_means(when: dict[str, Any], request_: Asked, meant: bool, why: str) -> None:
    assert (ruled(when, request_) == "long") is meant, why


def test_the_body_is_not_read_for_rules_that_do_not_ask_for_it() -> None:
    def unread() -> bytes:
        raise AssertionError("read")

    request = Asked(RequestFacts(Api.CHAT, "/", "m"), [], unread, lambda: 1, b"k")
    traffic = {
        "rules": [
            {"name": "a", "when": {"models": ["n"], "parameters": [{"name": "x"}]}, "pool": "long"},
            {"name": "b", "when": {"headers": [{"name": "x"}], "parameters": [{"name": "x"}]}, "pool": "long"},
        ]
    }
    assert planned(traffic, request).pool == "own"


def test_the_first_rule_that_holds_decides_and_rules_go_before_shares() -> None:
    traffic = {
        "rules": [
            {"name": "a", "when": {"models": ["n"]}, "pool": "long"},
            {"name": "b", "pool": "big"},
            {"name": "c", "pool": "small"},
        ],
        "split": [{"pool": "next", "percent": 100}],
    }
    plan = planned(traffic, asked())
    assert (plan.pool, plan.reason) == ("big", "rule:b")


def test_what_is_not_there_has_no_effect() -> None:
    traffic = {
        "rules": [{"name": "a", "pool": "gone"}],
        "split": [{"pool": "gone", "percent": 100}],
        "mirror": {"pool": "gone"},
        "fallback": ["gone", "small"],
    }
    plan = planned(traffic, asked())
    assert (plan.pool, plan.reason, plan.mirror, plan.fallback) == ("own", "own", None, ("small",))


def test_a_pool_does_not_fall_back_to_itself_nor_copy_to_itself() -> None:
    traffic = {
        "rules": [{"name": "a", "pool": "small"}],
        "mirror": {"pool": "small"},
        "fallback": ["small", "big"],
    }
    plan = planned(traffic, asked())
    assert (plan.pool, plan.mirror, plan.fallback) == ("small", None, ("big",))


CLASSIFIED = {
    "rules": [
        {
            "name": "ask",
            "classifier": {
                "url": "http://a.b/",
                "classes": [{"name": "hard", "pool": "big"}, {"name": "x", "pool": "z"}],
            },
        },
        {"name": "rest", "pool": "small"},
    ],
    "fallback": ["big", "long"],
}  # fmt: skip


def test_a_classifier_is_asked_and_the_next_rules_decide_without_it() -> None:
    plan = planned(CLASSIFIED, asked())
    assert (plan.pool, plan.reason) == (None, "rule:ask")
    assert plan.classifier is not None
    assert dict(plan.classifier.classes) == {"hard": "big"}  # z is not there
    chosen = plan.classified("big")
    assert (chosen.pool, chosen.reason, chosen.fallback, chosen.classifier) == ("big", "rule:ask", ("long",), None)
    without = planned(CLASSIFIED, asked(), after=plan.after)
    assert (without.pool, without.reason) == ("small", "rule:rest")


SPLIT = {"split": [{"pool": "next", "percent": 10}, {"pool": "big", "percent": 20}]}


def test_shares_are_kept() -> None:
    count = Counter(planned(SPLIT, asked(key=f"request-{number}")).pool for number in range(20_000))
    assert count["next"] == pytest.approx(2_000, rel=0.1)
    assert count["big"] == pytest.approx(4_000, rel=0.1)


def test_copies_are_an_own_sample() -> None:
    """Else a canary of 10 % and a mirror of 10 % would be about the same requests."""
    traffic = {"split": [{"pool": "next", "percent": 10}], "mirror": {"pool": "big", "percent": 10}}
    plans = [planned(traffic, asked(key=f"request-{number}")) for number in range(20_000)]
    both = sum(plan.mirror is not None and plan.pool == "next" for plan in plans)
    assert both == pytest.approx(200, abs=70)


@given(st.text(max_size=20), st.integers(0, 100), st.integers(0, 100))
def test_a_session_that_has_a_canary_keeps_it_when_its_share_grows(key: str, one: int, other: int) -> None:
    low, high = sorted((one, other))
    small = planned({"split": [{"pool": "next", "percent": low}]}, asked(key=key))
    large = planned({"split": [{"pool": "next", "percent": high}]}, asked(key=key))
    if small.pool == "next":
        assert large.pool == "next"


@given(st.text(max_size=20))
def test_a_pool_that_goes_moves_only_its_own(key: str) -> None:
    before = planned(SPLIT, asked(key=key))
    after = planned(SPLIT, asked(key=key), {name: name for name in POOLS if name != "next"})
    if before.pool != "next":
        assert after.pool == before.pool
    else:
        assert after.pool == "own"


def test_every_request_type_is_an_api() -> None:
    assert {API_OF[kind] for kind in RequestType} == set(Api) - {Api.OTHER}
