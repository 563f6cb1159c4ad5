"""Spans to an OpenTelemetry collector, by OTLP over HTTP. The one module that imports OpenTelemetry, when used.

The SDK's exporter sends, tries again and gives up; its environment variables (OTEL_EXPORTER_OTLP_HEADERS,
_TIMEOUT, _CERTIFICATE, _COMPRESSION; OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) hold. Its tracer is passed over:
a request's spans are made together when it has ended, and none for requests that nobody traces.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidepool_router.errors import SettingsError
from tidepool_router.tracing.life import Life
from tidepool_router.tracing.spans import Span, Trace, spans_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

_PATH: Final = "/v1/traces"
_NANOSECONDS: Final = 1_000_000_000


class OtlpExporter:
    """Writes lives as spans; `write` blocks and belongs on a thread. The counts are of spans."""

    def __init__(self, endpoint: str | None, resource: Mapping[str, str]) -> None:
        """`endpoint` is the collector's base address or that of its traces; None: what the environment says.

        Raises SettingsError when OpenTelemetry is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace.export import SpanExportResult
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as error:
            message = f"traces need OpenTelemetry ({error}); install tidepool[otel], or take --otlp-endpoint away"
            raise SettingsError(message) from error
        self._succeeded = SpanExportResult.SUCCESS
        self._scope = InstrumentationScope("tidepool_router", resource.get("service.version"))
        # What the environment says of the resource goes before what is known here.
        self._resource = Resource.create(dict(resource)).merge(OTELResourceDetector().detect())
        self._exporter = OTLPSpanExporter(endpoint=None if endpoint is None else traces_address(endpoint))
        self.exported = 0
        self.failed = 0

    def write(self, lives: "list[Life | Trace]") -> None:
        """Send the spans of these; what the collector does not take in time is lost and counted."""
        offset_seconds = time.time() - time.monotonic()
        spans = [
            self._readable(life.trace_id, span, offset_seconds)
            for life in lives
            for span in (life.spans if isinstance(life, Trace) else spans_of(life, life.new_id))
        ]
        if self._exporter.export(spans) is self._succeeded:
            self.exported += len(spans)
        else:
            self.failed += len(spans)

    def close(self) -> None:
        """Give up what is being tried again."""
        self._exporter.shutdown()

    def _readable(self, trace_id: int, span: Span, offset_seconds: float) -> "ReadableSpan":
        from opentelemetry import trace
        from opentelemetry.sdk.trace import ReadableSpan

        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)

        def context(span_id: int, *, remote: bool = False) -> "SpanContext":
            return trace.SpanContext(trace_id, span_id, is_remote=remote, trace_flags=flags)

        attributes = span.attributes
        status = trace.Status(trace.StatusCode.UNSET)
        if span.error:
            attributes = {**attributes, "error.type": span.error}
            status = trace.Status(trace.StatusCode.ERROR)
        parent = None if span.parent_id is None else context(span.parent_id, remote=span.kind == "server")
        return ReadableSpan(
            span.name,
            context(span.span_id),
            parent,
            self._resource,
            attributes,
            kind=trace.SpanKind[span.kind.upper()],
            status=status,
            start_time=int((span.began_at + offset_seconds) * _NANOSECONDS),
            end_time=int((span.ended_at + offset_seconds) * _NANOSECONDS),
            instrumentation_scope=self._scope,
        )


def traces_address(endpoint: str) -> str:
    """Where spans go, of a base address such as http://collector:4318, as OTEL_EXPORTER_OTLP_ENDPOINT has it."""
    return endpoint if endpoint.endswith(_PATH) else endpoint.rstrip("/") + _PATH
