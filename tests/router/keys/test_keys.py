"""Keys: what they look like, who has one, what it grants."""

import hashlib
import json
from typing import Any

import pytest

from tidepool_router import keys_command
from tidepool_router.errors import Refused
from tidepool_router.keys import ApiKey, Grant, KeyRing, KeysError, mint, read_keys

KEY = mint(bytes(range(35)))
OTHER = mint(bytes(range(1, 36)))


def api_key(**terms: Any) -> ApiKey:
    return ApiKey.model_validate({"id": KEY.id, "sha256": KEY.digest, "tenant": "search", **terms})


def ring(*keys: ApiKey) -> KeyRing:
    made = KeyRing()
    made.apply(keys or (api_key(),), 0.0)
    return made


def test_a_minted_key_is_found_by_its_id_and_proved_by_its_digest() -> None:
    assert KEY.text.startswith(f"tp-{KEY.id}-")
    assert KEY.digest == hashlib.sha256(KEY.text.encode()).hexdigest()
    assert KEY.text not in repr(KEY)
    assert KEY.id != OTHER.id


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({b"authorization": b"Bearer " + KEY.text.encode()}, "as OpenAI's clients send it"),
        ({b"authorization": b"bearer  " + KEY.text.encode()}, "the scheme's case and spaces do not matter"),
        ({b"x-api-key": KEY.text.encode()}, "as Anthropic's clients send it"),
        ({b"authorization": b"Basic abc", b"x-api-key": KEY.text.encode()}, "another scheme is not for us"),
    ],
)
def test_a_key_is_taken_from_where_clients_put_it(headers: dict[bytes, bytes], why: str) -> None:
    assert ring().grant_of(headers).tenant == "search", why


