"""Prometheus beside the cluster, in the control plane's network; pods and this machine reach it."""

import shutil
import subprocess
import urllib.request
from pathlib import Path

from cluster import configs, plane, tools
from cluster.console import wait_until
from cluster.errors import ClusterError
from cluster.layout import Layout
from cluster.machine import Machine


class PrometheusError(ClusterError):
    """Prometheus refused its configuration or does not answer."""


def _program(name: str = "prometheus") -> Path:
    return tools.tool_path(name)


def _folder(layout: Layout) -> Path:
    return layout.plane_folder / "prometheus"


def _command(layout: Layout) -> list[str]:
    return configs.prometheus_command(layout, _program(), _folder(layout))


def set_rules(layout: Layout, rules: Path | None) -> None:
    """Take a rules file (checked first) or none; a running Prometheus needs `reload`. Raises PrometheusError."""
    folder = _folder(layout)
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / "rules.yml"
    if rules is None:
        kept.unlink(missing_ok=True)
        return
    check_rules(rules)
    shutil.copyfile(rules, kept)


def check_rules(rules: Path) -> None:
    """Raises PrometheusError with promtool's words when a rules file is not valid."""
    done = subprocess.run(
        [str(_program("promtool")), "check", "rules", str(rules)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PrometheusError(f"{rules} is not a valid rules file: {done.stderr.strip() or done.stdout.strip()}")


def ensure(layout: Layout, machine: Machine) -> None:
    """See that it runs, with the rules that were set last. Raises TimedOut."""
    folder = _folder(layout)
    folder.mkdir(parents=True, exist_ok=True)
    rules = folder / "rules.yml"
    text = configs.prometheus_yaml(
        layout,
        layout.plane_folder / "prometheus.token",
        plane.describe(layout).certificates.authority,
        str(rules) if rules.exists() else None,
    )
    (folder / "prometheus.yml").write_text(text)
    machine.ensure(_command(layout))
    wait_until("Prometheus", lambda: is_ready(layout), timeout_seconds=60)


def stop(machine: Machine) -> None:
    """End it; its data stays."""
    machine.stop_program(str(_program()))


def reload(layout: Layout, machine: Machine) -> None:
    """Make it read its configuration and rules again. Raises PrometheusError."""
    ensure(layout, machine)
    request = urllib.request.Request(f"{layout.prometheus_url}/-/reload", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10):
            pass
    except OSError as error:
        raise PrometheusError(
            f"Prometheus did not reload: {error}; see {machine.log(_command(layout))}"
        ) from error


def take_history(layout: Layout, machine: Machine, history: Path) -> None:
    """Have it remember the samples of an OpenMetrics file, which lie in the past. Raises PrometheusError."""
    stop(machine)
    command = [str(_program("promtool")), "tsdb", "create-blocks-from", "openmetrics", str(history)]
    done = subprocess.run([*command, str(_folder(layout) / "data")], capture_output=True, text=True, check=False)
    ensure(layout, machine)
    if done.returncode != 0:
        raise PrometheusError(f"{history} was not taken: {done.stderr.strip() or done.stdout.strip()}")


def is_ready(layout: Layout) -> bool:
    """Whether it answers."""
    try:
        with urllib.request.urlopen(f"{layout.prometheus_url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
