"""Tokens of callers: what each proves and when, and that each is checked once."""

import json
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import RSAAlgorithm

from scripted.issuer import GATEWAY, ISSUER, OPERATOR, PEER, line, token, trust
from tidepool_api.trust import PublicKey, TrustedCallers, subject_of
from tidepool_router.proof_file import ProofFile
from tidepool_router.proofs import Callers, Fault, Part, Proof, Verifier

NOW = 1_700_000_000.0
STRANGER = subject_of("team", "gateway")


@pytest.mark.parametrize(
    ("shown", "at", "found", "why"),
    [
        ({}, NOW, Part.GATEWAY, "a gateway's own token"),
        ({"subject": PEER}, NOW, Part.PEER, "a pod of the same pool"),
        ({"subject": OPERATOR}, NOW, Part.OPERATOR, "the operator"),
        ({"aud": "tidepool"}, NOW, Part.GATEWAY, "RFC 7519 lets one audience stand alone"),
        ({"aud": ["api", "tidepool"]}, NOW, Part.GATEWAY, "it is for us too"),
        ({"aud": ["api"]}, NOW, Fault.WRONG_AUDIENCE, "a token for the API server is none for us"),
        ({"aud": None}, NOW, Fault.WRONG_AUDIENCE, "for nobody is not for us"),
        ({"iss": "https://other"}, NOW, Fault.WRONG_ISSUER, "another cluster's token"),
        ({"subject": STRANGER}, NOW, Fault.UNKNOWN_CALLER, "an account of that name elsewhere"),
        ({}, NOW + 3609, Part.GATEWAY, "clocks of nodes differ a little"),
        ({}, NOW + 3610, Fault.EXPIRED, "its hour is over"),
        ({}, NOW - 11, Fault.NOT_YET, "it begins later"),
        ({"exp": None}, NOW, Fault.MALFORMED, "a token that never ends is none of the kubelet's"),
        ({"exp": True}, NOW, Fault.MALFORMED, "no time"),
        ({"sub": 7}, NOW, Fault.MALFORMED, "no name"),
        ({"kid": "two"}, NOW, Fault.UNKNOWN_KEY, "a key that is not published, or no longer"),
        ({"signed_by": "two"}, NOW, Fault.BAD_SIGNATURE, "somebody else signed under a known key's name"),
    ],
)
def test_what_a_token_proves(shown: dict[str, Any], at: float, found: Part | Fault, why: str) -> None:
    verdict = Verifier(trust("one")).check(token(now=NOW, **shown), at)

    assert (verdict.part if isinstance(verdict, Proof) else verdict) is found, why


def test_a_clusters_usual_key_is_rsa() -> None:
    key = generate_private_key(65537, 2048)
    public = PublicKey.model_validate(
        json.loads(RSAAlgorithm.to_jwk(key.public_key())) | {"kid": "r", "alg": "RS256"}
    )
    claims = {"iss": ISSUER, "sub": GATEWAY, "aud": ["tidepool"], "exp": NOW + 60}
    shown = jwt.encode(claims, key, "RS256", headers={"kid": "r"}).encode()

    assert isinstance(Verifier(trust().model_copy(update={"keys": (public,)})).check(shown, NOW), Proof)


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_an_algorithm_that_anybody_can_sign_by_proves_nothing(algorithm: str) -> None:
    claims = {"iss": ISSUER, "sub": GATEWAY, "aud": ["tidepool"], "exp": NOW + 60}
    secret = "x" * 32 if algorithm == "HS256" else ""
    shown = jwt.encode(claims, secret, algorithm, headers={"kid": "one"}).encode()

    assert Verifier(trust("one")).check(shown, NOW) is Fault.BAD_SIGNATURE


def test_a_key_of_an_unknown_kind_spoils_no_other() -> None:
    unknown = [PublicKey(kty=kind, kid=kind) for kind in ("OKP", "oct", "EC", "RSA", "")]
    keys = (*unknown, *trust("one").keys)
    verifier = Verifier(trust("one").model_copy(update={"keys": keys}))

    assert isinstance(verifier.check(token(now=NOW), NOW), Proof)


