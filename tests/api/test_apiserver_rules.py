"""Every rule of the CRDs on a real API server, with the words that a user of kubectl reads."""

import json
import re

import pytest

from api.rule_cases import Case, CrdRule, case_of, rules
from api.specs import Json
from fakes.controlplane import Kubectl

pytestmark = pytest.mark.apiserver

RULES = rules()
Refusals = dict[str, str]


def named(document: Json, name: str) -> Json:
    return document | {"metadata": document["metadata"] | {"name": name}}


def documents(*, refused: bool) -> dict[CrdRule, Json]:
    found = {}
    for index, rule in enumerate(RULES):
        case = case_of(rule)
        document = case.refused if refused else case.accepted
        # A rule of the root is about the name itself: wherever the document has its own name, it is changed alike.
        renamed = json.dumps(document).replace('"llama-8b"', f'"llama-8b-{index}"')
        found[rule] = json.loads(renamed) if rule.path == "" else named(document, f"case-{index}")
    return found


def applied(kubectl: Kubectl, objects: dict[CrdRule, Json]) -> tuple[set[str], Refusals]:
    """Names of the objects that one `kubectl apply` took, and the words of each refusal."""
    answer = kubectl("apply", "--dry-run=server", "-f", "-", documents=list(objects.values()))
    taken = set(re.findall(r"^\S+/(\S+) created \(server dry run\)$", answer.out, re.MULTILINE))
    refusals = dict(re.findall(r'^Error from server .*?"([^" ]+)" is invalid: (.*)$', answer.errors, re.MULTILINE))
    assert len(taken) + len(refusals) == len(objects), answer.errors
    return taken, refusals


@pytest.fixture(scope="module")
def accepted(kubectl: Kubectl) -> tuple[set[str], Refusals]:
    return applied(kubectl, documents(refused=False))


@pytest.fixture(scope="module")
def refused(kubectl: Kubectl) -> tuple[set[str], Refusals]:
    return applied(kubectl, documents(refused=True))


def blames(case: Case, refusal: str) -> bool:
    value = r"(?:Invalid value|Forbidden): (?:\S.*?: )?"
    return re.search(rf"(?:^|[\[ ]){re.escape(case.field)}: {value}{re.escape(case.words)}", refusal) is not None


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_can_work_is_taken(rule: CrdRule, accepted: tuple[set[str], Refusals]) -> None:
    taken, refusals = accepted
    case, name = case_of(rule), documents(refused=False)[rule]["metadata"]["name"]

    assert name in taken, refusals.get(name)
    assert not blames(case, refusals.get(name, ""))


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_cannot_work_is_refused_in_words(rule: CrdRule, refused: tuple[set[str], Refusals]) -> None:
    taken, refusals = refused
    case, name = case_of(rule), documents(refused=True)[rule]["metadata"]["name"]

    assert name not in taken
    assert blames(case, refusals[name]), refusals[name]
