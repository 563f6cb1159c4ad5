"""An OpenTelemetry collector's OTLP/HTTP receiver, as its specification has it, which keeps the spans it gets.

https://opentelemetry.io/docs/specs/otlp/#otlphttp: POST /v1/traces with a protobuf body, answered by a protobuf of
its own; 400 for what cannot be decoded, 415 for another content type.
"""

import asyncio
import gzip
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

_ANSWER = b"HTTP/1.1 %d x\r\ncontent-type: application/x-protobuf\r\ncontent-length: %d\r\n\r\n"


@dataclass(frozen=True)
class Received:
    """One span; ids in hex, "" for no parent; times in nanoseconds since 1970."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    began_at: int
    ended_at: int
    attributes: dict[str, Any]
    failed: bool
    resource: dict[str, Any]


class Collector:
    """`status` is what it answers; `bodies` are the requests as they came, `headers` those of the last one."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.spans: list[Received] = []
        self.bodies: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.asked = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Base address, without the path of the traces."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    def named(self, name: str) -> Received:
        """The only span of this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                line, *rest = head.strip().split("\r\n")
                pairs = (each.partition(":") for each in rest)
                self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(self.headers.get("content-length", "0")))
                status, answer = self._take(line, body)
                writer.write(_ANSWER % (status, len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    def _take(self, line: str, body: bytes) -> tuple[int, bytes]:
        self.asked += 1
        if not line.startswith("POST /v1/traces "):
            return 404, b""
        if self.headers.get("content-type") != "application/x-protobuf":
            return 415, b""
        if self.status != 200:
            return self.status, b""
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        try:
            request = ExportTraceServiceRequest.FromString(body)
        except DecodeError:
            return 400, b""
        self.bodies.append(body)
        for group in request.resource_spans:
            resource = {pair.key: _value(pair.value) for pair in group.resource.attributes}
            self.spans += [_received(span, resource) for scope in group.scope_spans for span in scope.spans]
        return 200, ExportTraceServiceResponse().SerializeToString()


def _received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name,
        kind=ProtoSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        began_at=span.start_time_unix_nano,
        ended_at=span.end_time_unix_nano,
        attributes={pair.key: _value(pair.value) for pair in span.attributes},
        failed=span.status.code == Status.STATUS_CODE_ERROR,
        resource=resource,
    )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
