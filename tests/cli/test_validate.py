"""Mistakes in files are found without a cluster, with their lines."""

from pathlib import Path

import pytest

from tidepool_cli.validate import check

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))

POOL = """\
apiVersion: tidepool.dev/v1alpha1
kind: ModelPool
metadata:
  name: chat
spec:
  model: {uri: "hf://a/b"}
"""
FLOW = """\
apiVersion: tidepool.dev/v1alpha1
kind: AgentWorkflow
metadata: {name: two}
spec:
  steps:
    - name: plan
      llm: {pools: [{name: chat}], messages: [{role: user, content: hi}]}
    - name: write
      depends: plna
      llm: {pools: [{name: chat}], messages: [{role: user, content: hi}]}
"""


@pytest.mark.parametrize(
    ("content", "line", "field", "words"),
    [
        pytest.param(POOL + "  replicas: -1\n", 7, "spec.replicas", "at least 0", id="a value out of its bounds"),
        pytest.param(POOL + "  replcas: 1\n", 7, "spec.replcas", "no field", id="a misspelt field"),
        pytest.param(
            POOL + "  scaling:\n    minReplicas: 3\n    maxReplicas: 1\n", 9, "spec.scaling", "below",
            id="a rule over two fields, as the cluster's CEL has it",
        ),
        pytest.param(POOL + "  replicas: 1\n  replicas: 2\n", 8, "spec.replicas", "line 7", id="twice"),
        pytest.param(POOL.replace("  name: chat", "  name: Chat"), 4, "metadata.name", "lower case", id="a name"),
        pytest.param(POOL.replace("v1alpha1", "v1"), 1, "apiVersion", "must be", id="version"),
        pytest.param(FLOW, 9, "spec.steps[1].depends", "plan", id="a step that is not there"),
        pytest.param("a: [1\n", 2, "-", "is no YAML", id="no YAML at all"),
        pytest.param("- 1\n", 1, "-", "is no object", id="a list"),
        pytest.param(POOL.partition("spec:")[0], 1, "spec", "required", id="no spec"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(content: str, line: int, field: str, words: str) -> None:
    found = check([("f.yaml", content)]).findings

    hits = [each for each in found if each.field.startswith(field) and words in each.message]
    assert hits, [str(each) for each in found]
    assert line in {each.line for each in hits}, [str(each) for each in found]
    assert str(hits[0]).startswith("f.yaml:")


def test_lines_count_through_all_documents_of_a_file() -> None:
    found = check([("f.yaml", f"{POOL}---\n{POOL}  replicas: -1\n")]).findings

    assert [each.line for each in found if each.field == "spec.replicas"] == [14]


def test_a_workflow_may_name_the_pools_beside_it_and_no_others() -> None:
    sound = FLOW.replace("plna", "plan")

    assert not check([("f.yaml", sound), ("p.yaml", POOL)]).findings
    assert not check([("f.yaml", sound)], ["chat"]).findings
    assert not check([("f.yaml", sound)]).findings  # what is in the cluster is not known here
    assert "did you mean" in " ".join(each.message for each in check([("f.yaml", sound)], ["chatt"]).findings)


@pytest.mark.parametrize(
    ("content", "skipped"), [("kind: ModelPool\nmetadata: chat\n", 0), ("kind: [ModelPool]\n", 1)]
)
def test_what_has_another_shape_altogether_is_told_and_no_stack_trace(content: str, skipped: int) -> None:
    checked = check([("a.yaml", content)])

    assert checked.skipped == skipped
    assert bool(checked.findings) is not bool(skipped)


def test_other_kinds_are_counted_and_left() -> None:
    checked = check([("f.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")])

    assert (checked.objects, checked.skipped, checked.findings) == (0, 1, ())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_sound(path: Path) -> None:
    assert check([(str(path), path.read_text())]).findings == ()
