// All pools: filtered, sorted, and drawn only where one can see them, so that hundreds cost what a screenful does.

import { fill, h, to } from "./dom.js";
import { count, latency, mean, NONE, percent, plural, sum } from "./words.js";

const STATES = ["failed", "degraded", "starting", "changing", "ready", "zero", "leaving", "new"];
const SORTS = {
  state: ["worst first", (a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state)],
  name: ["name", () => 0],
  kv: ["fullest KV", (a, b) => (mean(b.kv) ?? -1) - (mean(a.kv) ?? -1)],
  queue: ["longest queue", (a, b) => waits(b) - waits(a)],
  out: ["most tokens", (a, b) => (b.out ?? -1) - (a.out ?? -1)],
  ttft: ["slowest first token", (a, b) => (b.ttft ?? -1) - (a.ttft ?? -1)],
};
const MARGIN = 6; // rows beyond what is seen
const kept = { text: "", state: null, sort: "state", scroll: 0, at: -1 };

export function poolList() {
  let all = [];
  let shown = [];
  let restore = kept.scroll;
  const input = h("input", {
    type: "search",
    id: "filter",
    placeholder: "Filter: name, model, reason",
    "aria-label": "Filter pools",
    autocomplete: "off",
    spellcheck: "false",
  });
  input.value = kept.text;
  const sort = h(
    "select",
    { "aria-label": "Order" },
    Object.entries(SORTS).map(([name, [words]]) => h("option", { value: name }, words)),
  );
  sort.value = kept.sort;
  const chips = h("div", { class: "chips", role: "group", "aria-label": "States" });
  const body = h("div", { class: "rows", role: "rowgroup" });
  const told = h("p", { class: "muted", role: "status" }, "");
  const list = h("div", { class: "list", role: "table", "aria-label": "Pools" }, head(), body);
  const element = h("section", { class: "pools" }, h("div", { class: "bar" }, input, sort, chips), told, list);

  input.addEventListener("input", () => {
    kept.text = input.value;
    kept.at = -1;
    choose();
  });
  sort.addEventListener("change", () => {
    kept.sort = sort.value;
    choose();
  });
  chips.addEventListener("click", (event) => {
    const state = event.target.closest("button")?.dataset.state;
    if (state === undefined) return;
    kept.state = kept.state === state ? null : state;
    choose();
  });
  body.addEventListener("focusin", (event) => {
    const at = event.target.closest(".row")?.dataset.at;
    if (at !== undefined) kept.at = Number(at);
  });
  const draw = () => requestAnimationFrame(visible);
  const scrolled = () => {
    kept.scroll = window.scrollY;
    draw();
  };
  addEventListener("scroll", scrolled, { passive: true });
  addEventListener("resize", draw);

  function choose() {
    const words = kept.text.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((word) => row.words.includes(word));
    const found = all.filter(fits);
    const counts = new Map(STATES.map((state) => [state, found.filter((row) => row.state === state).length]));
    shown = found.filter((row) => kept.state === null || row.state === kept.state);
    shown.sort((a, b) => SORTS[kept.sort][1](a, b) || (a.key < b.key ? -1 : 1));
    fill(
      chips,
      STATES.filter((state) => counts.get(state) || state === kept.state).map((state) =>
        h(
          "button",
          { type: "button", class: `chip ${state}`, "data-state": state, "aria-pressed": String(kept.state === state) },
          `${state} ${counts.get(state)}`,
        ),
      ),
    );
    const much = shown.length === all.length ? "" : ` of ${all.length}`;
    told.textContent = all.length ? `${shown.length}${much} ${all.length === 1 ? "pool" : "pools"}` : "There are no ModelPools yet.";
    list.setAttribute("aria-rowcount", String(shown.length + 1));
    visible();
  }

  function visible() {
    if (!element.isConnected) return;
    const height = parseFloat(getComputedStyle(body).getPropertyValue("--row")) || 56;
    body.style.height = `${shown.length * height}px`;
    const top = window.scrollY - (body.getBoundingClientRect().top + window.scrollY);
    const first = Math.max(0, Math.floor(top / height) - MARGIN);
    const last = Math.min(shown.length, Math.ceil((top + window.innerHeight) / height) + MARGIN);
    const drawn = [];
    for (let at = first; at < last; at += 1) drawn.push(drawnRow(shown[at], at, height));
    fill(body, drawn);
  }

  return {
    element,
    change(sections, names) {
      if (!names.has("pools")) return;
      all = [...sections.get("pools")].map(([key, row]) => ({
        ...row,
        key,
        words: `${key} ${row.state} ${row.reason} ${row.model ?? ""} ${row.what}`.toLowerCase(),
      }));
      choose();
      if (restore) window.scrollTo(0, restore);
      restore = 0;
    },
    filter() {
      input.focus();
      input.select();
      return true;
    },
    escape() {
      if (!kept.text && kept.state === null) {
        input.blur();
        return false;
      }
      kept.text = input.value = "";
      kept.state = null;
      choose();
      return true;
    },
    move(by) {
      if (!shown.length) return undefined;
      kept.at = Math.min(shown.length - 1, Math.max(0, kept.at + by));
      const height = parseFloat(getComputedStyle(body).getPropertyValue("--row")) || 56;
      const top = body.getBoundingClientRect().top + kept.at * height;
      if (top < 120) window.scrollBy(0, top - 120);
      else if (top + height > window.innerHeight) window.scrollBy(0, top + height - window.innerHeight + 8);
      visible();
      body.querySelector(`.row[data-at="${kept.at}"]`)?.querySelector("a").focus({ preventScroll: true });
      return true;
    },
    close() {
      removeEventListener("scroll", scrolled);
      removeEventListener("resize", draw);
    },
  };
}

