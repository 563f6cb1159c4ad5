"""What all workers tell the operator, as the report of one gateway. PURE.

Counters never fall: what a worker had counted when it ended is kept. A fleet is in force when all workers have it.
"""

from collections.abc import Iterable
from dataclasses import replace

from tidepool_api.load import GatewayReport, PoolDemand


class Demand:
    """The workers' newest reports and their sum. `count` is how many workers there are to be."""

    def __init__(self, gateway: str, boot: str, count: int) -> None:
        self._gateway = gateway
        self._boot = boot
        self._count = count
        self._seq = 0
        self._now: dict[int, GatewayReport] = {}
        self._past: dict[str, PoolDemand] = {}

    def heard(self, worker: int, report: GatewayReport) -> None:
        """A report of the worker; another boot is another process under its number."""
        before = self._now.get(worker)
        if before is not None and before.boot != report.boot:
            self.left(worker)
        self._now[worker] = report

    def left(self, worker: int) -> None:
        """The worker has ended: what it held is gone, what it counted is not."""
        report = self._now.pop(worker, None)
        if report is None:
            return
        for name, demand in report.pools.items():
            counted = PoolDemand(refused_total=demand.refused_total, arrived_total=demand.arrived_total)
            self._past[name] = _sum((self._past.get(name, PoolDemand()), counted))

    def report(self) -> GatewayReport:
        """The sum; each call counts as one report."""
        self._seq += 1
        reports = list(self._now.values())
        names = dict.fromkeys(name for report in reports for name in report.pools)
        if len(reports) == self._count:  # pools that nobody has any more are forgotten
            self._past = {name: demand for name, demand in self._past.items() if name in names}
        pools = {
            name: _sum((*self._before(name), *(report.pools[name] for report in reports if name in report.pools)))
            for name in names
        }
        issued = [report.fleet_issued_at for report in reports]
        whole = len(issued) == self._count and None not in issued
        return GatewayReport(
            gateway=self._gateway,
            boot=self._boot,
            seq=self._seq,
            fleet_issued_at=min((at for at in issued if at is not None), default=None) if whole else None,
            pools=pools,
        )

    def _before(self, name: str) -> tuple[PoolDemand, ...]:
        return (self._past[name],) if name in self._past else ()


def differ(old: GatewayReport, new: GatewayReport) -> bool:
    """Whether a report is worth sending after another."""
    return replace(old, seq=0) != replace(new, seq=0)


def _sum(demands: Iterable[PoolDemand]) -> PoolDemand:
    all_of = list(demands)
    return PoolDemand(
        held=sum(demand.held for demand in all_of),
        held_bytes=sum(demand.held_bytes for demand in all_of),
        held_prompt_tokens=sum(demand.held_prompt_tokens for demand in all_of),
        oldest_held_seconds=max((demand.oldest_held_seconds for demand in all_of), default=0.0),
        in_flight=sum(demand.in_flight for demand in all_of),
        refused_total=sum(demand.refused_total for demand in all_of),
        arrived_total=sum(demand.arrived_total for demand in all_of),
        coming=sum(demand.coming for demand in all_of),
    )
