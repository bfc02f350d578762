// Numbers as people read them.

const UNITS = ["B", "KB", "MB", "GB", "TB"];

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let unit = 0;
  let value = number;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** A span of time in microseconds. */
export function micros(number) {
  if (number === null || number === undefined) return "–";
  if (number < 1000) return `${number} µs`;
  const ms = number / 1000;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return span(ms);
}

/** A span of time in milliseconds. */
export function span(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1).replace(/\.0$/, "")} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export function rate(number) {
  if (number === null) return "–";
  if (number === 0) return "0";
  return number < 10 ? number.toFixed(1) : String(Math.round(number));
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

/** A time of the day, from milliseconds since 1970. */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString([], { hour12: false });
}

/** How long ago an RFC 3339 time is. */
export function ago(time, nowMs) {
  const then = Date.parse(time ?? "");
  return Number.isNaN(then) ? "–" : `${span(Math.max(0, nowMs - then))} ago`;
}

export const STAGES = ["waiting", "starting", "running", "falling-asleep", "asleep", "waking", "ending"];

/** A stage in words, with the level of what sleeps. */
export function stage(name, level = null) {
  const words = name === "waiting" ? "waiting for memory" : name.replace("-", " ");
  return level ? `${words} (${level})` : words;
}

/** The classes by which a stage has its colour; lower levels are paler. */
export function stageClass(name, level) {
  return level ? `stage-${name} level-${level}` : `stage-${name}`;
}

/** What no two services have in common, as the names of instances begin. */
export function serviceWord({ name, tenant }) {
  return tenant ? `${tenant}@${name}` : name;
}
