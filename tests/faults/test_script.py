"""A fault script tells the API's requests apart, and gives each its turn."""

import pytest

from faults.script import Asked, Refuse, Rule, Verb, asked

APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


@pytest.mark.parametrize(
    ("method", "path", "query", "content_type", "expected"),
    [
        ("GET", "/api/v1/pods", {"watch": "true"}, "", Asked(Verb.WATCH, "pods")),
        ("GET", "/api/v1/namespaces/ns/pods", {}, "", Asked(Verb.LIST, "pods", "ns")),
        ("GET", "/api/v1/namespaces/ns", {}, "", Asked(Verb.GET, "namespaces", "", "ns")),
        ("GET", "/apis/apps/v1/namespaces/ns/deployments/d", {}, "", Asked(Verb.GET, "deployments", "ns", "d")),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/ns/deployments/d",
            {"dryRun": "All"},
            APPLY,
            Asked(Verb.APPLY, "deployments", "ns", "d", dry_run=True),
        ),
        (
            "PATCH",
            "/apis/tidepool.dev/v1alpha1/namespaces/ns/modelpools/m/status",
            {},
            MERGE,
            Asked(Verb.PATCH, "modelpools", "ns", "m", "status"),
        ),
        ("DELETE", "/api/v1/namespaces/ns/services/s", {}, "", Asked(Verb.DELETE, "services", "ns", "s")),
        ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events", {}, "", Asked(Verb.CREATE, "events", "ns")),
    ],
)
def test_requests_are_told_apart(
    method: str, path: str, query: dict[str, str], content_type: str, expected: Asked
) -> None:
    found = asked(method, path, query, content_type)
    found.at = expected.at

    assert found == expected


def test_a_rule_gives_its_fault_to_the_requests_that_it_names_and_to_no_more() -> None:
    rule = Rule(Refuse(500), resource="services", name="llama*", times=2, skip=1)
    named = Asked(Verb.APPLY, "services", "ns", "llama-peers")
    met = [rule.takes(named) for _ in range(5)]

    assert met == [False, True, True, False, False]
    assert not rule.takes(Asked(Verb.GET, "services", "ns", "llama"))
    assert not Rule(Refuse(500), resource="services").takes(Asked(Verb.APPLY, "pods", "ns", "x"))
    assert not Rule(Refuse(500)).takes(Asked(Verb.APPLY, "pods", "ns", "x", dry_run=True))