function head() {
  const names = ["Pool", "State", "Replicas", "KV by pod", "Queue", "Tokens/s in, out", "First token", "Each token"];
  return h(
    "div",
    { class: "row head", role: "row" },
    names.map((name) => h("span", { role: "columnheader" }, name)),
  );
}

function drawnRow(row, at, height) {
  const [namespace, name] = row.key.split("/");
  return h(
    "div",
    {
      class: "row",
      role: "row",
      "data-key": row.key,
      "data-at": at,
      "aria-rowindex": at + 2,
      vars: { transform: `translateY(${at * height}px)` },
    },
    h(
      "span",
      { role: "cell", class: "name" },
      h("a", { href: to("pool", namespace, name) }, h("b", null, name)),
      h("small", null, namespace),
    ),
    h(
      "span",
      { role: "cell", class: "state" },
      pill(row),
      calm(row) ? null : h("small", null, row.what, row.do ? h("em", null, ` ${row.do}`) : null),
    ),
    h("span", { role: "cell", class: "replicas" }, replicas(row)),
    h("span", { role: "cell", class: "kv" }, bars(row.kv), h("span", { class: "figure" }, percent(mean(row.kv)))),
    h("span", { role: "cell", class: "queue" }, queue(row)),
    h("span", { role: "cell", class: "tokens" }, `${count(row.in)} → ${count(row.out)}`),
    h("span", { role: "cell", class: "ttft" }, against(row.ttft, row.ttftTarget)),
    h("span", { role: "cell", class: "tpot" }, against(row.tpot, row.tpotTarget)),
  );
}

const calm = (row) => row.state === "ready" || row.state === "zero";

export function pill(row) {
  return h("span", { class: `pill ${row.state}` }, row.reason || row.state);
}

export function replicas(row) {
  const same = row.now === row.want;
  return h(
    "span",
    { class: same ? "" : "differs", "aria-label": `${row.now} of ${row.want} replicas serve` },
    h("b", null, row.now),
    ` / ${row.want}`,
  );
}

export function bars(values) {
  if (!values) return null;
  const told = values.map((one) => percent(one)).join(", ");
  return h(
    "span",
    { class: "bars", role: "img", "aria-label": `KV by pod: ${told}`, title: told },
    values.map((one) =>
      h("i", { class: (one ?? 0) > 0.9 ? "full" : null, vars: { "--v": String(Math.min(1, one ?? 0)) } }),
    ),
  );
}

function waits(row) {
  return sum(row.queue) + (row.held ?? 0);
}

function queue(row) {
  const held = row.held ? h("small", null, ` ${plural(row.held, "at a gateway", "at gateways")}`) : null;
  if (!row.queue) return [NONE, held];
  const told = row.queue.length <= 4 ? row.queue.map(count).join(" ") : `${count(sum(row.queue))} in ${row.queue.length}`;
  return [h("span", { title: row.queue.map(count).join(", ") }, told), held];
}

export function against(value, target) {
  if (target === undefined || target === null || value === undefined) return latency(value);
  const late = value > target;
  return [
    h("span", { class: late ? "late" : "" }, latency(value)),
    h("small", null, late ? ` > ${latency(target)}` : ` of ${latency(target)}`),
  ];
}
