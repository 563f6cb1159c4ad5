// One pool in depth.

import { chart } from "./charts.js";
import { fill, h } from "./dom.js";
import { against, bars, pill, replicas } from "./pools.js";
import { count, day, latency, mean, NONE, percent, span } from "./words.js";

const SERIES = { output: "Output tokens/s", prompt: "Prompt tokens/s, without cached", requests: "Requests/s" };

export function onePool(key) {
  const places = {};
  const place = (name, title, ...rest) => {
    places[name] = h("div", { class: "place" });
    return h("section", { class: `card ${name}`, "aria-label": title }, h("h2", null, title), rest, places[name]);
  };
  const demand = chart("Demand, the band that was forecast, and what came");
  const pods = chart("Replicas");
  const tabs = h(
    "div",
    { class: "chips", role: "group", "aria-label": "Demand of" },
    Object.entries(SERIES).map(([name, words]) =>
      h("button", { type: "button", class: "chip", "data-series": name, "aria-pressed": String(name === "output") }, words),
    ),
  );
  let series = "output";
  let now = new Map();
  tabs.addEventListener("click", (event) => {
    series = event.target.closest("button")?.dataset.series ?? series;
    for (const one of tabs.children) one.setAttribute("aria-pressed", String(one.dataset.series === series));
    drawDemand();
  });
  const top = h("div", { class: "place head" });
  const element = h(
    "article",
    { class: "pool", "data-key": key },
    top,
    h(
      "div",
      { class: "columns" },
      place("demand", "Demand", tabs, demand.element),
      place("replicas", "Replicas", pods.element),
      place("decision", "Decision in force"),
      place("history", "Decisions that changed the count"),
      place("pods", "Pods"),
      place("rollouts", "Rollouts"),
      place("conditions", "Conditions"),
      place("spec", "Spec"),
    ),
  );

  function drawDemand() {
    const told = now.get("demand") && Object.fromEntries(now.get("demand"));
    if (!told) {
      fill(places.demand, [h("p", { class: "empty" }, noDemand(now))]);
      return;
    }
    demand.draw(demandOf(told, told.series[series], SERIES[series]));
    const band = told.horizon
      ? `The band was said ${span(told.horizon)} before; 9 in 10 outcomes are to lie within it.`
      : "Prediction is off.";
    fill(places.demand, [h("p", { class: "muted" }, band, ` ${covered(told.series[series])}`)]);
  }

  const drawn = {
    pool: (one) => {
      fill(top, header(one));
      fill(places.spec, [facts(one)]);
    },
    conditions: (found) => fill(places.conditions, [conditions(found)]),
    decisions: (found) => {
      fill(places.decision, decision(found));
      fill(places.history, [history(found.history)]);
    },
    rollouts: (found) => fill(places.rollouts, [rollouts(found)]),
    pods: (_, held) => fill(places.pods, [podTable(held)]),
    demand: drawDemand,
    replicas: (found) => {
      const wanted = now.get("decisions");
      drawReplicas(pods, places.replicas, found, wanted && Object.fromEntries(wanted));
    },
  };

  return {
    element,
    change(sections, names) {
      now = sections;
      for (const name of names) {
        const section = sections.get(name);
        if (!Object.hasOwn(drawn, name)) continue;
        drawn[name](section instanceof Map ? Object.fromEntries(section) : section, section);
      }
      if (names.has("decisions") && !names.has("replicas") && sections.get("replicas")) {
        drawn.replicas(Object.fromEntries(sections.get("replicas")));
      }
    },
    close() {
      demand.close();
      pods.close();
    },
  };
}

function header(one) {
  const [namespace, name] = one.key.split("/");
  const row = one.row;
  return [
    h("p", { class: "crumbs" }, h("a", { href: "#/pools" }, "Pools"), ` / ${namespace}`),
    h("h1", null, name, " ", pill(row)),
    h("p", { class: "says" }, row.what ?? "", row.do ? h("em", null, ` ${row.do}`) : null),
    h(
      "dl",
      { class: "tiles" },
      tile("Replicas", replicas(row)),
      tile("KV in use", [bars(row.kv), " ", percent(mean(row.kv))]),
      tile("Waiting", [
        row.queue ? row.queue.map(count).join(" ") : NONE,
        one.held ? h("small", null, ` ${count(one.held)} held at gateways`) : null,
      ]),
      tile("In flight", count(one.inFlight ?? row.running)),
      tile("Tokens/s in, out", `${count(row.in)} → ${count(row.out)}`),
      tile("First token, p90", against(row.ttft, row.ttftTarget)),
      tile("Each token, p90", against(row.tpot, row.tpotTarget)),
    ),
  ];
}

