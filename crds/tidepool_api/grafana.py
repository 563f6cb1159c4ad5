"""A dashboard's description as Grafana's JSON (schema 39, which Grafana 11 and 12 read)."""

import json
from typing import Any, Final

from tidepool_api.dashboards import Dashboard, Panel

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 12  # of Grafana's 24 columns: two panels beside each other
_HEIGHT: Final = 8


def grafana(dashboard: Dashboard) -> str:
    """The file's text; the same description gives the same bytes."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in dashboard.rows:
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": _place(0, top, 24, 1)})
        top += 1
        for number, panel in enumerate(row):
            left = number % 2 * _WIDTH
            panels.append(_panel(panel, _place(left, top, _WIDTH, _HEIGHT)))
            if left or number == len(row) - 1:
                top += _HEIGHT
    for number, drawn in enumerate(panels, 1):
        drawn["id"] = number
    page = {
        "uid": f"tidepool-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["tidepool"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), *(_variable(*each) for each in dashboard.variables)]},
        "panels": panels,
    }
    return json.dumps(page, indent=1) + "\n"


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "expr": line.expression,
                "legendFormat": line.legend,
                "datasource": _SOURCE,
            }
            for number, line in enumerate(panel.lines)
        ],
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str, metric: str) -> dict[str, Any]:
    """The values of a label of a metric; All by default."""
    return {
        "name": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": f"label_values({metric}, {label})",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
