"""Every rule of the CRDs, as the operator sees it: the same objects and words as on a real API server."""

import pytest

from api.rule_cases import Case, CrdRule, case_of, cases_without_a_rule, rules
from api.specs import Json
from tidepool_api.problems import Problem, problems, run_problems, workflow_problems

RULES = rules()


def found(document: Json) -> list[Problem]:
    if document["kind"] == "AgentWorkflow":
        return workflow_problems(document["spec"])
    if document["kind"] == "AgentWorkflowRun":
        return run_problems(document["spec"])
    return problems(document["spec"], document["metadata"]["name"])


def blames(rule: CrdRule, case: Case, problem: Problem) -> bool:
    remedy = case.words.removeprefix(rule.message) or rule.message
    return problem.field == case.field and remedy in problem.message


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rule_accepts_what_can_work(rule: CrdRule) -> None:
    case = case_of(rule)

    mistakes = found(case.accepted)

    assert [problem for problem in mistakes if blames(rule, case, problem)] == []
    assert mistakes == []


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rule_refuses_with_the_field_and_the_remedy(rule: CrdRule) -> None:
    case = case_of(rule)

    mistakes = found(case.refused)

    assert [problem for problem in mistakes if blames(rule, case, problem)], mistakes


def test_no_rule_has_gone() -> None:
    assert cases_without_a_rule() == []
