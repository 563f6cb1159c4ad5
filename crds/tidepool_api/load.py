"""Load reports: what a sidecar tells gateways and peers, and what a gateway tells the operator.

One JSON object a line. Unknown keys are ignored, missing ones take their default, and a health of a later release
is one that takes no requests, so that routers two releases apart understand each other.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, TypeAdapter


class Health(StrEnum):
    """State of the engine behind a sidecar."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    HUNG = "hung"
    DOWN = "down"


_KNOWN_HEALTH: Final = frozenset(Health)


# It stands in headers of answers to clients, and who sends it is whoever runs the pod.
_NAME: Final = r"^[ -~]*$"


def _known_health(value: object) -> object:
    return value if not isinstance(value, str) or value in _KNOWN_HEALTH else Health.DOWN


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One engine's load, as its ledger knows it.

    Token figures: `queued_tokens` are uncached prompt tokens of requests without a first token; `held_tokens` are
    KV tokens held (prompt plus output so far); `expected_tokens` are output tokens still expected. `kv_usage` is
    the engine's own gauge, 0 to 1, None when unknown; `kv_block_tokens` is the size of its blocks, and
    `kv_tokens` what its live requests take of it, a beginning that several share counted once. `adapters` are the
    LoRA adapters that its requests use now, `adapter_slots` how many it keeps at once, `served_adapters` the
    names that it answers to, `adapters_failed` those that it is to have and does not take, each with its words.
    `seq` grows by one a report and restarts with the process; `boot` tells processes
    apart. `stored` is what its prefix cache took in lately, the newest of `stored_total` entries (see
    ledger.stored).

    `kv_exhausted_seconds`: when its live requests will have used up its KV blocks, by the ends that are expected
    of them; None while that is not foreseen.

    `variant`: the kind of accelerator that it runs on, where its pool has several.

    `waiting` has those that wait in the engine and the `held`, which the sidecar has not sent to it yet, of which
    `held_direct` came by no gateway. `limit`: with so many requests, running and waiting, the pod is full and one
    more would only wait there; None while that is not known.
    """

    pod: Annotated[str, Field(pattern=_NAME, max_length=253)] = ""
    pool: str = ""  # "namespace/name"
    model: str = ""
    boot: str = ""
    seq: int = 0
    health: Annotated[Health, BeforeValidator(_known_health)] = Health.STARTING
    running: int = 0
    waiting: int = 0
    queued_tokens: int = 0
    held_tokens: int = 0
    expected_tokens: int = 0
    kv_capacity_tokens: int | None = None
    kv_usage: float | None = None
    kv_block_tokens: int | None = None
    kv_tokens: int | None = None
    prefill_tokens_per_second: float | None = None
    output_tokens_per_second: float | None = None
    opened_total: int = 0
    closed_total: int = 0
    settings: str = ""  # SidecarSettings.digest() in force
    adapters: tuple[str, ...] = ()
    adapter_slots: int | None = None
    stored: str = ""
    stored_total: int = 0
    held: int = 0
    limit: int | None = None
    served_adapters: tuple[str, ...] = ()
    kv_exhausted_seconds: float | None = None
    adapters_failed: tuple[tuple[str, str], ...] = ()
    variant: str = ""
    held_direct: int = 0

    def encode(self) -> bytes:
        """One line of JSON with its newline."""
        return _LOAD_REPORT.dump_json(self) + b"\n"

    @classmethod
    def decode(cls, line: bytes | str) -> "LoadReport":
        """Raises ValueError when the line is no JSON object or a value has the wrong type."""
        return _LOAD_REPORT.validate_json(line)


@dataclass(frozen=True, slots=True)
class PoolDemand:
    """What one gateway holds and refused for one pool; counters since `GatewayReport.boot`.

    `coming`: calls at once, beyond those in flight, that runs of workflows will make within two minutes.
    """

    held: int = 0
    held_bytes: int = 0
    held_prompt_tokens: int = 0
    oldest_held_seconds: float = 0.0
    in_flight: int = 0
    refused_total: int = 0
    arrived_total: int = 0
    coming: int = 0


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """What a gateway tells the operator: demand by pool ("namespace/name") and the fleet that it knows."""

    gateway: str = ""
    boot: str = ""
    seq: int = 0
    fleet_issued_at: float | None = None
    pools: dict[str, PoolDemand] = field(default_factory=dict)

    def encode(self) -> bytes:
        """One line of JSON with its newline."""
        return _GATEWAY_REPORT.dump_json(self) + b"\n"

    @classmethod
    def decode(cls, line: bytes | str) -> "GatewayReport":
        """Raises ValueError when the line is no JSON object or a value has the wrong type."""
        return _GATEWAY_REPORT.validate_json(line)


_LOAD_REPORT: Final = TypeAdapter(LoadReport)
_GATEWAY_REPORT: Final = TypeAdapter(GatewayReport)
