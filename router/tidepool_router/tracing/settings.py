"""Flags and environment of what is watched."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from tidepool_router.errors import SettingsError

DEFAULT_RATIO: Final = 0.01
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True, slots=True)
class Watching:
    """`spans`: whether they are exported; `endpoint` None: to where the SDK's own environment variables say.

    `ratio` is the part of the traces that begin here which is sampled, 0 to 1. By default a hundredth: the spans
    of one request cost up to a millisecond of CPU, so with it 1,000 requests a second take a hundredth of a core.
    """

    spans: bool = False
    endpoint: str | None = None
    ratio: float = DEFAULT_RATIO
    prompts: bool = False
    access_log: bool = False


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of both roles."""
    group = parser.add_argument_group("watching")
    group.add_argument(
        "--otlp-endpoint",
        metavar="URL",
        help="export spans to this OpenTelemetry collector, like http://collector:4318 "
        "(default: $OTEL_EXPORTER_OTLP_ENDPOINT; without either no spans are made)",
    )
    group.add_argument(
        "--trace-ratio",
        type=float,
        metavar="0..1",
        help="part of the traces that begin here which is sampled "
        f"(default: $OTEL_TRACES_SAMPLER_ARG, else {DEFAULT_RATIO})",
    )
    group.add_argument("--trace-prompts", action="store_true", help="put prompts of up to 64 KiB into spans")
    group.add_argument("--access-log", action="store_true", help="log a line for each request")


def watching(given: argparse.Namespace, environment: Mapping[str, str]) -> Watching:
    """Raises SettingsError that names the flag or variable and what it takes."""
    flag: str | None = given.otlp_endpoint
    name, address = ("--otlp-endpoint", flag) if flag else _of_environment(environment)
    if address:
        _check_address(name, address)
    return Watching(
        spans=bool(address),
        endpoint=flag or None,
        ratio=_ratio(given.trace_ratio, environment),
        prompts=given.trace_prompts,
        access_log=given.access_log,
    )


def _of_environment(environment: Mapping[str, str]) -> tuple[str, str]:
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if off or environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return "", ""
    return next(((name, environment[name]) for name in _ENDPOINTS if environment.get(name)), ("", ""))


def _check_address(name: str, address: str) -> None:
    remedy = "write it like http://collector:4318"
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise SettingsError(f"{name} {address!r} cannot be read ({error}); {remedy}") from error
    if not valid:
        raise SettingsError(f"{name} {address!r} is no http:// or https:// address; {remedy}")


def _ratio(given: float | None, environment: Mapping[str, str]) -> float:
    variable = environment.get("OTEL_TRACES_SAMPLER_ARG")
    name, text = ("--trace-ratio", given) if given is not None else ("OTEL_TRACES_SAMPLER_ARG", variable)
    if text is None or text == "":
        return DEFAULT_RATIO
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0.0 <= ratio <= 1.0:
        raise SettingsError(f"{name} is {text!r}; it takes a part of all traces, from 0 (none) to 1 (all)")
    return ratio
