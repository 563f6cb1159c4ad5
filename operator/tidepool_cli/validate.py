"""Files held against the rules of the cluster, without one: the same models, with lines. Pure but for `read`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel

from tidepool_api import modelpool, workflow, workflow_run
from tidepool_api.contract import API_VERSION
from tidepool_api.language.review import review
from tidepool_api.problems import problems, run_problems, unknown_fields, workflow_problems
from tidepool_cli.errors import CliError

_MOST_BYTES: Final = 4 * 2**20
_KINDS: Final[dict[str, type[BaseModel]]] = {
    modelpool.KIND: modelpool.ModelPoolSpec,
    workflow.KIND: workflow.AgentWorkflowSpec,
    workflow_run.KIND: workflow_run.AgentWorkflowRunSpec,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake: where, and what to do. `line` counts from one."""

    file: str
    line: int
    object: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.object}: {self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What was looked at. `skipped` are objects of other kinds."""

    findings: tuple[Finding, ...]
    objects: int
    skipped: int


@dataclass(frozen=True, slots=True)
class _Document:
    file: str
    node: yaml.Node
    value: dict[str, Any]


def read(path: Path) -> tuple[str, str]:
    """Name and content of a file. Raises CliError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise CliError(f"{path} has more than 4 MiB; split it")
        return str(path), path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path} cannot be read: {error}; name a YAML or JSON file") from error


def check(files: Sequence[tuple[str, str]], pool_names: Sequence[str] = ()) -> Checked:
    """All findings of files given as name and content.

    `pool_names` are pools that are in the cluster already: workflows may name them beside those of the files.
    Where neither names any, what workflows refer to is trusted.
    """
    found: list[Finding] = []
    documents: list[_Document] = []
    for file, content in files:
        read_ones, broken = _documents(file, content)
        documents += read_ones
        found += broken
    pools = {*pool_names, *_names(documents, modelpool.KIND)}
    workflows = _names(documents, workflow.KIND)
    skipped = 0
    for document in documents:
        if str(document.value.get("kind")) not in _KINDS:
            skipped += 1
            continue
        found += _check(document, pools, workflows)
    return Checked(
        tuple(sorted(found, key=lambda each: (each.file, each.line))), len(documents) - skipped, skipped
    )


def _documents(file: str, content: str) -> tuple[list[_Document], list[Finding]]:
    documents: list[_Document] = []
    try:
        for node in yaml.compose_all(content, Loader=yaml.SafeLoader):
            value = yaml.SafeLoader("").construct_document(node) if node is not None else None
            if isinstance(value, dict):
                documents.append(_Document(file, node, value))
            elif value is not None:
                words = "is no object; write apiVersion, kind, metadata and spec"
                return documents, [Finding(file, node.start_mark.line + 1, "document", "-", words)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        words = f"is no YAML: {getattr(error, 'problem', None) or error}; mend it first"
        return documents, [Finding(file, mark.line + 1 if mark else 1, "file", "-", words)]
    return documents, []


def _names(documents: Sequence[_Document], kind: str) -> set[str]:
    found = (each.value.get("metadata") for each in documents if each.value.get("kind") == kind)
    return {str(metadata.get("name", "")) for metadata in found if isinstance(metadata, dict)}


def _check(document: _Document, pools: set[str], workflows: set[str]) -> Iterator[Finding]:
    value = document.value
    kind, metadata = str(value["kind"]), value.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    told = f"{kind} {name}" if name else kind

    def at(field: str, message: str) -> Finding:
        return Finding(document.file, _line(document.node, field), told, field, message)

    if value.get("apiVersion") != API_VERSION:
        yield at("apiVersion", f"must be {API_VERSION}")
    if not name and not (isinstance(metadata, dict) and metadata.get("generateName")):
        yield at("metadata.name", "is required; set it")
    for field, first, second in _doubled(document.node):
        words = f"stands twice; the first one, in line {first}, would be lost"
        yield Finding(document.file, second, told, field, words)
    spec = value.get("spec")
    if not isinstance(spec, dict):
        yield at("spec", "is required and a mapping; set it")
        return
    for path in unknown_fields(_KINDS[kind], spec):
        yield at(path, "is no field of this resource; look for a misspelling")
    if kind == modelpool.KIND:
        yield from (at(each.field, each.message) for each in problems(spec, name))
    elif kind == workflow_run.KIND:
        yield from (at(each.field, each.message) for each in run_problems(spec))
    else:
        shape = [(each.field, each.message) for each in workflow_problems(spec)]
        deep = [
            (each.path, each.message) for each in review(value, pools, workflows) if pools or not each.accepted
        ]
        yield from (at(*each) for each in shape or deep)


def _line(node: yaml.Node, field: str) -> int:
    """Line of a field like `spec.steps[2].llm`, or of what holds it where it is missing."""
    line = node.start_mark.line + 1
    for part in field.replace("[", ".[").split("."):
        if isinstance(node, yaml.MappingNode):
            inner = next(((key, value) for key, value in node.value if key.value == part), None)
            if inner is None:
                return line
            line, node = inner[0].start_mark.line + 1, inner[1]
        elif isinstance(node, yaml.SequenceNode) and part.startswith("[") and part[1:-1].isdigit():
            if int(part[1:-1]) >= len(node.value):
                return line
            node = node.value[int(part[1:-1])]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _doubled(node: yaml.Node, path: str = "") -> Iterator[tuple[str, int, int]]:
    """Fields that stand twice in one mapping, with both lines: YAML keeps the last without a word."""
    if isinstance(node, yaml.SequenceNode):
        for number, inner in enumerate(node.value):
            yield from _doubled(inner, f"{path}[{number}]")
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, inner in node.value:
            here = f"{path}.{key.value}" if path else str(key.value)
            line = key.start_mark.line + 1
            if key.value in seen:
                yield here, seen[key.value], line
            seen.setdefault(key.value, line)
            yield from _doubled(inner, here)