function tile(name, value) {
  return h("div", null, h("dt", null, name), h("dd", null, value));
}

function facts(one) {
  const capacity = one.capacity ?? {};
  const startup = capacity.startup90 ? `${span(capacity.startup50)} half, ${span(capacity.startup90)} nine in ten` : null;
  const rows = [
    ["Served as", [one.model, ...(one.aliases ?? [])].join(", ")],
    ["Model", one.uri],
    ["Engine", one.image],
    ["Accelerator", one.accelerator],
    ["Address", one.url],
    ["Policy", one.policy],
    ["Scaling", one.mode ? `${one.mode}, ${one.min} to ${one.max} replicas` : "none: spec.replicas is left to others"],
    ["A replica serves", capacity.output ? `${count(capacity.prefill)} prompt or ${count(capacity.output)} output tokens/s (${capacity.from})` : null],
    ["A pod starts in", startup],
    ["Generation", one.generation === one.seen ? one.generation : `${one.generation}, seen ${one.seen ?? NONE}`],
    ["Made", day(one.created)],
    ["Engine arguments", one.args ? h("code", null, one.args.join(" ")) : null],
  ];
  return h(
    "dl",
    { class: "facts" },
    rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
  );
}

function conditions(found) {
  if (!found.length) return h("p", { class: "empty" }, "None yet.");
  return table(
    ["Condition", "Reason", "What, and what to do", "Since"],
    found.map((one) => [
      `${one.holds ? "✓" : "✗"} ${one.type}`,
      one.reason,
      [one.message, one.remedy ? h("em", null, ` ${one.remedy}`) : null],
      day(one.since),
    ]),
  );
}

function decision(found) {
  const one = found.now;
  if (!one) return [h("p", { class: "empty" }, "The autoscaler has not decided, or this pool has no spec.scaling.")];
  const refused = found.refused;
  return [
    h("p", { class: "big" }, h("b", null, `${one.replicas} replicas`), ` ${one.reason}`, h("small", null, ` ${day(one.at)}`)),
    h("p", null, one.message),
    one.forecast ? h("p", { class: "muted" }, one.forecast) : null,
    refused ? h("p", { class: "warned" }, h("b", null, `${refused.replicas} refused: ${refused.reason}. `), refused.message) : null,
    one.mix ? h("p", { class: "muted" }, Object.entries(one.mix).map(([name, n]) => `${name}: ${n}`).join(", ")) : null,
    found.samples
      ? h("details", null, h("summary", null, "Figures as read"), table(["Figure", "Read"], Object.entries(found.samples)))
      : null,
  ].filter(Boolean);
}

function history(found) {
  if (!found?.length) return h("p", { class: "empty" }, "None that is remembered.");
  return h(
    "ol",
    { class: "told" },
    found.map((one) =>
      h("li", null, h("b", null, `→ ${one.replicas}`), ` ${one.reason} `, h("time", null, day(one.at)), h("p", null, one.message)),
    ),
  );
}

function rollouts(found) {
  if (!found.length) return h("p", { class: "empty" }, "No revision has pods.");
  return table(
    ["Revision", "Ready", "Engine", "Since"],
    found.map((one) => [
      [
        h("code", null, one.revision),
        one.variant ? ` ${one.variant}` : "",
        one.newest ? h("span", { class: "pill ready" }, "newest") : h("span", { class: "pill changing" }, "goes"),
        one.serves ? h("span", { class: "pill zero" }, "serves") : null,
      ],
      h("span", null, h("progress", { max: Math.max(1, one.want), value: one.ready }), ` ${one.ready} of ${one.want}`),
      one.image ?? NONE,
      day(one.since),
    ]),
  );
}

function podTable(held) {
  if (!held?.size) return h("p", { class: "empty" }, "There are no pods.");
  const now = Date.now() / 1000;
  return h(
    "div",
    { class: "cards" },
    [...held].map(([name, one]) => {
      const ledger = one.ledger;
      return h(
        "div",
        { class: "pod", "data-key": name },
        h("h3", null, name, " ", h("span", { class: `pill ${podState(one.state)}` }, one.state)),
        h(
          "p",
          { class: "muted" },
          [one.variant, one.role === "mixed" ? null : one.role, one.node, `${span(now - (one.created ?? now))} old`]
            .filter(Boolean)
            .join(" · "),
          one.restarts ? h("span", { class: "late" }, ` · engine restarted ${one.restarts} times`) : null,
        ),
        one.why ? h("p", { class: "warned" }, one.why) : null,
        ledger ? ledgerOf(ledger) : h("p", { class: "empty" }, "Its ledger does not answer."),
      );
    }),
  );
}

