"""A real Prometheus for tests, the one that the cluster runs, and pages for it to scrape."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

from cluster.debian import unpacked
from cluster.ports import free_ports
from cluster.tools import tool_path


def older(name: str) -> str:
    """Path of `prometheus` or `promtool` as Debian 12 has them: the oldest that the rules must hold for."""
    return str(unpacked("prometheus") / "usr/bin" / name)


def newer(name: str) -> str:
    """Path of `prometheus` or `promtool` as the project builds them."""
    return str(tool_path(name))


class Pages:
    """Metrics pages by path, on one port; a path without a page answers 500, as a sidecar that is broken would."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = pages.get(self.path)
                self.send_response(200 if page is not None else 500)
                self.send_header("content-type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write((page or "").encode())

            def log_message(self, *_: Any) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class Prometheus:
    """One Prometheus process in a folder of its own; `targets` maps a page's path to the labels of its target."""

    folder: Path
    pages_port: int
    targets: Mapping[str, Mapping[str, str]]
    rules: Mapping[str, Any] | None = None
    interval: str = "200ms"
    port: int = field(default_factory=lambda: free_ports(1)[0])
    program: str = field(default_factory=lambda: newer("prometheus"))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(self._config()))
        if self.rules is not None:
            (self.folder / "rules.yml").write_text(yaml.safe_dump(dict(self.rules)))
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.program,
                    f"--config.file={config}",
                    f"--storage.tsdb.path={self.folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def fill(self, samples: str) -> None:
        """Put samples of the past (OpenMetrics, with times) into the storage of a process that does not run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "samples.txt"
        file.write_text(samples)
        self._promtool(
            "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(file), str(self.folder / "data")
        )

    def record(self, begin: float, end: float, interval: str) -> None:
        """Evaluate the rules over the past of a process that runs; it knows the records after its next start."""
        self._promtool(
            *("tsdb", "create-blocks-from", "rules", f"--start={begin:.0f}", f"--end={end:.0f}"),
            *(f"--url={self.url}", f"--eval-interval={interval}", f"--output-dir={self.folder / 'data'}"),
            str(self.folder / "rules.yml"),
        )

    def _promtool(self, *arguments: str) -> None:
        subprocess.run([newer("promtool"), *arguments], check=True, timeout=120, capture_output=True)

    def query(self, expression: str) -> list[Any]:
        """Result of an instant query; empty while Prometheus does not answer."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(url, timeout=20) as response:
                return list(json.load(response)["data"]["result"])
        except (urllib.error.URLError, ConnectionError):
            return []

    def until(self, expression: str, results: int, timeout_seconds: float = 120.0) -> None:
        """Wait until a query gives so many results."""
        deadline = time.monotonic() + timeout_seconds
        while len(found := self.query(expression)) != results:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} gives {found} after {timeout_seconds} s")
            time.sleep(0.05)  # Prometheus has no event to wait for

    def _config(self) -> dict[str, Any]:
        jobs = [
            {
                "job_name": path.strip("/"),
                "metrics_path": path,
                "static_configs": [{"targets": [f"127.0.0.1:{self.pages_port}"], "labels": dict(labels)}],
            }
            for path, labels in self.targets.items()
        ]
        pace = {
            "scrape_interval": self.interval,
            "scrape_timeout": self.interval,
            "evaluation_interval": self.interval,
        }
        config: dict[str, Any] = {"global": pace, "scrape_configs": jobs}
        return config if self.rules is None else {**config, "rule_files": [str(self.folder / "rules.yml")]}
