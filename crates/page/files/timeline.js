// Instances by stage, on a time line that ends now.

import { attribute, each, element, style, text } from "./dom.js";
import { STAGES, clock, serviceWord, span, stage, stageClass } from "./words.js";

const SPANS_MS = [60000, 120000, 300000, 600000, 900000];
/** Into how many parts the axis of each is divided. */
const TICKS = [4, 4, 5, 5, 3];

/** The shortest span that shows all that is known. */
function reach(lanes, nowMs) {
  const first = Math.min(nowMs, ...lanes.map((lane) => lane.steps[0]?.since_ms ?? nowMs));
  return SPANS_MS.find((ms) => nowMs - first <= ms) ?? SPANS_MS.at(-1);
}

export function showLegend(where, isNeeded) {
  each(where, isNeeded ? STAGES : [], (name) => name, (name) => element("span", `key stage-${name}`), (tag, name) => text(tag, stage(name)));
}

/** One after the other, instances of one name have one row. */
function rows(lanes) {
  const found = new Map();
  for (const lane of lanes) found.set(lane.instance, [...(found.get(lane.instance) ?? []), lane]);
  const shown = [...found].map(([instance, all]) => ({ instance, lanes: all, gone: all.every((lane) => lane.gone_ms !== null) }));
  return shown.sort((one, other) => one.instance.localeCompare(other.instance, undefined, { numeric: true }));
}

/** The stages of an instance with their ends, in percent of the span. */
function pieces(lane, from, nowMs) {
  const end = lane.gone_ms ?? nowMs;
  const percent = (ms) => (100 * (Math.min(Math.max(ms, from), nowMs) - from)) / (nowMs - from);
  return lane.steps
    .map((step, index) => {
      const until = lane.steps[index + 1]?.since_ms ?? end;
      const left = percent(step.since_ms);
      const title = `${lane.instance}: ${stage(step.stage, step.level)} for ${span(until - step.since_ms)}, from ${clock(step.since_ms)}`;
      return { shade: stageClass(step.stage, step.level), key: `${step.since_ms} ${index}`, left, width: percent(until) - left, until, title };
    })
    .filter((piece) => piece.until > from);
}

function makeRow() {
  return element("div", "lane", element("span", "lane-name", element("bdi")), element("div", "track"));
}

function updateRow(row, shown, from, nowMs) {
  const [name, track] = row.children;
  text(name.firstElementChild, shown.instance);
  attribute(name, "title", shown.instance);
  row.classList.toggle("gone", shown.gone);
  const all = shown.lanes.flatMap((lane) => pieces(lane, from, nowMs));
  each(track, all, (piece) => piece.key, (piece) => element("i", piece.shade), (bar, piece) => {
    style(bar, "left", `${piece.left.toFixed(2)}%`);
    style(bar, "width", `${piece.width.toFixed(2)}%`);
    attribute(bar, "title", piece.title);
  });
}

/** How many instances are shown. */
export function showTimeline(where, caption, state) {
  const nowMs = state.now_ms;
  const ms = reach(state.lanes, nowMs);
  const from = nowMs - ms;
  const lanes = state.lanes.filter((lane) => (lane.gone_ms ?? nowMs) > from);
  text(caption, lanes.length ? `the last ${span(ms)}` : "");
  const groups = state.services
    .map(serviceWord)
    .map((name) => ({ name, lanes: lanes.filter((lane) => serviceWord({ name: lane.service, tenant: lane.tenant }) === name) }))
    .filter((group) => group.lanes.length > 0);
  const axis = { name: null, lanes: [] };
  each(
    where,
    groups.length ? [...groups, axis] : [],
    (group) => (group.name === null ? "axis" : `of ${group.name}`),
    (group) => (group.name === null ? element("div", "axis", element("span"), element("div")) : element("div", "group", element("h3"), element("div"))),
    (box, group) => {
      const [title, list] = box.children;
      if (group.name === null) {
        const last = TICKS[SPANS_MS.indexOf(ms)];
        const ticks = Array.from({ length: last + 1 }, (_, index) => index);
        each(list, ticks, (index) => `${index} of ${last}`, () => element("span"), (tick, index) => {
          text(tick, index === last ? "now" : `−${span((ms * (last - index)) / last)}`);
        });
        return;
      }
      text(title, group.name);
      each(list, rows(group.lanes), (row) => row.instance, makeRow, (row, shown) => updateRow(row, shown, from, nowMs));
    },
  );
  return lanes.length;
}
