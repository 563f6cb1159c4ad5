"""What the operator tells of a spec that it cannot serve, and what it reads all the same."""

import copy

import pytest

from api.specs import APART_POOL, FULL_POOL, FULL_WORKFLOW, Json, changed
from tidepool_api.modelpool import ModelPool, ModelPoolSpec
from tidepool_api.problems import problems, unknown_fields, workflow_problems
from tidepool_api.workflow import AgentWorkflow, AgentWorkflowSpec


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.scaling.maxReplicas", 0, "spec.scaling.maxReplicas: must be at least 1; raise it"),
        ("spec.replicas", -1, "spec.replicas: must be at least 0; raise it"),
        ("spec.replicas", 10_001, "spec.replicas: must be at most 10000; lower it"),
        ("spec.replicas", "many", "spec.replicas: must be a whole number"),
        ("spec.scaling.mode", "auto", "spec.scaling.mode: must be one of 'Auto' or 'Recommend'"),
        ("spec.engine.prefixCaching", "perhaps", "spec.engine.prefixCaching: must be true or false"),
        (
            "spec.engine.gpuMemoryUtilization",
            0.9,
            "spec.engine.gpuMemoryUtilization: must be text; put it in quotes",
        ),
        ("spec.engine.args", "--seed=1", "spec.engine.args: must be a list"),
        ("spec.engine.args", ["x" * 2049], "spec.engine.args[0]: must have at most 2048 characters; shorten it"),
        ("spec.engine.args", ["--a"] * 129, "spec.engine.args: may have at most 128 entries; remove some"),
        ("spec.engine", "vllm", "spec.engine: must be a mapping"),
        ("spec.podTemplate", [], "spec.podTemplate: must be a mapping"),
        ("spec.model", {}, "spec.model.uri: is required; set it"),
        ("spec.model.aliases", ["a", "b", "a"], "spec.model.aliases: has 'a' twice; take one out"),
        ("spec.engine.env", [{"name": "A"}, {"name": "A"}], "spec.engine.env: has 'A' twice; take one out"),
        ("spec.rollout.drainTimeout", "-5s", "spec.rollout.drainTimeout: is not a duration; write it like"),
        ("spec.rollout.drainTimeout", "10s\n", "spec.rollout.drainTimeout: is not a duration; write it like"),
        ("spec.model.uri", "hf://a/b\n", "spec.model.uri: is not a model address; write hf://owner/name"),
        ("spec.routing.queue.maxBytes", "64mb", "spec.routing.queue.maxBytes: is not a quantity; write it like"),
    ],
)
def test_problem_names_the_field_and_the_remedy(path: str, value: object, said: str) -> None:
    document = changed(FULL_POOL, {path: value})

    found = [str(problem) for problem in problems(document["spec"], "llama-8b")]

    assert [problem for problem in found if problem.startswith(said)], found


def test_every_mistake_is_told_at_once() -> None:
    document = changed(
        FULL_POOL,
        {
            "spec.replicas": -1,
            "spec.rollout.drainTimeout": "soon",
            "spec.cache": {},
            "spec.scaling.minReplicas": 9,
        },
    )

    fields = {problem.field for problem in problems(document["spec"])}

    assert fields == {
        "spec.replicas",
        "spec.rollout.drainTimeout",
        "spec.cache",
        "spec.scaling.maxReplicas",
    }


@pytest.mark.parametrize(
    "argument",
    [
        "--tensor-parallel-size=2",
        "--tensor_parallel_size",
        "--tensor-parallel-size 2",
        "--te",
        "--tensor-par=2",
        "-tp",
        "-tp=2",
        "-t=2",
        "--tensor-parallel-size=2\n",
        "--tensor-parallel-size=2\n--seed=1",
        "--max-m=1",
        "--max_model_len=1",
        "--ssl-keyfile=/k",
        "--host",
        "-qawq",
        "-q=awq",
        "-n",
        "--model",
        "--api-k=1",
        "--no-enable-pre",
        "--device-m=0.5",
    ],
)
def test_flag_of_a_field_is_refused_however_it_is_written(argument: str) -> None:
    found = problems(changed(FULL_POOL, {"spec.engine.args": ["--seed=1", argument]})["spec"])

    assert [problem.field for problem in found] == ["spec.engine.args[1]"]


@pytest.mark.parametrize(
    "argument",
    [
        "--model-impl=auto",
        "--max-num-seqs=8",
        "--config-format=hf",
        "--hostess",
        "--max-lora-rank=64",
        "256",
        "model",
    ],
)
def test_flag_without_a_field_is_taken(argument: str) -> None:
    assert problems(changed(FULL_POOL, {"spec.engine.args": [argument]})["spec"]) == []