@pytest.mark.parametrize(
    ("headers", "code", "why"),
    [
        ({}, "missing_api_key", "no header at all"),
        ({b"authorization": b"Bearer "}, "missing_api_key", "an empty key is none"),
        ({b"authorization": b"Bearer sk-123"}, "invalid_api_key", "somebody else's kind of key"),
        ({b"authorization": b"Bearer " + OTHER.text.encode()}, "invalid_api_key", "well made, but not ours"),
        ({b"authorization": b"Bearer " + KEY.text[:-1].encode()}, "invalid_api_key", "cut short"),
        (
            {b"authorization": b"Bearer " + KEY.text[:12].encode() + OTHER.text[12:].encode()},
            "invalid_api_key",
            "a known id proves nothing",
        ),
        ({b"authorization": b"Bearer a, Bearer b"}, "invalid_api_key", "two headers of one name are one value"),
        ({b"x-api-key": b"tp-" + b"\xff" * 8 + b"-" + b"\xff" * 48}, "invalid_api_key", "bytes that are no text"),
    ],
)
def test_what_is_no_key_is_refused_with_401(headers: dict[bytes, bytes], code: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        ring().grant_of(headers)

    assert (refused.value.refusal.status, refused.value.refusal.code) == (401, code), why
    assert KEY.text not in str(refused.value)


def test_no_key_opens_a_ring_without_keys() -> None:
    with pytest.raises(Refused):
        KeyRing().grant_of({b"x-api-key": KEY.text.encode()})


def test_a_key_that_left_the_document_opens_nothing_and_one_that_stayed_keeps_what_it_used() -> None:
    keys = ring(api_key(requestsPerMinute=1), ApiKey(id=OTHER.id, sha256=OTHER.digest, tenant="b"))
    keys.grant_of({b"x-api-key": KEY.text.encode()}).admit(0, 0.0)
    keys.apply([api_key(requestsPerMinute=1, tenant="c")], 0.0)

    grant = keys.grant_of({b"x-api-key": KEY.text.encode()})
    assert grant.tenant == "c"
    assert grant.admit(0, 0.0) is not None
    with pytest.raises(Refused):
        keys.grant_of({b"x-api-key": OTHER.text.encode()})


@pytest.mark.parametrize(
    ("models", "model", "allowed", "why"),
    [
        (None, "any", True, "without a list, all"),
        ([], "any", False, "an empty list names none"),
        (["llama"], "llama", True, "by name"),
        (["llama"], "llama-8b", False, "a name is not a beginning"),
        (["team-*"], "team-a", True, "a beginning"),
        (["team-*"], "a-team-", False, "and nothing but a beginning"),
        (["*"], "any", True, "a star alone is all"),
    ],
)
def test_which_models_a_key_grants(models: list[str] | None, model: str, allowed: bool, why: str) -> None:
    assert Grant(api_key(models=models), 1, 0.0).allows(model) is allowed, why


PRIORITIES = {"urgent": 200, "interactive": 100, "batch": -10}


@pytest.mark.parametrize(
    ("granted", "asked", "priority", "why"),
    [
        (0, None, 0, "a key that says nothing grants the usual"),
        (0, "interactive", 0, "and a header cannot raise it"),
        (0, "batch", -10, "but lower it"),
        ("interactive", None, 100, "what is granted needs no header"),
        ("interactive", "batch", -10, "a header can lower"),
        ("interactive", "urgent", 100, "and never raise"),
        ("interactive", "nonsense", 100, "an unknown name asks nothing"),
        ("nonsense", None, 0, "a name that the pool does not know grants the usual"),
        (150, "urgent", 150, "a number holds in every pool"),
    ],
)
def test_headers_lower_a_priority_and_never_raise_it(
    granted: int | str, asked: str | None, priority: int, why: str
) -> None:
    assert Grant(api_key(priority=granted), 1, 0.0).priority(asked, PRIORITIES) == priority, why


def test_both_limits_or_neither_are_charged() -> None:
    grant = Grant(api_key(requestsPerMinute=60, tokensPerMinute=100), 1, 0.0)
    assert grant.admit(100, 0.0) is None
    refusal = grant.admit(50, 0.0)

    assert refusal is not None
    assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
    assert refusal.retry_after_seconds == pytest.approx(30.0)
    assert "tokens a minute" in refusal.message
    for _ in range(59):  # the refused one was not charged to the requests
        assert grant.admit(0, 30.0) is None


def test_usage_takes_the_place_of_the_estimate() -> None:
    grant = Grant(api_key(tokensPerMinute=100), 1, 0.0)
    assert grant.admit(100, 0.0) is None
    grant.settle(100, 10)
    assert grant.admit(90, 0.0) is None
    grant.settle(90, 150)
    refusal = grant.admit(1, 0.0)

    assert refusal is not None
    assert refusal.retry_after_seconds == pytest.approx(60.0 * 61 / 100)
    assert grant.used == 160


def test_gateways_share_the_limits() -> None:
    keys = ring(api_key(requestsPerMinute=10))
    keys.divide(5, 0.0)
    grant = keys.grant_of({b"x-api-key": KEY.text.encode()})
    admitted = sum(grant.admit(0, 0.0) is None for _ in range(10))

    assert admitted == 2


@pytest.mark.parametrize(
    ("change", "field", "why"),
    [
        ({"sha256": KEY.text}, "keys[0].sha256: is not the digest", "a key where its digest belongs"),
        ({"id": "me"}, "keys[0].id: is not the id", "an id of one's own"),
        ({"tenant": "a\r\nb: c"}, "keys[0].tenant: is not a name", "it stands in a header"),
        ({"tenant": ""}, "keys[0].tenant", "nobody's key"),
        ({"model": ["a"]}, "keys[0].model: is no known field", "misspelt, it would open every model"),
        ({"requestsPerMinute": 0}, "keys[0].requestsPerMinute", "take the key out instead"),
        ({"priority": 5000}, "keys[0].priority", "out of range"),
    ],
)
def test_a_bad_document_is_refused_with_its_line_and_field_and_without_values(
    change: dict[str, Any], field: str, why: str
) -> None:
    entry = {"id": KEY.id, "sha256": KEY.digest, "tenant": "a"} | change
    with pytest.raises(KeysError) as refused:
        read_keys("keys:\n- " + json.dumps(entry))

    assert str(refused.value).startswith("line 2: " + field), why
    assert KEY.text not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("text", ["", "[]", "keys: {a: 1", "keys:\n- *tp-secret", "keys: 5"])
def test_what_is_no_document_opens_nothing(text: str) -> None:
    with pytest.raises(KeysError) as refused:
        read_keys(text)

    assert "secret" not in str(refused.value)


def test_an_id_twice_is_refused() -> None:
    entry = json.dumps({"id": KEY.id, "sha256": KEY.digest, "tenant": "a"})
    with pytest.raises(KeysError, match=r"line 3: keys\[1\].id: .* already"):
        read_keys(f"keys:\n- {entry}\n- {entry}\n")


def test_the_command_prints_a_key_and_the_line_that_lets_it_in(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "new",
        "--tenant",
        "search",
        "--model",
        "llama",
        "--model",
        "team-*",
        "--tokens-per-minute",
        "1000",
    ]
    assert keys_command.run(arguments) == 0
    _, text, _, line = capsys.readouterr().out.splitlines()
    made = KeyRing()
    made.apply(read_keys("keys:\n" + line), 0.0)

    grant = made.grant_of({b"authorization": b"Bearer " + text.encode()})
    assert [grant.allows(name) for name in ("llama", "team-a", "other")] == [True, True, False]
    assert grant.tenant == "search"
    assert text not in line
    assert keys_command.run(arguments) == 0
    assert text not in capsys.readouterr().out
