// Which view is shown, the link to the operator, and the keys.

import { fill, h } from "./dom.js";
import { follow } from "./live.js";
import { poolList } from "./pools.js";
import { onePool } from "./pool.js";
import { oneRun, oneWorkflow, workflowList } from "./flows.js";
import { clock } from "./words.js";

const main = document.getElementById("main");
const link = document.getElementById("link");
const notice = document.getElementById("notice");
const help = document.getElementById("help");
let end = () => {};
let view = null;

const VIEWS = {
  pools: () => [poolList(), "pools"],
  pool: (namespace, name) => [onePool(`${namespace}/${name}`), "pool", `${namespace}/${name}`],
  workflows: () => [workflowList(), "workflows"],
  workflow: (namespace, name) => [oneWorkflow(`${namespace}/${name}`), "workflow", `${namespace}/${name}`],
  run: (namespace, name, id) => [oneRun(`${namespace}/${name}`, id), "run", id],
};

function show() {
  const [name, ...parts] = location.hash.replace(/^#\/?/, "").split("/").map(safely);
  const made = Object.hasOwn(VIEWS, name) ? VIEWS[name](...parts) : VIEWS.pools();
  end();
  view?.close?.();
  const [next, what, key] = made;
  view = next;
  for (const one of document.querySelectorAll("nav a")) {
    const current = what.startsWith(one.dataset.view.slice(0, 4)) || (what === "run" && one.dataset.view === "workflows");
    if (current) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  document.title = key === undefined ? "Tidepool" : `${key} – Tidepool`;
  say(null);
  fill(main, []);
  main.append(view.element);
  window.scrollTo(0, 0);
  end = follow(what, key, {
    change(sections, names) {
      const about = sections.get("about");
      const told = about?.get("trouble") ?? null;
      say(about && !about.get("leads") ? `This operator does not lead: decisions are as the status has them. ${told ?? ""}` : told);
      view.change(sections, names);
      document.documentElement.dataset.ready = what;
    },
    link(state, at, trouble) {
      const text = state === "live" ? `live, ${clock(at)}` : state === "lost" ? "no answer, trying again" : "paused";
      link.textContent = text;
      link.dataset.state = state;
      if (trouble) say(trouble);
      document.documentElement.dataset.link = state;
    },
    gone(why) {
      fill(main, [h("p", { class: "empty" }, why)]);
      document.documentElement.dataset.ready = "gone";
    },
  });
}

function safely(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function say(text) {
  notice.textContent = text ?? "";
  notice.hidden = !text;
}

document.getElementById("keys").addEventListener("click", () => help.showModal());
addEventListener("hashchange", show);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
  if (event.key === "Escape") {
    if (view.escape?.()) return;
    if (location.hash.split("/").length > 2) history.back();
    return;
  }
  if (typing && !["ArrowDown", "ArrowUp", "Enter"].includes(event.key)) return;
  const acts = {
    "/": () => view.filter?.(),
    "?": () => help.showModal(),
    j: () => view.move?.(1),
    ArrowDown: () => view.move?.(1),
    k: () => view.move?.(-1),
    ArrowUp: () => view.move?.(-1),
    p: () => (location.hash = "#/pools"),
    w: () => (location.hash = "#/workflows"),
  };
  if (typing && event.key === "Enter") {
    view.move?.(1);
    event.preventDefault();
    return;
  }
  if (Object.hasOwn(acts, event.key) && acts[event.key]() !== undefined) event.preventDefault();
});
show();