def test_secret_in_a_refused_argument_is_not_repeated() -> None:
    found = problems(
        changed(FULL_POOL, {"spec.engine.args": ["--hf-token=hf_SECRET", "--api-key hf_SECRET"]})["spec"]
    )

    assert len(found) == 2
    assert "hf_SECRET" not in str(found)


def test_secret_in_a_bad_environment_is_not_repeated() -> None:
    env = [{"name": "1TOKEN", "value": "hf_SECRET"}, {"name": "A", "value": 1, "valueFrom": {"x": "hf_SECRET"}}]

    found = problems(changed(FULL_POOL, {"spec.engine.env": env})["spec"])

    assert found
    assert "hf_SECRET" not in str(found)


@pytest.mark.parametrize(
    "uri", ["s3://models/llama", "gs://models", "oci://registry:5000/acme/llama@sha256:abc#weights"]
)
def test_addresses_of_stores_and_registries_are_taken(uri: str) -> None:
    assert problems({"model": {"uri": uri, "authSecretRef": {"name": "store"}}}) == []


@pytest.mark.parametrize(
    "uri", ["s3://", "s3:///llama", "gs://a b", "oci://registry", "oci://registry/#x", "az://a/b"]
)
def test_addresses_that_lead_nowhere_are_refused(uri: str) -> None:
    assert [problem.field for problem in problems({"model": {"uri": uri}})] == ["spec.model.uri"]


def test_full_objects_have_no_problem() -> None:
    assert problems(FULL_POOL["spec"], "llama-8b") == []
    assert workflow_problems(FULL_WORKFLOW["spec"]) == []


def test_names_of_steps_are_unique() -> None:
    document = changed(FULL_WORKFLOW, {"spec.steps[1].name": "plan"})

    assert [str(problem) for problem in workflow_problems(document["spec"])] == [
        "spec.steps: has 'plan' twice; take one out"
    ]


def test_unknown_fields_are_read_over_and_listed() -> None:
    document = copy.deepcopy(FULL_POOL)
    document["spec"]["fancy"] = {"a": 1}
    document["spec"]["engine"]["env"][1]["valueFrom"]["secretKeyRef"]["mode"] = "x"
    document["spec"]["access"]["from"][0]["namespaceSelector"]["matchLabel"] = {}

    assert problems(document["spec"]) == []
    assert ModelPool.model_validate(document).spec == ModelPool.model_validate(FULL_POOL).spec
    assert unknown_fields(ModelPoolSpec, document["spec"]) == [
        "spec.engine.env[1].valueFrom.secretKeyRef.mode",
        "spec.access.from[0].namespaceSelector.matchLabel",
        "spec.fancy",
    ]


@pytest.mark.parametrize(
    ("kind", "document"),
    [(ModelPoolSpec, FULL_POOL), (ModelPoolSpec, APART_POOL), (AgentWorkflowSpec, FULL_WORKFLOW)],
)
def test_known_fields_are_not_listed(kind: type[ModelPoolSpec | AgentWorkflowSpec], document: Json) -> None:
    assert unknown_fields(kind, document["spec"]) == []


def test_free_objects_hold_anything() -> None:
    document = changed(FULL_POOL, {"spec.podTemplate.spec.hostAliases": [{"ip": "127.0.0.1", "hostnames": ["a"]}]})

    assert problems(document["spec"]) == []
    assert unknown_fields(ModelPoolSpec, document["spec"]) == []
    assert ModelPool.model_validate(document).spec.pod_template == document["spec"]["podTemplate"]


def test_status_of_another_release_does_not_stop_the_pool() -> None:
    document = FULL_POOL | {"status": {"replicas": "three", "conditions": "none"}}

    pool = ModelPool.model_validate(document)

    assert pool.status.replicas is None
    assert AgentWorkflow.model_validate(FULL_WORKFLOW | {"status": 3}).status.conditions == ()


def test_pool_of_a_bad_name_is_read_and_told() -> None:
    document = changed(FULL_POOL, {"metadata.name": "8b.llama"})

    assert ModelPool.model_validate(document).metadata.name == "8b.llama"
    assert [problem.field for problem in problems(document["spec"], "8b.llama")] == ["metadata.name"]


def test_pool_is_called_by_its_own_name_unless_told() -> None:
    pool = ModelPool.model_validate({"metadata": {"name": "tiny"}, "spec": {"model": {"uri": "hf://a/b"}}})

    assert (pool.key, pool.served_names) == ("default/tiny", ("tiny",))
    assert ModelPool.model_validate(FULL_POOL).served_names == ("llama-3.1-8b", "chat-default")
