"""A workflow as a graph, and a run as a Gantt chart: as text for a terminal, as SVG, and as a page.

Pure: plain data in, text out. Nothing of a prompt or an answer is drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

_BAR: Final = "█"
_WAIT: Final = "░"
_COLOURS: Final = {"Succeeded": "#3a7d44", "Skipped": "#b0b0b0", "Omitted": "#b0b0b0", "Running": "#d9a441"}
_BROKEN: Final = "#b03a2e"
_BOX_WIDTH, _BOX_HEIGHT, _GAP = 170, 44, 46
_ROW, _LEFT, _CHART = 22, 260, 720


@dataclass(frozen=True, slots=True)
class Bar:
    """One try of one unit; seconds from the run's beginning."""

    name: str
    began: float
    ended: float
    phase: str
    reason: str = ""


def graph_text(workflow: Mapping[str, Any]) -> str:
    """Steps in the order in which they can run, with what each waits for."""
    lines = [str(workflow["name"])]
    width = max((len(step["name"]) + 2 * depth for step, depth in _layered(workflow)), default=0)
    for step, depth in _layered(workflow):
        name = "  " * depth + str(step["name"])
        after = f"  after {', '.join(step['needs'])}" if step["needs"] else ""
        lines.append(f"  {name:<{width}}  {_told(step)}{after}")
    return "\n".join(lines)


def graph_svg(workflow: Mapping[str, Any]) -> str:
    """Boxes in columns, arrows from what must end to what waits."""
    layered = _layered(workflow)
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for step, depth in layered:
        rows[depth] = rows.get(depth, 0) + 1
        places[step["name"]] = 20 + depth * (_BOX_WIDTH + _GAP), 20 + (rows[depth] - 1) * (_BOX_HEIGHT + 18)
    parts = []
    for step, _ in layered:
        x, y = places[step["name"]]
        for need in step["needs"]:
            from_x, from_y = places[need][0] + _BOX_WIDTH, places[need][1] + _BOX_HEIGHT // 2
            to_y = y + _BOX_HEIGHT // 2
            parts.append(
                f'<path d="M{from_x} {from_y} C{x - 20} {from_y} {from_x + 20} {to_y} {x} {to_y}" fill="none" '
                'stroke="#666" marker-end="url(#to)"/>'
            )
        dashed = ' stroke-dasharray="4"' if step["soft"] else ""
        parts.append(
            f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" fill="#f4f4f4" '
            f'stroke="#444"{dashed}/>'
            f'<text x="{x + 10}" y="{y + 19}" font-weight="bold">{escape(step["name"])}</text>'
            f'<text x="{x + 10}" y="{y + 35}" font-size="11">{escape(_told(step))[:40]}</text>'
        )
    width = 40 + (max((depth for _, depth in layered), default=0) + 1) * (_BOX_WIDTH + _GAP)
    height = 40 + max(rows.values(), default=1) * (_BOX_HEIGHT + 18)
    return _svg(width, height, parts)


def bars_of(events: Sequence[Mapping[str, Any]]) -> list[Bar]:
    """A run's tries, from its events, as they began; what has not ended goes to the last event."""
    times = [float(event["at"]) for event in events if "at" in event]
    if not times:
        return []
    first, last = min(times), max(times)
    began: dict[str, float] = {}
    found = []
    for event in events:
        if event.get("type") != "step":
            continue
        name = event["step"] if event.get("item") is None else f"{event['step']}[{event['item']}]"
        at, phase = float(event["at"]) - first, str(event["phase"])
        if phase == "Running":
            began.setdefault(name, at)
        elif name in began:
            found.append(Bar(name, began.pop(name), at, phase, str(event.get("reason") or "")))
    found += [Bar(name, at, last - first, "Running") for name, at in began.items()]
    return sorted(found, key=lambda bar: (bar.began, bar.ended, bar.name))


def gantt_text(title: str, bars: Sequence[Bar], columns: int = 60) -> str:
    """One line a try."""
    whole = max((bar.ended for bar in bars), default=0.0) or 1.0
    width = max((len(bar.name) for bar in bars), default=0)
    lines = [f"{title}  {whole:.2f} s"]
    for bar in bars:
        start = min(columns - 1, int(bar.began / whole * columns))
        length = max(1, round((bar.ended - bar.began) / whole * columns))
        drawn = (" " * start + (_WAIT if bar.phase == "Waiting" else _BAR) * length)[:columns]
        reason = f"  {bar.reason[:60]}" if bar.reason else ""
        lines.append(
            f"  {bar.name:<{width}} |{drawn:<{columns}}| {bar.ended - bar.began:7.2f} s {bar.phase}{reason}"
        )
    return "\n".join(lines)


def gantt_svg(title: str, bars: Sequence[Bar]) -> str:
    """One row a try."""
    whole = max((bar.ended for bar in bars), default=0.0) or 1.0
    parts = [f'<text x="10" y="20" font-weight="bold">{escape(title)} {whole:.2f} s</text>']
    for row, bar in enumerate(bars):
        y = 34 + row * _ROW
        x = _LEFT + bar.began / whole * _CHART
        width = max(2.0, (bar.ended - bar.began) / whole * _CHART)
        told = escape(f"{bar.name} {bar.phase} {bar.ended - bar.began:.2f} s {bar.reason}".rstrip())
        parts.append(
            f'<text x="10" y="{y + 14}" font-size="12">{escape(bar.name)}</text><rect x="{x:.1f}" y="{y + 2}" '
            f'width="{width:.1f}" height="{_ROW - 6}" fill="{_COLOURS.get(bar.phase, _BROKEN)}"><title>{told}'
            "</title></rect>"
        )
    return _svg(_LEFT + _CHART + 20, 50 + len(bars) * _ROW, parts)


def page(title: str, svg: str) -> str:
    """An SVG as a page of its own, which loads nothing from elsewhere."""
    return f'<!doctype html><meta charset="utf-8"><title>{escape(title)}</title><body>{svg}</body>\n'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    arrow = (
        '<defs><marker id="to" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#666"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" font-family="sans-serif" '
        f'font-size="13">{arrow}{"".join(parts)}</svg>'
    )


def _layered(workflow: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], int]]:
    """Steps with how many stand before them in a row; picked ones follow who picks them, the exit step is last."""
    steps = {step["name"]: step for step in workflow["steps"]}
    depths: dict[str, int] = {}
    while len(depths) < len(steps):
        before = len(depths)
        for name, step in steps.items():
            if name not in depths and all(need in depths for need in step["needs"]):
                depths[name] = 1 + max((depths[need] for need in step["needs"]), default=-1)
        if len(depths) == before:  # a circle, which no gateway sends
            depths.update({name: 0 for name in steps if name not in depths})
    last = max(depths.values(), default=0)
    depths.update({name: last + 1 for name, step in steps.items() if step["role"] == "exit"})
    return sorted(((step, depths[name]) for name, step in steps.items()), key=lambda one: one[1])


def _told(step: Mapping[str, Any]) -> str:
    words = [str(step["kind"])]
    if step["items"]:
        words.append("for each item")
    if step["soft"]:
        words.append("Soft")
    if step["role"] == "exit":
        words.append("runs last")
    if step["role"] == "picked":
        words.append("when picked")
    if step["pools"]:
        words.append(f"on {', '.join(step['pools'])}")
    return " ".join(words)