function podState(state) {
  return { ready: "ready", draining: "leaving", pending: "degraded", starting: "starting", unready: "failed" }[state] ?? "new";
}

function ledgerOf(one) {
  const share = one.kvCapacity ? Math.min(1, (one.kvTokens ?? one.heldTokens) / one.kvCapacity) : one.kv;
  const rows = [
    ["Engine", one.health],
    ["Running", count(one.running)],
    ["Waiting", `${count(one.waiting)}${one.held ? `, ${count(one.held)} held back` : ""}`],
    ["Prompt tokens to do", count(one.queuedTokens)],
    ["KV tokens held", `${count(one.kvTokens ?? one.heldTokens)}${one.kvCapacity ? ` of ${count(one.kvCapacity)}` : ""}`],
    ["Output expected", count(one.expectedTokens)],
    ["KV used up", one.exhausted === undefined ? null : `in ${span(one.exhausted)}`],
    ["Speed, prompt and output", one.outputSpeed ? `${count(one.prefillSpeed)}, ${count(one.outputSpeed)} tokens/s` : null],
    ["Requests, begun and ended", `${count(one.opened)}, ${count(one.closed)}`],
  ];
  return [
    h("div", { class: "meter", role: "img", "aria-label": `KV cache ${percent(share)} in use`, vars: { "--v": String(share ?? 0) } }),
    h("dl", { class: "ledger" }, rows.filter(([, value]) => value !== null).map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
  ];
}

function table(names, rows) {
  return h(
    "div",
    { class: "scrolls" },
    h(
      "table",
      null,
      h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((cell, i) => h("td", { "data-name": names[i] }, cell))))),
    ),
  );
}

function demandOf(told, one, label) {
  const ahead = told.ahead ?? [];
  const later = ahead.map(() => null);
  const at = [...told.at, ...ahead];
  const columns = [
    at,
    [...(one.high ?? told.at.map(() => null)), ...(one.aheadHigh ?? later)],
    [...(one.low ?? told.at.map(() => null)), ...(one.aheadLow ?? later)],
    [...one.came, ...later],
    [...told.at.map((_, i) => (i === told.at.length - 1 ? one.came[i] : null)), ...(one.aheadPoint ?? later)],
  ];
  return {
    columns,
    from: told.at.at(-1),
    bands: [[1, 2, "--band"]],
    lines: [
      { label: "Forecast, high" },
      { label: "low" },
      { label: `Came: ${label}`, colour: "--accent", width: 1.6 },
      { label: "Expected", colour: "--accent", width: 1.4, dash: [5, 4] },
    ],
  };
}

function covered(one) {
  if (!one.low) return "";
  let inside = 0;
  let all = 0;
  one.came.forEach((value, i) => {
    if (value === null || one.low[i] === null || one.high[i] === null) return;
    all += 1;
    if (value >= one.low[i] && value <= one.high[i]) inside += 1;
  });
  return all ? `Of the last ${all} outcomes ${percent(inside / all)} did.` : "";
}

function noDemand(sections) {
  const leads = sections.get("about")?.get("leads");
  if (leads === false) return "Demand and forecasts are known to the operator that leads.";
  return "No demand is kept of this pool: it has no spec.scaling with prediction, or nobody has looked at it yet.";
}

function drawReplicas(plot, place, found, decisions) {
  const steps = [...(decisions?.history ?? [])].reverse();
  const times = [...new Set([...found.at, ...steps.map((one) => Math.round(one.at))])].sort((a, b) => a - b);
  const end = Math.round(Date.now() / 1000);
  if (times.length && times.at(-1) < end) times.push(end);
  if (times.length < 2) {
    fill(place, [h("p", { class: "empty" }, "No count is remembered: Prometheus has no records of this pool yet.")]);
    return;
  }
  const pods = new Map(found.at.map((at, i) => [at, found.pods[i]]));
  const first = times[0];
  const wanted = times.map((at) => steps.filter((one) => Math.round(one.at) <= at).at(-1)?.replicas ?? null);
  plot.draw({
    columns: [times.filter((at) => at >= first), times.map((at) => pods.get(at) ?? null), wanted],
    lines: [
      { label: "Pods that were scraped", colour: "--accent", width: 1.6, stepped: true },
      { label: "Decided", colour: "--warn", width: 1.2, dash: [4, 3], stepped: true },
    ],
  });
  fill(place, []);
}
