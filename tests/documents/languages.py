"""Who checks what of a page: by a block's language, by what a document of YAML is, by what a text begins with.

What is in no table here, or in none of `programs`, fails the test.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import yaml

from documents.blocks import ROOT, Block, commands
from documents.manifests import FOREIGN, Object, check_series, whole_of
from documents.programs import PROGRAMS, known_value, needed_for
from tidepool_api.alerts import alerts
from tidepool_api.language.review import review
from tidepool_api.problems import unknown_fields
from tidepool_api.routing import Fleet, SidecarSettings
from tidepool_api.status import ModelPoolStatus

_BEGUN_DIGEST: Final = re.compile(r'"([0-9a-f]{2})\.\.\."')


def _values(document: Object) -> None:
    """Values of the chart, by the names that its schema knows."""
    for name in _dotted(document):
        assert known_value(name), name


def _fleet(document: Object) -> None:
    found = Fleet.model_validate(document)
    assert unknown_fields(Fleet, document, "fleet") == []
    names = {pool.name for pool in found.pools}
    for workflow in found.workflows:
        resource = {"metadata": {"name": workflow.name}, "spec": workflow.spec}
        assert [str(problem) for problem in review(resource, names)] == []


def _keys(document: Object) -> None:
    from tidepool_router.keys.document import read_keys

    assert read_keys(whole_digests(json.dumps(document)))


def whole_digests(text: str) -> str:
    """A keys document with all digits of the digests, of which pages show the first two."""
    return _BEGUN_DIGEST.sub(lambda begun: f'"{begun[1]:0<64}"', text)


def _settings(document: Object) -> None:
    SidecarSettings.model_validate({"pool": "small", **document})
    assert unknown_fields(SidecarSettings, document, "settings") == []


def _status(document: Object) -> None:
    ModelPoolStatus.model_validate(document["status"])
    assert unknown_fields(ModelPoolStatus, document["status"], "status") == []


def _adapter(document: Object) -> None:
    check_series(json.dumps(document))


def _scrapes(document: Object) -> None:
    """tests/chart/test_pages.py gives it to Prometheus."""
    assert document["scrape_configs"]


# By one of the names at the document's top.
DOCUMENTS: Final[Mapping[str, Callable[[Object], None]]] = {
    "gateway": _values,
    "pools": _fleet,
    "keys": _keys,
    "trust": _settings,
    "status": _status,
    "scrape_configs": _scrapes,
    "externalRules": _adapter,
}


def needed_by(document: Mapping[str, Any]) -> set[str]:
    """What must be there beside Kubernetes and this project for a document to mean something."""
    needed = {FOREIGN[document["apiVersion"]]} if document.get("apiVersion") in FOREIGN else set()
    return needed | ({"prometheus-adapter"} if "externalRules" in document else set())


def _dotted(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _yaml(block: Block) -> None:
    for document in yaml.safe_load_all(block.text):
        if whole_of(document) is None:  # objects: tests/chart/test_examples.py
            (name,) = set(document) & set(DOCUMENTS)
            DOCUMENTS[name](document)


def _shell(block: Block) -> None:
    found = commands(block)
    assert found
    for command in found:
        PROGRAMS[command.program](command)


def _promql(block: Block) -> None:
    assert block.text in {one.holds for one in alerts()}


def _json(block: Block) -> None:
    """A line of the log."""
    from tidepool_router.tracing.access import AccessLine

    line = json.loads(block.text)
    datetime.fromisoformat(line["time"])
    if line["logger"] == "tidepool.access":
        told = msgspec.convert(line, AccessLine)
        assert set(line) == set(json.loads(msgspec.json.encode(told)))
    assert {"time", "level", "logger", "message"} <= set(line)


def _dockerfile(block: Block) -> None:
    assert {line.split()[0] for line in block.text.splitlines()} <= {"FROM", "COPY"}


def _drawing(block: Block) -> None:
    """Nothing of it can be wrong but its width."""
    assert max(len(line) for line in block.text.splitlines()) <= 115


def _spans(block: Block) -> None:
    folder = ROOT / "router" / "tidepool_router" / "tracing"
    source = "".join((folder / name).read_text() for name in ("spans.py", "life.py"))
    named = re.findall(r"─ (\w+)", block.text)
    assert len(named) > 5
    assert [name for name in named if f'"{name}"' not in source and f'"{name} ' not in source] == []


def _forecast(block: Block) -> None:
    from tidepool_operator.scaling.ahead import Ahead, _words
    from tidepool_operator.scaling.model import Forecast, Moment
    from tidepool_operator.scaling.needs import Need

    at = datetime(2026, 11, 30, 8, 4, tzinfo=UTC).timestamp()
    moment = Moment(at, 0.0, 19_732.0)
    said = _words(at - 240, Ahead(Need("decode", 7.0, ""), moment), Forecast(225.0, (moment,)))
    assert block.text == f"5 -> 7: {said}; binding: decode; reactive alone: 5"


def _announced(block: Block) -> None:
    from fakes.readings import asked, pod, pool, settled
    from tidepool_operator.scaling.decide import decide
    from tidepool_operator.scaling.model import ScalingSpec

    memory = settled(1, 1e9, saturated_running=8.0, saturated_at=1e9)
    reading = pool(pod(running=8), demand=asked(in_flight=8, coming=24))
    assert block.text == decide(1e9, reading, ScalingSpec(1, 8), 1, memory)[0].message


def _schedule(block: Block) -> None:
    from tidepool_api.scaling import Scaling
    from tidepool_operator.scaling.schedules import bounded
    from tidepool_operator.scaling.spec import from_api

    page = (ROOT / block.page).read_text()
    (told,) = [one for one in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S) if "schedules:" in one]
    spec = from_api(Scaling.model_validate(yaml.safe_load(told)["scaling"]))
    before = datetime(2026, 11, 30, 6, 58, tzinfo=UTC).timestamp()  # in Berlin two minutes before eight
    assert block.text == f"1 -> 2: minReplicas is 2{bounded(before, spec, 300.0).min_by}"


def _advice(block: Block) -> None:
    from tidepool_operator.backtest.advice import Advice

    why = "50.0 % of the time the pool was at its maximum; 99.00 % within targets instead of 90.00 %, ..."
    assert block.text.splitlines()[1:] == [Advice("maxReplicas", "4", "8", why).told()]


def _rejected(block: Block) -> None:
    """The way that was not taken."""
    assert "decisions/" in block.page


# What is no language, by its first line.
TEXTS: Final[Mapping[str, Callable[[Block], None]]] = {
    "client --- OpenAI API ---> gateway": _drawing,
    "kubectl, helm": _drawing,
    "POST /v1/chat/completions": _spans,
    "5 -> 7: P90 of output tokens": _forecast,
    "1 -> 4: 24 calls that workflow runs": _announced,
    "1 -> 2: minReplicas is 2, bounded by schedule": _schedule,
    "Settings that this past would change:": _advice,
    "gateway:": _rejected,
}


def _text(block: Block) -> None:
    (check,) = [check for first, check in TEXTS.items() if block.first.startswith(first)]
    check(block)


LANGUAGES: Final[Mapping[str, Callable[[Block], None]]] = {
    "yaml": _yaml,
    "sh": _shell,
    "console": _shell,
    "promql": _promql,
    "json": _json,
    "dockerfile": _dockerfile,
    "text": _text,
}


def needs(block: Block) -> set[str]:
    """What its title must name."""
    if block.language == "yaml":
        return {need for document in yaml.safe_load_all(block.text) for need in needed_by(document)}
    if block.language in {"sh", "console"}:
        return {need for command in commands(block) for need in needed_for(command)}
    return set()
