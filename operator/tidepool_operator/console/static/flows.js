// Workflows: the list, one with its graph and runs, and one run in time.

import { fill, h, s, to } from "./dom.js";
import { count, day, latency, NONE, plural, span } from "./words.js";

const BOX = { width: 172, height: 46, across: 48, down: 16 };
const PHASES = { Succeeded: "ready", Running: "changing", Waiting: "starting", Pending: "starting", Skipped: "zero", Omitted: "zero", Cancelled: "zero" };

export function workflowList() {
  const place = h("div", { class: "place" });
  const element = h("section", { class: "card" }, h("h1", null, "Workflows"), place);
  let at = -1;
  return {
    element,
    change(sections) {
      const all = [...sections.get("workflows")];
      if (!all.length) {
        fill(place, [h("p", { class: "empty" }, "There are no AgentWorkflows yet.")]);
        return;
      }
      fill(place, [
        rows(
          ["Workflow", "State", "Steps", "Run objects"],
          all.map(([key, one]) => {
            const [namespace, name] = key.split("/");
            return [
              h("a", { href: to("workflow", namespace, name) }, h("b", null, name), h("small", null, ` ${namespace}`)),
              [h("span", { class: `pill ${one.state}`, title: one.what }, one.reason ?? one.state), one.state === "failed" ? h("small", null, one.what) : null],
              one.steps,
              Object.entries(one.objects ?? {}).map(([phase, n]) => `${phase} ${n}`).join(", ") || NONE,
            ];
          }),
        ),
      ]);
    },
    move: mover(() => place.querySelectorAll("tbody a"), (by) => (at += by), () => at, (to_) => (at = to_)),
  };
}

function mover(all, add, read, write) {
  return (by) => {
    const found = all();
    if (!found.length) return undefined;
    add(by);
    write(Math.min(found.length - 1, Math.max(0, read())));
    found[read()].focus();
    return true;
  };
}

export function oneWorkflow(key) {
  const [namespace, name] = key.split("/");
  const top = h("div", { class: "place head" });
  const drawing = h("div", { class: "place scrolls" });
  const list = h("div", { class: "place" });
  const element = h(
    "article",
    { class: "workflow" },
    top,
    h("section", { class: "card", "aria-label": "Graph" }, h("h2", null, "Graph"), drawing),
    h("section", { class: "card", "aria-label": "Runs" }, h("h2", null, "Runs"), list),
  );
  let at = -1;
  return {
    element,
    change(sections, names) {
      if (names.has("workflow")) fill(top, workflowHead(Object.fromEntries(sections.get("workflow"))));
      if (names.has("graph")) fill(drawing, [graph(sections.get("graph"))]);
      if (names.has("runs")) fill(list, [runTable(sections.get("runs"), namespace, name)]);
    },
    move: mover(() => list.querySelectorAll("tbody a"), (by) => (at += by), () => at, (to_) => (at = to_)),
  };
}

function workflowHead(one) {
  const [namespace, name] = one.key.split("/");
  const bad = (one.conditions ?? []).filter((each) => !each.holds);
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/workflows" }, "Workflows"), ` / ${namespace}`),
    h("h1", null, name, " ", h("span", { class: `pill ${bad.length ? "failed" : "ready"}` }, bad[0]?.reason ?? "Ready")),
    bad.map((each) => h("p", { class: "warned" }, each.message)),
    h(
      "p",
      { class: "muted" },
      `deadline ${span(one.deadline)}`,
      one.budget ? `, budget ${count(one.budget)} tokens, then ${one.onExceeded ?? "Degrade"}` : "",
      `, called as the model workflow/${name}`,
    ),
  ];
}

function graph(steps) {
  const places = new Map();
  const taken = new Map();
  for (const step of steps) {
    const row = taken.get(step.depth) ?? 0;
    taken.set(step.depth, row + 1);
    places.set(step.name, [10 + step.depth * (BOX.width + BOX.across), 10 + row * (BOX.height + BOX.down)]);
  }
  const width = 20 + Math.max(1, ...[...taken.keys()].map((depth) => depth + 1)) * (BOX.width + BOX.across) - BOX.across;
  const height = 20 + Math.max(1, ...taken.values()) * (BOX.height + BOX.down);
  const lines = steps.flatMap((step) =>
    step.needs.filter((need) => places.has(need)).map((need) => edge(places.get(need), places.get(step.name), step)),
  );
  return s(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, class: "graph", role: "img", "aria-label": graphWords(steps) },
    lines,
    steps.map((step) => box(step, places.get(step.name))),
  );
}

