"""Flags, environment and files, read into plain options; what is wrong is named, with a remedy."""

import argparse
import dataclasses
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, get_type_hints
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ValidationError

from tidepool_api import contract
from tidepool_api.routing import SidecarSettings
from tidepool_api.trust import TrustedCallers
from tidepool_router.door import Writer
from tidepool_router.errors import SettingsError
from tidepool_router.proxy.limits import Limits
from tidepool_router.tracing import settings as tracing

_Document = TypeVar("_Document", bound=BaseModel)
_MOST_WORKERS: Final = 64
_LOOPBACK: Final = "127.0.0.1"
_STORE_VARIABLE: Final = "TIDEPOOL_WORKFLOW_STORE"
_STORES: Final = f"--workflow-store, --workflow-store-file and {_STORE_VARIABLE}"
_LIMIT_FIELDS: Final = get_type_hints(Limits)


@dataclass(frozen=True, slots=True)
class WorkflowOptions:
    """Where a gateway keeps runs (a URL, or a file that has it), and what their steps may call."""

    store: str | Path | None = dataclasses.field(default=None, repr=False)  # a URL may hold a password
    lease_seconds: float = 15.0
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Options:
    """What the program was asked to do. `role` is "sidecar" or "gateway"; ports of 0 are free ones."""

    role: str
    host: str
    port: int
    metrics_port: int
    control_port: int
    limits: Limits
    pod: str
    namespace: str
    drain_seconds: float
    log_level: str
    watching: tracing.Watching = dataclasses.field(default_factory=tracing.Watching)
    wait_for_file: bool = False
    engine_host: str = ""
    engine_port: int = 0
    settings_file: Path | None = None
    model: str | None = None
    peers: str | None = None
    pod_address: str | None = None
    variant: str = ""  # the kind of accelerator, where the pool has several
    hands_over: bool = False
    fleet_file: Path | None = None
    keys_file: Path | None = None
    decisions_file: Path | None = None
    debug_scores: bool = False
    workflows: WorkflowOptions = dataclasses.field(default_factory=WorkflowOptions)
    keeps_usage: bool = False  # in the store of workflow runs
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_port: int | None = None  # None: `port` serves TLS where there is a certificate
    pod_ca: Path | None = None
    pod_server_name: str | None = None
    proof_file: Path | None = None
    bodies_folder: Path | None = None  # None: the system's temporary one
    control_host: str = ""  # empty: as `host`
    fleet_writer: Writer = Writer.NOBODY
    trust_file: Path | None = None
    workers: int = 1
    worker_fd: int | None = None  # in a worker: where it tells its parent its ports
    passed_over: tuple[str, ...] = ()  # flags of an operator that is newer than this router


def parse(arguments: Sequence[str], environment: dict[str, str]) -> Options:
    """Options from flags and environment.

    Raises SettingsError for values that cannot be used, and SystemExit as argparse does for unknown flags. An
    operator's are passed over: a pool's podTemplate may keep its router's image at an older release than the
    operator's, and parts two releases apart work together.
    """
    parser = _parser()
    passed_over: list[str] = []
    if contract.STARTED_BY in environment:
        given, passed_over = parser.parse_known_args(arguments)
    else:
        given = parser.parse_args(arguments)
    limits = Limits(**{name: getattr(given, name) for name in _LIMIT_FIELDS})
    port = given.port
    common = Options(
        role=given.role,
        host=given.host,
        port=port,
        metrics_port=_beside(given.metrics_port, port, 1),
        control_port=_beside(given.control_port, port, 2),
        limits=limits,
        pod=environment.get("POD_NAME") or socket.gethostname(),
        namespace=environment.get("POD_NAMESPACE") or "default",
        drain_seconds=given.drain_seconds,
        log_level=given.log_level,
        watching=tracing.watching(given, environment),
        wait_for_file=given.wait_for_file,
        tls_cert=given.tls_cert,
        tls_key=given.tls_key,
        pod_ca=given.pod_ca,
        pod_server_name=given.pod_server_name,
        proof_file=given.proof_file,
        bodies_folder=given.bodies_folder,
        passed_over=tuple(passed_over),
    )
    if (given.tls_cert is None) != (given.tls_key is None):
        raise SettingsError("--tls-cert and --tls-key belong together; give both, or neither for plain HTTP")
    if given.role == "gateway":
        if not 1 <= given.workers <= _MOST_WORKERS:
            raise SettingsError(f"--workers {given.workers} must be 1 to {_MOST_WORKERS}; one a core is enough")
        if given.workers > 1 and given.record_decisions is not None:
            raise SettingsError("--record-decisions is for one process; leave out --workers to record")
        writer = _fleet_writer(given)
        workflows = _workflows(given, environment)
        if given.usage and workflows.store is None:
            raise SettingsError(f"--usage keeps it in the store of workflow runs; name one ({_STORES})")
        return dataclasses.replace(
            common,
            fleet_writer=writer,
            control_host=_LOOPBACK if writer is Writer.NOBODY else "",
            trust_file=given.trust_file,
            fleet_file=given.fleet,
            keys_file=given.keys,
            decisions_file=given.record_decisions,
            debug_scores=given.debug_scores,
            workflows=workflows,
            keeps_usage=given.usage,
            workers=given.workers,
            worker_fd=given.worker_fd,
        )
    if given.tls_port is not None and given.tls_cert is None:
        raise SettingsError("--tls-port needs --tls-cert and --tls-key; give them too, or leave it out")
    host, engine_port = engine_address(given.engine)
    return dataclasses.replace(
        common,
        engine_host=host,
        engine_port=engine_port,
        settings_file=given.settings,
        model=given.model,
        tls_port=given.tls_port,
        peers=given.peers,
        pod_address=environment.get("POD_IP") or None,
        variant=environment.get("POD_VARIANT") or "",
        hands_over=given.hands_over,
    )


