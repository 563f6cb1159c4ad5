"""What people are shown of a pool that works: every panel of the dashboards has something to draw."""

import re
from collections.abc import Collection
from typing import Any

from scenarios.evidence import prometheus_sample
from scenarios.kube import wait_for
from scenarios.world import World
from tidepool_api.dashboards import dashboards
from tidepool_api.rules import rules_file

# Two scrapes and the time that Prometheus takes to see a pod.
SEEN_SECONDS = 90.0


def see_dashboards(world: World, *, workflows: bool = False, rare: Collection[str] = ()) -> None:
    """Every line draws, but for those of things that go wrong; asked as Grafana would, with All chosen. So do the
    recorded series.

    `workflows` is for those of workflows, which have nothing to draw until one has run, and leaves out the others.
    `rare` names panels whose lines of things that go wrong are to draw, where these do, and leaves out the rest.
    """
    asked = {
        f"{page.name}: {panel.title}: {line.legend}": line.expression
        for page in dashboards()
        if rare or (page.name == "workflows") == workflows
        for _, row in page.rows
        for panel in row
        if not rare or panel.title in rare
        for line in panel.lines
        if line.rare == bool(rare)
    }
    if not workflows and not rare:
        recorded = (rule["record"] for group in rules_file()["groups"] for rule in group["rules"])
        asked |= {f"recorded: {name}": name for name in recorded}
    empty: list[str] = list(asked)

    def all_drawn() -> bool | None:
        empty[:] = [title for title in empty if not _drawn(world, asked[title])]
        return not empty or None

    try:
        wait_for("every line to have data", all_drawn, timeout_seconds=SEEN_SECONDS)
    finally:
        world.facts["panels"], world.facts["panels_empty"] = len(asked), list(empty)


def lines(world: World, title: str) -> dict[str, float]:
    """What the panels of that title draw now: the last figure of each line, by the values of its labels."""
    asked = [
        line.expression
        for page in dashboards()
        for _, row in page.rows
        for panel in row
        if panel.title == title
        for line in panel.lines
    ]
    assert asked, f"no dashboard has a panel {title!r}"
    found = (one for expression in asked for one in _asked(world, expression))
    return {" ".join(one["metric"].values()): float(one["value"][1]) for one in found}


def _drawn(world: World, expression: str) -> bool:
    return bool(_asked(world, expression))


def _asked(world: World, expression: str) -> list[Any]:
    filled = re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", "1m"))
    return list(prometheus_sample(world.prometheus_url, filled)["result"])
