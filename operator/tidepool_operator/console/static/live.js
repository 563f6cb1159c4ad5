// One view, live: the state of it, and what changes. Whatever breaks is begun anew with the whole view.

const FIRST_PAUSE = 400;
const LONGEST_PAUSE = 5000;
const SILENT = 20000; // an operator gives a sign of life every five seconds
const HIDDEN = 30000; // a page that nobody sees costs nobody anything
let page = null;

/**
 * Follow a view. `on.change(sections, names)` gets all sections as they are and the names of those that changed,
 * `on.link(state, at)` says "live", "lost" or "paused", `on.gone(why)` that there is no such thing.
 * Returns what ends it.
 */
export function follow(what, key, on) {
  let source = null;
  let timer = 0;
  let silence = 0;
  let hidden = 0;
  let pause = FIRST_PAUSE;
  let ended = false;
  let sections = new Map();
  const query = key === undefined ? "" : `?key=${encodeURIComponent(key)}`;

  function open() {
    clearTimeout(timer);
    source?.close();
    source = new EventSource(`live/${what}${query}`);
    source.addEventListener("page", (event) => {
      // Another operator, with another page: this one may not understand it.
      if (page !== null && page !== event.data) location.reload();
      page = event.data;
    });
    source.onmessage = (event) => {
      pause = FIRST_PAUSE;
      listen();
      take(JSON.parse(event.data));
    };
    source.onerror = again;
    listen();
  }

  function listen() {
    clearTimeout(silence);
    silence = setTimeout(again, SILENT);
  }

  function again() {
    source?.close();
    source = null;
    clearTimeout(silence);
    clearTimeout(timer);
    if (ended) return;
    on.link("lost");
    timer = setTimeout(open, pause * (0.75 + Math.random() / 2));
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }

  function take(event) {
    if (event.gone !== undefined && typeof event.gone === "string") {
      on.link("live", event.at);
      on.gone(event.gone);
      return;
    }
    const names = new Set();
    if (event.all) {
      sections = new Map(Object.entries(event.all).map(([name, section]) => [name, held(section)]));
      for (const name of sections.keys()) names.add(name);
    }
    for (const [name, section] of Object.entries(event.set ?? {})) {
      sections.set(name, held(section));
      names.add(name);
    }
    for (const [name, members] of Object.entries(event.put ?? {})) {
      for (const [one, value] of Object.entries(members)) sections.get(name).set(one, value);
      names.add(name);
    }
    for (const [name, members] of Object.entries(event.out ?? {})) {
      for (const one of members) sections.get(name).delete(one);
      names.add(name);
    }
    for (const name of Array.isArray(event.gone) ? event.gone : []) {
      sections.delete(name);
      names.add(name);
    }
    on.link("live", event.at, event.trouble);
    if (names.size) on.change(sections, names);
  }

  function seen() {
    clearTimeout(hidden);
    if (document.hidden) {
      hidden = setTimeout(() => {
        source?.close();
        source = null;
        clearTimeout(silence);
        clearTimeout(timer);
        on.link("paused");
      }, HIDDEN);
    } else if (source === null && !ended) open();
  }

  document.addEventListener("visibilitychange", seen);
  open();
  return () => {
    ended = true;
    document.removeEventListener("visibilitychange", seen);
    clearTimeout(timer);
    clearTimeout(silence);
    clearTimeout(hidden);
    source?.close();
  };
}

/** A section whose members come one by one, as a Map: names are other people's. */
function held(section) {
  return section !== null && typeof section === "object" && !Array.isArray(section)
    ? new Map(Object.entries(section))
    : section;
}