def _fleet_writer(given: argparse.Namespace) -> Writer:
    """Raises SettingsError when two flags say two things."""
    if given.control_open and given.trust_file is not None:
        raise SettingsError("--trust-file and --control-open say two things of who may PUT /fleet; give one")
    if given.worker_fd is not None and given.trust_file is not None:
        return Writer.EVERYBODY  # the parent alone reaches a worker's control port, and has asked for the proof
    if given.trust_file is not None:
        return Writer.OPERATOR
    return Writer.EVERYBODY if given.control_open else Writer.NOBODY


def _workflows(given: argparse.Namespace, environment: dict[str, str]) -> WorkflowOptions:
    store: str | Path | None = given.workflow_store
    if store is not None and not str(store).startswith("sqlite:"):
        message = (
            "--workflow-store takes sqlite:///FILE alone, for everybody sees command lines; give the address of a "
            f"PostgreSQL server in a file (--workflow-store-file) or in {_STORE_VARIABLE}"
        )
        raise SettingsError(message)
    others = [given.workflow_store_file, environment.get(_STORE_VARIABLE) or None]
    stores = [found for found in (store, *others) if found is not None]
    if len(stores) > 1:
        raise SettingsError(f"there can be one store of workflow runs; give one of {_STORES}")
    if given.workers > 1 and any(str(found).startswith("sqlite:") for found in stores):
        raise SettingsError(
            "a store in SQLite is for one process; leave out --workers, or keep runs in PostgreSQL"
        )
    if not 1.0 <= given.workflow_lease_seconds <= 600.0:
        raise SettingsError(f"--workflow-lease-seconds {given.workflow_lease_seconds:g} must be 1 to 600")
    return WorkflowOptions(
        stores[0] if stores else None, given.workflow_lease_seconds, tuple(given.workflow_allow)
    )


def engine_address(url: str) -> tuple[str, int]:
    """Host and port of the engine's URL.

    Raises SettingsError that says what a right one looks like.
    """
    remedy = "write it like http://127.0.0.1:8000"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"--engine {url!r} cannot be read ({error}); {remedy}") from error
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
        raise SettingsError(f"--engine {url!r} is no http:// address without a path; {remedy}")
    return parts.hostname, port or 80


def read_sidecar_settings(options: Options) -> SidecarSettings:
    """The settings to start with: the file's, else defaults; --model goes before the file.

    Raises SettingsError when the file is missing (without --wait-for-file) or wrong.
    """
    # With a proof of its own it runs where others have theirs: until it is told whose counts, nobody's does.
    trust = None if options.proof_file is None else TrustedCallers()
    settings = SidecarSettings(pool=options.pod, namespace=options.namespace, trust=trust)
    path = options.settings_file
    if path is not None and (path.exists() or not options.wait_for_file):
        settings = read_document(path, SidecarSettings)
    return settings.model_copy(update={"model": options.model}) if options.model else settings


