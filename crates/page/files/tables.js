// Workflows, sandboxes and images, a row each.

import { attribute, each, element, text } from "./dom.js";
import { ago, bytes, micros, serviceWord } from "./words.js";

/** A table of things; of each column its title and what it shows, and whether that is a number. */
function table(where, things, key, columns, kind) {
  if (!where.firstElementChild) {
    const head = element("tr", "", ...columns.map(([title, , isNumber]) => element("th", isNumber ? "number" : "", title)));
    where.append(element("table", "", element("thead", "", head), element("tbody")));
  }
  where.firstElementChild.hidden = things.length === 0;
  const make = () =>
    element("tr", "", ...columns.map(([title, , isNumber]) => {
      const cell = element("td", isNumber ? "number" : "");
      attribute(cell, "data-title", title);
      return cell;
    }));
  each(where.querySelector("tbody"), things, key, make, (row, thing) => {
    if (row.className !== kind(thing)) row.className = kind(thing);
    columns.forEach(([, value], index) => text(row.children[index], value(thing)));
  });
}

export function showWorkflows(where, state) {
  const columns = [
    ["name", serviceWord],
    ["steps", (one) => one.steps.map((step) => step.name).join(", ")],
    ["port", (one) => one.port, true],
    ["under way", (one) => one.in_flight, true],
    ["served", (one) => one.served, true],
    ["failed", (one) => one.failed, true],
    ["refused", (one) => one.refused, true],
    ["p50", (one) => (one.latency ? micros(one.latency.p50_us) : "–"), true],
    ["problem", (one) => one.problem ?? ""],
  ];
  table(where, state.workflows, serviceWord, columns, (one) => (one.problem ? "ill" : ""));
}

export function showSandboxes(where, state) {
  const columns = [
    ["name", (one) => one.name],
    ["state", (one) => one.state.replace("-", " ")],
    ["service", (one) => (one.service ? serviceWord({ name: one.service, tenant: one.service_tenant }) : "–")],
    ["image", (one) => one.image ?? "–"],
    ["GPU", (one) => one.gpu],
    ["on the GPU", (one) => bytes(one.device_bytes), true],
    ["pinned", (one) => bytes(one.pinned_bytes), true],
    ["began", (one) => ago(one.started, state.now_ms), true],
    ["problem", (one) => one.problem ?? ""],
  ];
  const kind = (one) => (one.problem ? "ill" : one.live ? "" : "over");
  table(where, state.sandboxes, (one) => `${one.name} ${one.started}`, columns, kind);
}

export function showImages(where, state) {
  const columns = [
    ["name", (one) => one.name],
    ["stored", (one) => bytes(one.sizes?.stored), true],
    ["of the CPU", (one) => bytes(one.sizes?.cpu), true],
    ["of the GPU", (one) => bytes(one.sizes?.gpu), true],
    ["shared", (one) => bytes(one.shared_bytes), true],
    ["cached", (one) => bytes(one.cached_bytes), true],
    ["made", (one) => ago(one.created, state.now_ms), true],
    ["problem", (one) => one.problem ?? ""],
  ];
  table(where, state.images, (one) => one.name, columns, (one) => (one.problem ? "ill" : ""));
}
