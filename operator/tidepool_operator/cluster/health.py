"""/healthz and /metrics of the operator."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(slots=True)
class Figures:
    """Counters of the reconcile loop."""

    reconciles: int = 0
    errors: int = 0
    seconds: float = 0.0
    by_error: dict[str, int] = field(default_factory=dict)


# Complaints by subject; none: healthy.
Checks = Callable[[], Mapping[str, str]]


class HealthServer:
    """Serves until closed. /healthz answers 503 with every complaint, a line each."""

    def __init__(self, checks: Checks, gauges: Callable[[], Mapping[str, float]], figures: Figures) -> None:
        self._checks = checks
        self._gauges = gauges
        self._figures = figures
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one, `port` tells which. Raises OSError when it is taken."""
        app = web.Application()
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        complaints = self._checks()
        if not complaints:
            return web.Response(text="ok\n")
        text = "".join(f"{subject}: {what}\n" for subject, what in sorted(complaints.items()))
        return web.Response(status=503, text=text)

    async def _metrics(self, _: web.Request) -> web.Response:
        figures = self._figures
        lines = [
            "# TYPE tidepool_operator_reconciles_total counter",
            f"tidepool_operator_reconciles_total {figures.reconciles}",
            "# TYPE tidepool_operator_reconcile_errors_total counter",
            *(
                f'tidepool_operator_reconcile_errors_total{{error="{name}"}} {count}'
                for name, count in sorted(figures.by_error.items())
            ),
            "# TYPE tidepool_operator_reconcile_seconds_total counter",
            f"tidepool_operator_reconcile_seconds_total {figures.seconds:.6f}",
        ]
        typed: set[str] = set()
        for name, value in self._gauges().items():
            metric = name.partition("{")[0]
            if metric not in typed:
                lines.append(f"# TYPE tidepool_operator_{metric} gauge")
                typed.add(metric)
            lines.append(f"tidepool_operator_{name} {value:g}")
        text = "\n".join(lines) + "\n"
        return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4"})