def read_document(path: Path, kind: type[_Document]) -> _Document:
    """A YAML or JSON file as a document.

    Raises SettingsError that names the file and the field.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read {path}: {error}") from error
    return parse_document(text, kind, str(path))


def parse_document(text: str, kind: type[_Document], source: str) -> _Document:
    """A YAML or JSON text as a document.

    Raises SettingsError that names the source and the field.
    """
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{source} is not valid YAML or JSON: {error}") from error
    try:
        return kind.model_validate({} if content is None else content)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, fault['loc'])) or 'document'}: {fault['msg']}" for fault in error.errors()
        )
        raise SettingsError(f"{source} cannot be used: {faults}") from error


def _beside(given: int | None, port: int, distance: int) -> int:
    if given is not None:
        return given
    return port + distance if port else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidepool-router",
        description="A token-aware router for LLM engines: beside one, or before many.",
        epilog="`tidepool-router keys new --tenant NAME` makes an API key for a gateway.",
    )
    roles = parser.add_subparsers(dest="role", required=True)
    sidecar = roles.add_parser("sidecar", help="the single door to one engine")
    sidecar.add_argument("--engine", required=True, metavar="URL", help="like http://127.0.0.1:8000")
    sidecar.add_argument("--settings", type=Path, metavar="FILE", help="start value of the pool's settings")
    sidecar.add_argument("--model", help="what the engine must serve to be ready")
    sidecar.add_argument("--tls-port", type=int, help="serve TLS there, and plain HTTP on --port as well")
    sidecar.add_argument("--peers", metavar="URL", help="the pool's other sidecars, like dns+http://host:8080")
    sidecar.add_argument(
        "--hands-over",
        action="store_true",
        help="the engine passes KV blocks to other pods' engines, or gets them from there: take no client's word "
        "for where they are",
    )
    gateway = roles.add_parser("gateway", help="the front door to all pools")
    gateway.add_argument(
        "--fleet", type=Path, metavar="FILE", help="pools and their endpoints; reloaded on change"
    )
    gateway.add_argument(
        "--keys", type=Path, metavar="FILE", help="API keys; reloaded on change. Without it the gateway is open"
    )
    gateway.add_argument(
        "--trust-file",
        type=Path,
        metavar="FILE",
        help="keys and accounts by which the operator proves itself on the control port; reloaded. With it, and "
        "with --control-open, the control port listens on --host; without both on loopback, and takes no fleet",
    )
    gateway.add_argument(
        "--control-open", action="store_true", help="let everybody who reaches the control port PUT /fleet"
    )
    gateway.add_argument(
        "--record-decisions", type=Path, metavar="FILE", help="write each pick there, for `tidepool-router replay`"
    )
    gateway.add_argument(
        "--debug-scores", action="store_true", help="answer x-tidepool-debug: scores with what each pod would cost"
    )
    gateway.add_argument(
        "--workflow-store",
        metavar="URL",
        help="keep runs of workflows, like sqlite:////data/workflows.db; without a store none outlives its client",
    )
    gateway.add_argument(
        "--workflow-store-file",
        type=Path,
        metavar="FILE",
        help="a file with the store's URL, like postgresql://user:password@host/database; or "
        f"{_STORE_VARIABLE} in the environment",
    )
    gateway.add_argument(
        "--usage", action="store_true", help="keep who used how much in that store, for `tidepool-router usage`"
    )
    gateway.add_argument(
        "--workflow-lease-seconds",
        type=float,
        default=15.0,
        metavar="SECONDS",
        help="how long after its gateway was last heard of a run is taken over (default %(default)s)",
    )
    gateway.add_argument(
        "--workflow-allow",
        action="append",
        default=[],
        metavar="HOST",
        help="a host that steps of workflows may call and classifiers may be at, like search.tools, *.tools or "
        "search.tools:8080; may be repeated",
    )
    gateway.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes on the one port (default %(default)s)"
    )
    gateway.add_argument("--worker-fd", type=int, help=argparse.SUPPRESS)
    for role in (sidecar, gateway):
        _add_common(role)
    return parser


def _add_common(role: argparse.ArgumentParser) -> None:
    role.add_argument("--host", default="0.0.0.0", help="address to listen on (default %(default)s)")  # noqa: S104
    role.add_argument("--port", type=int, default=8080, help="traffic (default %(default)s; 0: any free one)")
    role.add_argument("--metrics-port", type=int, help="default: port + 1")
    role.add_argument("--control-port", type=int, help="default: port + 2")
    role.add_argument("--wait-for-file", action="store_true", help="start without the file when it is missing")
    role.add_argument("--drain-seconds", type=float, default=300.0, help="longest drain on SIGTERM")
    role.add_argument(
        "--tls-cert", type=Path, metavar="FILE", help="serve traffic over TLS with this chain; reloaded"
    )
    role.add_argument("--tls-key", type=Path, metavar="FILE", help="the private key for it; reloaded")
    role.add_argument(
        "--pod-ca",
        type=Path,
        metavar="FILE",
        help="authorities for https:// pods and peers; default: the system's",
    )
    role.add_argument(
        "--pod-server-name", metavar="NAME", help="what their certificates must name; default: the address"
    )
    role.add_argument(
        "--proof-file",
        type=Path,
        metavar="FILE",
        help="service account token that is sent to pods and peers as our proof; reloaded",
    )
    role.add_argument(
        "--bodies-folder",
        type=Path,
        metavar="FOLDER",
        help="where bodies of more than --replay-bytes lie that name their model last; default: the system's "
        "temporary folder",
    )
    role.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    tracing.add_flags(role)
    limits = role.add_argument_group("limits")
    for field in dataclasses.fields(Limits):
        flag = "--" + field.name.replace("_", "-")
        limits.add_argument(
            flag, type=_LIMIT_FIELDS[field.name], default=field.default, help="(default %(default)s)"
        )


def environment() -> dict[str, str]:
    """The process's environment."""
    return dict(os.environ)