def test_without_keys_nobody_proves_anything() -> None:
    assert Verifier(TrustedCallers(gateways=(GATEWAY,))).check(token(now=NOW), NOW) is Fault.UNKNOWN_KEY


@settings(max_examples=60)
@given(cut=st.integers(0, 400), put=st.binary(max_size=6))
def test_no_change_of_a_token_is_believed(cut: int, put: bytes) -> None:
    good = token(now=NOW)
    at = cut % len(good)
    changed = good[:at] + put + good[at + len(put) :]

    verdict = Verifier(trust("one")).check(changed, NOW)

    # The last character of a signature has bits that mean nothing.
    assert changed == good or isinstance(verdict, Fault) or at + len(put) >= len(good)


class Heard:
    """Callers, and each token that had to be checked."""

    def __init__(self, *kids: str) -> None:
        self.checked: list[Proof | Fault] = []
        self.callers = Callers(trust(*kids), self.checked.append)


def test_a_good_token_is_checked_once_until_it_ends() -> None:
    heard = Heard()
    shown = token(now=NOW)

    assert [heard.callers.part_of(shown, NOW + at) for at in (0, 1, 3609)] == [Part.GATEWAY] * 3
    assert len(heard.checked) == 1
    assert heard.callers.part_of(shown, NOW + 3611) is None
    assert heard.checked[1:] == [Fault.EXPIRED]


def test_a_token_that_came_too_early_counts_later() -> None:
    heard = Heard()
    shown = token(now=NOW)

    assert [heard.callers.part_of(shown, NOW + at) for at in (-60, -59, 0)] == [None, None, Part.GATEWAY]
    assert heard.checked[0] is Fault.NOT_YET
    assert len(heard.checked) == 2


def test_a_renewed_token_counts_beside_the_old_one() -> None:
    heard = Heard()
    old, new = token(now=NOW), token(now=NOW + 2880)

    assert [heard.callers.part_of(shown, NOW + 2880) for shown in (old, new)] == [Part.GATEWAY] * 2


def test_keys_turn_over_while_both_are_published() -> None:
    shown = {kid: token(kid=kid, now=NOW) for kid in ("one", "two")}

    def believed(*published: str) -> list[str]:
        return [kid for kid in shown if Heard(*published).callers.part_of(shown[kid], NOW)]

    assert believed("one") == ["one"]
    assert believed("one", "two") == ["one", "two"]
    assert believed("two") == ["two"]


def test_what_strangers_send_takes_bounded_memory() -> None:
    heard = Heard()
    shown = token(now=NOW)
    heard.callers.part_of(shown, NOW)
    for number in range(3000):
        heard.callers.part_of(b"a.b.%d" % number, NOW)
    assert heard.callers.part_of(b"a" * 60_000, NOW) is None

    assert len(heard.callers._known) <= 1024
    assert heard.callers.part_of(shown, NOW) is Part.GATEWAY


def test_our_own_proof_follows_its_file(tmp_path: Path) -> None:
    lines: list[bytes] = []
    file = ProofFile(tmp_path / "token", lines.append)

    file.look()  # the kubelet has not written it yet
    for content in ("a.b.c\n", "a.b.c", "two\r\nlines: 1", "", "d.e.f"):
        (tmp_path / "token").write_text(content, newline="")
        file.look()
    (tmp_path / "token").unlink()
    file.look()

    assert lines == [line(b"a.b.c"), line(b"d.e.f")]


def test_a_proof_that_cannot_be_used_is_told_once_and_never_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("se cret")
    file = ProofFile(tmp_path / "token", lambda _: None)

    for _ in range(3):
        file.look()

    assert len(caplog.records) == 1
    assert "se cret" not in str(caplog.records[0].__dict__)