function graphWords(steps) {
  return steps.map((step) => `${step.name}${step.needs.length ? ` after ${step.needs.join(", ")}` : ""}`).join("; ");
}

function edge([fromX, fromY], [toX, toY], step) {
  const x = fromX + BOX.width;
  const y = fromY + BOX.height / 2;
  const end = toY + BOX.height / 2;
  const bend = BOX.across / 2;
  return s("path", {
    d: `M${x} ${y}C${x + bend} ${y} ${toX - bend} ${end} ${toX} ${end}`,
    class: step.picked ? "edge picked" : "edge",
  });
}

function box(step, [x, y]) {
  const words = [step.kind, step.items ? "for each item" : "", step.picked ? "when picked" : "", step.last ? "runs last" : ""];
  const second = [...words, step.pools ? `on ${step.pools.join(", ")}` : ""].filter(Boolean).join(" ");
  return s(
    "g",
    null,
    s("title", null, `${step.name}: ${second}`),
    s("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6, class: `box ${step.kind}${step.soft ? " soft" : ""}` }),
    s("text", { x: x + 10, y: y + 19, class: "strong" }, cut(step.name, 22)),
    s("text", { x: x + 10, y: y + 36, class: "small" }, cut(second, 28)),
  );
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function runTable(runs, namespace, name) {
  if (!runs?.size) return h("p", { class: "empty" }, "No run is remembered. The gateways keep runs for a day.");
  return rows(
    ["Run", "Phase", "Began", "Took", "Tokens", "Deadline"],
    [...runs]
      .sort(([, a], [, b]) => (b.began ?? Infinity) - (a.began ?? Infinity))
      .map(([id, one]) => [
        id.startsWith("object ") ? one.object : [h("a", { href: to("run", namespace, name, id) }, id), one.object ? h("small", null, ` ${one.object}`) : null],
        [phase(one.phase), one.reason ? h("small", null, one.reason) : null],
        day(one.began),
        one.began === undefined ? NONE : latency((one.ended ?? Date.now() / 1000) - one.began),
        count(one.tokens),
        slack(one),
      ]),
  );
}

function phase(name) {
  return h("span", { class: `pill ${PHASES[name] ?? "failed"}` }, name);
}

function slack(one) {
  if (one.deadline === undefined || one.deadline === null) return NONE;
  const left = one.deadline - (one.ended ?? Date.now() / 1000);
  return h("span", { class: left < 0 ? "late" : "" }, left < 0 ? `${latency(-left)} late` : `${latency(left)} ${one.ended ? "to spare" : "left"}`);
}

export function oneRun(workflow, id) {
  const [namespace, name] = workflow.split("/");
  const top = h("div", { class: "place head" });
  const drawing = h("div", { class: "place" });
  const element = h("article", { class: "run" }, top, h("section", { class: "card", "aria-label": "Steps in time" }, h("h2", null, "Steps in time"), legend(), drawing));
  let run = null;
  const draw = () => {
    if (run === null) return;
    fill(top, [
      h("p", { class: "crumbs" }, h("a", { href: "#/workflows" }, "Workflows"), ` / ${namespace} / `, h("a", { href: to("workflow", namespace, name) }, name)),
      h("h1", null, id, " ", phase(run.phase)),
      run.reason ? h("p", { class: "warned" }, run.reason) : null,
      h(
        "p",
        { class: "muted" },
        `began ${day(run.began)}, took ${latency((run.ended ?? Date.now() / 1000) - run.began)}, ${count(run.tokens)} tokens, `,
        slack(run),
        run.moves ? `, changed gateways ${plural(run.moves, "time", "times")}` : "",
      ),
    ].filter(Boolean));
    fill(drawing, gantt(run));
  };
  const clock = setInterval(() => run !== null && run.ended === undefined && draw(), 1000);
  return {
    element,
    change(sections) {
      run = Object.fromEntries(sections.get("run"));
      draw();
    },
    close: () => clearInterval(clock),
  };
}

function legend() {
  const names = { queue: "queue", prefill: "prefill", decode: "decode", model: "prefill and decode", tool: "tool or inner work" };
  return h("p", { class: "legend" }, Object.entries(names).map(([kind, words]) => h("span", { class: `key ${kind}` }, words)));
}

function gantt(run) {
  const bars = run.bars ?? [];
  const now = (run.ended ?? Date.now() / 1000) - run.began;
  const whole = Math.max(0.001, now, ...bars.map((bar) => bar.to ?? now));
  const deadline = run.deadline ? run.deadline - run.began : null;
  const reach = deadline !== null && deadline < whole * 1.5 ? Math.max(whole, deadline) : whole;
  const part = (from, to_, kind) =>
    to_ > from ? h("i", { class: kind, vars: { "--from": String(from / reach), "--to": String(to_ / reach) } }) : null;
  return [
    bars.length
      ? h(
          "div",
          { class: "gantt" },
          bars.map((bar, i) => {
            const end = bar.to ?? now;
            const told = ganttWords(bar, end);
            return h(
              "div",
              { class: "try", "data-key": `${bar.step}/${bar.item ?? ""}/${i}`, title: told },
              h("span", { class: "step" }, bar.step, bar.item === undefined ? "" : `[${bar.item}]`),
              h("span", { class: "track", role: "img", "aria-label": told }, segments(bar, end, part), deadline !== null && deadline <= reach ? h("i", { class: "deadline", vars: { "--from": String(deadline / reach) } }) : null),
              h("span", { class: "took" }, latency(end - bar.from), bar.tokens ? ` · ${count(bar.tokens)}` : "", bad(bar) ? h("span", { class: "late" }, ` ${bar.phase}`) : null),
            );
          }),
        )
      : h("p", { class: "empty" }, "No gateway remembers when the steps of this run began; it is kept for the last 256 runs."),
    run.rest?.length
      ? rows(["Step", "Phase", "Tokens"], run.rest.map((one) => [`${one.step}${one.item === undefined ? "" : `[${one.item}]`}`, phase(one.phase), count(one.tokens)]))
      : null,
  ].filter(Boolean);
}

const bad = (bar) => !["Succeeded", "Running", "Skipped", "Omitted"].includes(bar.phase);

function segments(bar, end, part) {
  const fate = bad(bar) ? " bad" : bar.to === undefined ? " open" : "";
  if (bar.queue === undefined) return part(bar.from, end, `tool${fate}`);
  const first = bar.from + bar.queue;
  if (bar.prefill === undefined) return [part(bar.from, first, "queue"), part(first, end, `model${fate}`)];
  const then = first + bar.prefill;
  const guessed = bar.guessed ? " guessed" : "";
  return [part(bar.from, first, "queue"), part(first, then, `prefill${guessed}`), part(then, end, `decode${guessed}${fate}`)];
}

function ganttWords(bar, end) {
  const words = [`${bar.step}${bar.item === undefined ? "" : `[${bar.item}]`}`, bar.phase, latency(end - bar.from)];
  if (bar.pool) words.push(`on ${bar.pool}`);
  if (bar.queue !== undefined) words.push(`queue ${latency(bar.queue)}`);
  if (bar.prefill !== undefined) {
    words.push(`prefill ${latency(bar.prefill)}${bar.guessed ? " (reckoned from the pool's speed)" : ""}`);
    words.push(`decode ${latency(end - bar.from - bar.queue - bar.prefill)}`);
  }
  if (bar.tokens) words.push(`${count(bar.tokens)} tokens`);
  if (bar.reason) words.push(bar.reason);
  return words.join(", ");
}

function rows(names, found) {
  return h(
    "div",
    { class: "scrolls" },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, found.map((row) => h("tr", null, row.map((cell, i) => h("td", { "data-name": names[i] }, cell))))),
    ),
  );
}
