"""Whoever watches, as the options want it; nobody by default."""

import sys
from importlib.metadata import version
from typing import Final

from tidepool_api import contract
from tidepool_router import logs
from tidepool_router.metrics import Registry
from tidepool_router.settings import Options
from tidepool_router.tracing.otlp import OtlpExporter
from tidepool_router.tracing.sight import Sight

# A thread that makes spans holds the interpreter for as long at a time, and a request waits for it: Python's own
# 5 ms are more than a request may take here.
_SWITCH_SECONDS: Final = 0.0005


def watching(options: Options, registry: Registry) -> Sight | None:
    """None where nothing is switched on.

    Raises SettingsError when spans are wanted and OpenTelemetry is not installed.
    """
    watch = options.watching
    if not watch.spans and not watch.access_log:
        return None
    exporter = None
    if watch.spans:
        sys.setswitchinterval(_SWITCH_SECONDS)
        resource = {
            "service.name": f"tidepool-{options.role}",
            "service.namespace": "tidepool",
            "service.version": version("tidepool"),
            "service.instance.id": options.pod,
            "k8s.pod.name": options.pod,
            "k8s.namespace.name": options.namespace,
        }
        exporter = OtlpExporter(watch.endpoint, resource)
    sight = Sight(
        exporter=exporter,
        ratio=watch.ratio,
        prompts=watch.prompts,
        write_lines=logs.write_lines if watch.access_log else None,
    )
    _count(sight, registry)
    return sight


def _count(sight: Sight, registry: Registry) -> None:
    spans = registry.counter(contract.METRIC_SPANS, "Spans, by what became of them.", "outcome")
    lost = registry.counter(
        contract.METRIC_WATCH_DROPPED, "Requests that were not told of, because writing fell behind.", "of"
    )

    def read() -> None:
        if sight.exporter is not None:
            spans.labels("exported").set(sight.exporter.exported)
            spans.labels("failed").set(sight.exporter.failed)
        for name, batches in (("traces", sight.lives), ("access_log", sight.lines)):
            if batches is not None:
                lost.labels(name).set(batches.dropped)

    registry.before_scrape(read)
