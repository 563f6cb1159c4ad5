// Charts over time, by uPlot, in the colours of the page.

import { h } from "./dom.js";
import { count } from "./words.js";

const HEIGHT = 190;
const dark = matchMedia("(prefers-color-scheme: dark)");

/**
 * A chart that keeps its width. `draw(data)` gets `{columns, lines, bands, from}`: columns of numbers (times first),
 * one entry of `lines` for each of the others, and the time from which on nothing has come yet.
 */
export function chart(label) {
  const element = h("figure", { class: "chart", "data-own": true, "aria-label": label });
  let plot = null;
  let last = null;
  const resize = new ResizeObserver(() => {
    if (plot && element.clientWidth) plot.setSize({ width: element.clientWidth, height: HEIGHT });
    else if (last) draw(last);
  });
  const again = () => last && draw(last);
  dark.addEventListener("change", again);
  resize.observe(element);

  function draw(data) {
    last = data;
    if (!element.clientWidth || !globalThis.uPlot) return;
    plot?.destroy();
    plot = new uPlot(options(data, element.clientWidth), data.columns, element);
  }

  return {
    element,
    draw,
    close() {
      dark.removeEventListener("change", again);
      resize.disconnect();
      plot?.destroy();
    },
  };
}

function options({ lines, bands, from }, width) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = {
    stroke: colour("--muted"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { stroke: colour("--line"), width: 1 },
  };
  return {
    width,
    height: HEIGHT,
    cursor: { y: false, drag: { x: true, y: false } },
    legend: { live: true },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, (high ?? 1) * 1.08)] } },
    axes: [axis, { ...axis, size: 54, values: (_, ticks) => ticks.map(count) }],
    bands: (bands ?? []).map(([high, low, name]) => ({ series: [high, low], fill: colour(name) })),
    series: [
      { value: (_, at) => (at === null ? "" : new Date(at * 1000).toLocaleString()) },
      ...lines.map((line) => ({
        label: line.label,
        stroke: line.colour ? colour(line.colour) : undefined,
        width: line.width ?? 0,
        dash: line.dash,
        points: { show: false },
        paths: line.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        value: (_, value) => (value === null || value === undefined ? "–" : count(value)),
      })),
    ],
    hooks: {
      drawAxes: [
        (plot) => {
          if (!from) return;
          const x = plot.valToPos(from, "x", true);
          plot.ctx.save();
          plot.ctx.strokeStyle = colour("--muted");
          plot.ctx.setLineDash([3, 3]);
          plot.ctx.beginPath();
          plot.ctx.moveTo(x, plot.bbox.top);
          plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
          plot.ctx.stroke();
          plot.ctx.restore();
        },
      ],
    },
  };
}
