"""The CustomResourceDefinitions, as plain data."""

from dataclasses import dataclass
from typing import Any, Final

from tidepool_api import modelpool, workflow, workflow_run
from tidepool_api.contract import (
    AGENTWORKFLOW_PLURAL,
    AGENTWORKFLOWRUN_PLURAL,
    GROUP,
    MODELPOOL_PLURAL,
    VERSION,
)
from tidepool_api.kube import VALIDATIONS, Document
from tidepool_api.not_yet import MODELPOOL_NOT_YET
from tidepool_api.structural import structural_schema

CATEGORY: Final = "tidepool"
KEEP_ANNOTATIONS: Final = {"helm.sh/resource-policy": "keep"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`; `wide` shows it with -o wide only."""

    name: str
    path: str
    description: str
    type: str = "string"
    wide: bool = False

    def entry(self) -> dict[str, Any]:
        """The entry of additionalPrinterColumns."""
        entry = {"name": self.name, "type": self.type, "jsonPath": self.path, "description": self.description}
        return entry | ({"priority": 1} if self.wide else {})


def _condition(kind: str, part: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{part}'


_AGE: Final = Column("AGE", ".metadata.creationTimestamp", "Time since creation.", "date")

MODELPOOL_COLUMNS: Final = (
    Column("READY", _condition("Ready", "status"), "Whether the pool serves."),
    Column("REPLICAS", ".status.replicas", "Pods of the pool.", "integer"),
    Column("DESIRED", ".status.desiredReplicas", "Replicas that are wanted.", "integer"),
    Column("KV", ".status.figures.kvUtilization", "Share of the KV cache in use."),
    Column("REASON", _condition("Ready", "reason"), "Why the pool is or is not ready."),
    _AGE,
    Column("MODEL", ".spec.model.uri", "What is served.", wide=True),
    Column("TOKENS/S", ".status.figures.outputTokensPerSecond", "Output tokens a second.", wide=True),
    Column("TTFT", ".status.figures.timeToFirstToken", "Median time to the first token.", wide=True),
    Column("URL", ".status.url", "The pool's own address inside the cluster.", wide=True),
)
WORKFLOW_COLUMNS: Final = (
    Column("ACCEPTED", _condition("Accepted", "status"), "Whether the workflow is well formed."),
    Column("READY", _condition("Ready", "status"), "Whether the workflow can run."),
    Column("REASON", _condition("Ready", "reason"), "Why the workflow can or cannot run."),
    Column("ACTIVE", ".status.runs.active", "Runs in progress.", "integer"),
    _AGE,
    Column(
        "SUCCEEDED", ".status.runs.succeeded", "Runs that succeeded in the last 24 hours.", "integer", wide=True
    ),
    Column("FAILED", ".status.runs.failed", "Runs that failed in the last 24 hours.", "integer", wide=True),
    Column("P95", ".status.latency.p95", "Nineteen in twenty runs took no longer.", wide=True),
)
RUN_COLUMNS: Final = (
    Column("WORKFLOW", ".spec.workflow", "The workflow that is run."),
    Column("PHASE", ".status.phase", "Where the run stands."),
    Column("STEPS", ".status.steps", "Steps that have ended.", "integer"),
    Column("TOKENS", ".status.tokens", "Tokens used.", "integer"),
    _AGE,
    Column("FINISHED", ".status.finished", "Time since the run ended.", "date", wide=True),
    Column("REASON", ".status.reason", "Why it waits, failed or was cancelled.", wide=True),
    Column("RUN", ".status.run", "The run's id at the gateway.", wide=True),
)
SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}


@dataclass(frozen=True, slots=True)
class Resource:
    """What a CustomResourceDefinition says of a kind beside its schema."""

    model: type[Document]
    kind: str
    plural: str
    short_name: str
    columns: tuple[Column, ...]
    scale: bool
    # Rules of the spec that stand outside its model.
    spec_validations: tuple[dict[str, Any], ...] = ()

    def crd(self) -> dict[str, Any]:
        """The whole definition."""
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{self.plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "names": {
                    "kind": self.kind,
                    "listKind": f"{self.kind}List",
                    "plural": self.plural,
                    "singular": self.kind.lower(),
                    "shortNames": [self.short_name],
                    "categories": [CATEGORY],
                },
                "scope": "Namespaced",
                "versions": [self._version()],
            },
        }

    def _version(self) -> dict[str, Any]:
        return {
            "name": VERSION,
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": self._schema()},
            "subresources": {"status": {}} | ({"scale": SCALE} if self.scale else {}),
            "additionalPrinterColumns": [column.entry() for column in self.columns],
        }

    def _schema(self) -> dict[str, Any]:
        whole = structural_schema(self.model)
        properties = whole["properties"]
        spec = properties["spec"]
        spec[VALIDATIONS] = [*spec.get(VALIDATIONS, []), *self.spec_validations]
        # The API server's own; the name is spelled out for the rules that speak of it.
        properties["apiVersion"] = {"type": "string"}
        properties["kind"] = {"type": "string"}
        properties["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}
        properties["status"].pop("default", None)
        return whole


MODELPOOL: Final = Resource(
    modelpool.ModelPool,
    modelpool.KIND,
    MODELPOOL_PLURAL,
    "mp",
    MODELPOOL_COLUMNS,
    scale=True,
    spec_validations=tuple(entry.validation() for entry in MODELPOOL_NOT_YET),
)
AGENTWORKFLOW: Final = Resource(
    workflow.AgentWorkflow, workflow.KIND, AGENTWORKFLOW_PLURAL, "aw", WORKFLOW_COLUMNS, scale=False
)
AGENTWORKFLOWRUN: Final = Resource(
    workflow_run.AgentWorkflowRun,
    workflow_run.KIND,
    AGENTWORKFLOWRUN_PLURAL,
    "awr",
    RUN_COLUMNS,
    scale=False,
)
RESOURCES: Final = (MODELPOOL, AGENTWORKFLOW, AGENTWORKFLOWRUN)
