// Figures as people read them.

export const NONE = "–";

export function count(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)}G`;
  if (size >= 1e6) return `${digits(value / 1e6)}M`;
  if (size >= 1e4) return `${digits(value / 1e3)}k`;
  return digits(value);
}

function digits(value) {
  const size = Math.abs(value);
  return size >= 100 || Number.isInteger(value) ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function percent(ratio) {
  return ratio === null || ratio === undefined ? NONE : `${Math.round(ratio * 100)} %`;
}

/** A short time: a latency. */
export function latency(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds < 1) return `${digits(seconds * 1000)} ms`;
  return `${digits(seconds)} s`;
}

/** A longer time: an age. */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 120) return `${whole} s`;
  if (whole < 7200) return `${Math.round(whole / 60)} min`;
  if (whole < 172800) return `${Math.round(whole / 3600)} h`;
  return `${Math.round(whole / 86400)} d`;
}

export function clock(at) {
  return at === null || at === undefined ? NONE : new Date(at * 1000).toLocaleTimeString();
}

export function day(at) {
  if (at === null || at === undefined) return NONE;
  const time = new Date(at * 1000);
  const today = new Date().toDateString() === time.toDateString();
  return today ? time.toLocaleTimeString() : time.toLocaleString();
}

export function plural(number, one, many) {
  return `${number} ${number === 1 ? one : many}`;
}

export function sum(values) {
  return (values ?? []).reduce((all, one) => all + (one ?? 0), 0);
}

export function mean(values) {
  const known = (values ?? []).filter((one) => one !== null);
  return known.length ? sum(known) / known.length : null;
}
